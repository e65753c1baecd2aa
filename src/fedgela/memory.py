"""The peak memory of a run: the GPU's where it uses one, else that of its processes."""

import contextlib
import resource
import sys
from pathlib import Path

import torch

_UNIT = 1 if sys.platform == "darwin" else 1024  # the unit of ru_maxrss in bytes


def forget_peak() -> None:
    """Start measuring anew, before a run: the process may have used more memory for an earlier one."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()
        for device in range(torch.cuda.device_count()):
            torch.cuda.reset_peak_memory_stats(device)
    with contextlib.suppress(OSError):  # Linux only; elsewhere the peak is that of the process's whole life
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory(device: str) -> int:
    """The peak in bytes since `forget_peak`: on a GPU of what PyTorch reserved, on a CPU of this process."""
    if torch.device(device).type == "cuda":
        # `cuda` is all of the machine's GPUs, `cuda:1` that one
        used = range(torch.cuda.device_count()) if device == "cuda" else [torch.device(device)]
        return sum(torch.cuda.max_memory_reserved(gpu) for gpu in used)
    return resident_peak()


def resident_peak() -> int:
    """The peak of this process's resident memory, in bytes."""
    return _UNIT * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
