"""The operations' Triton kernels: imported when one runs, for Triton need not be installed."""
