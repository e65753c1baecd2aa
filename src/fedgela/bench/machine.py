"""The machine that is measured on: its name, its memory, and how much it computes at best."""

import os
import platform
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


def describe() -> dict[str, Any]:
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count() or 1,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.system(),
    }


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


# -- memory --------------------------------------------------------------------------------------------


def memory_of_tree(root: int) -> int:
    """Bytes of a process and all below it, shared pages counted once; 0 where there is no /proc."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            after_name = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        children.setdefault(int(after_name[1]), []).append(int(entry.name))
    total, waiting = 0, [root]
    while waiting:
        process = waiting.pop()
        total += _memory(process)
        waiting += children.get(process, [])
    return total


def _memory(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def gpu_memory(device: torch.device) -> int | None:
    """Bytes in use on a GPU by all processes; None for a CPU."""
    if device.type != "cuda":
        return None
    free, total = torch.cuda.mem_get_info(device)
    return total - free


def gpu_utilisation(device: torch.device) -> float | None:
    """Percent of the last moments in which a GPU was busy; None for a CPU, and without NVML."""
    if device.type != "cuda":
        return None
    try:
        return float(torch.cuda.utilization(device))
    except (ImportError, RuntimeError):  # no pynvml, or a driver that does not tell
        return None


# -- arithmetic ----------------------------------------------------------------------------------------


def matmul_rate(device: torch.device, precision: str) -> float:
    """FLOP/s of a big matrix product: what the device reaches where nothing else holds it up."""
    size = 8192 if device.type == "cuda" else 2048
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    threads, tf32 = torch.get_num_threads(), torch.backends.cuda.matmul.allow_tf32
    torch.set_num_threads(os.cpu_count() or 1)
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    try:
        best = min(_seconds_of_product(a, b) for _ in range(6))
    finally:
        torch.set_num_threads(threads)
        torch.backends.cuda.matmul.allow_tf32 = tf32
    del a, b
    if device.type == "cuda":
        torch.cuda.empty_cache()  # this process is not to hold what others can use
    return 2 * size**3 / best


def _seconds_of_product(a: Tensor, b: Tensor) -> float:
    began = time.perf_counter()
    torch.mm(a, b)
    if a.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - began
