"""A run's peak memory is its own: not what the process held before it, and with what its workers held."""

import resource
from pathlib import Path

import pytest
import torch

from fedgela import runs
from fedgela.memory import forget_peak, peak_memory
from fedgela.training import workers
from helpers import tiny

MB = 1_000_000


def test_a_run_tells_its_peak(npz: Path, tmp_path: Path) -> None:
    result = runs.run(tiny(npz), tmp_path / "run")
    now = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert 50 * MB < result["peak_memory_bytes"] <= now


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux can forget a peak")
def test_what_was_held_before_is_not_counted() -> None:
    forget_peak()
    before = peak_memory("cpu")
    held = torch.ones(100 * MB)
    with_it = peak_memory("cpu")
    assert with_it > before + 350 * MB
    del held
    assert peak_memory("cpu") >= with_it  # it is the peak, not the present
    forget_peak()
    assert peak_memory("cpu") < with_it - 350 * MB


def test_workers_are_counted_but_not_those_of_an_earlier_run(
    npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = runs.run(tiny(npz, rounds=1), tmp_path / "alone")["peak_memory_bytes"]
    large = torch.ones(100 * MB)  # forked workers have it, too
    monkeypatch.setattr(workers, "_start_method", lambda: "fork")
    with_large = runs.run(tiny(npz, lanes=2, rounds=1), tmp_path / "large")["peak_memory_bytes"]
    del large
    without = runs.run(tiny(npz, lanes=2, rounds=1), tmp_path / "small")["peak_memory_bytes"]
    assert without > alone + 20 * MB
    assert without < with_large - 700 * MB  # of the process and of its workers
