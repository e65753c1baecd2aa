"""Lanes, however many and however wide, give what the eager engine gives."""

from pathlib import Path
from typing import Any

import pytest
import torch

from fedgela.algorithms import ALGORITHMS
from fedgela.training import LaneEngine, WorkerEngine
from helpers import serve, tiny


@pytest.mark.parametrize(
    "ways",
    [{"lanes": 1, "width": 1}, {"lanes": 1, "width": 3}, {"lanes": 2, "width": 2}, {"lanes": 3, "width": 1}],
    ids=str,
)
@pytest.mark.parametrize("method", ALGORITHMS)
def test_lanes_give_the_eager_engines_result(npz: Path, method: str, ways: dict[str, int]) -> None:
    algorithm: Any = {"name": "fedgen", "alpha": 0.1, "beta": 0.1} if method == "fedgen" else method
    changes: dict[str, Any] = {
        "algorithm": algorithm,
        "partition": "dirichlet:0.3",
        "min_samples": 2,
        "epochs": 2,
        "sample": 3,
    }
    plain = serve(tiny(npz, engine="eager", **changes))
    fast = serve(tiny(npz, engine="lanes", **ways, **changes))
    assert isinstance(fast.engine, WorkerEngine if ways["lanes"] > 1 else LaneEngine)
    a, b = plain.begin(), fast.begin()
    for _ in range(3):
        one, two = plain.step(a), fast.step(b)
        assert two["train_loss"] == pytest.approx(one["train_loss"], rel=1e-4)
    for name, value in a.server.model.items():
        torch.testing.assert_close(b.server.model[name], value, rtol=1e-3, atol=1e-5)
    fast.close()
