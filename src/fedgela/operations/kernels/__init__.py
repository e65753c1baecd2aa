"""The Triton kernels of the operations. They are imported only when one runs: Triton may not be installed."""
