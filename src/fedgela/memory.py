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


def peak_memory(device: str, workers: bool) -> int:
    """The peak in bytes since `forget_peak`, once worker processes have ended.

    On a GPU it is what PyTorch reserved; on a CPU the resident memory of this process and, where there were
    workers, of the largest of them. Pages that the two share are counted twice.
    """
    if torch.device(device).type == "cuda":
        # `cuda` is all of the machine's GPUs, `cuda:1` that one
        used = range(torch.cuda.device_count()) if device == "cuda" else [torch.device(device)]
        return sum(torch.cuda.max_memory_reserved(gpu) for gpu in used)
    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN) if workers else (resource.RUSAGE_SELF,)
    return sum(_UNIT * resource.getrusage(one).ru_maxrss for one in who)
