"""Clients whose batches have one sample."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from fedgela.errors import UserError
from fedgela.progress import make_view
from fedgela.runs import run
from fedgela.seeds import run_seeds
from helpers import serve, tiny, tiny_arrays

NETS = """
import math
from torch import nn


class WithBatchNorm(nn.Module):
    def __init__(self, spec):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(spec.shape), 6), nn.BatchNorm1d(6))

    def forward(self, x):
        return self.layers(x)


class WithLayerNorm(WithBatchNorm):
    def __init__(self, spec):
        super().__init__(spec)
        self.layers[2] = nn.LayerNorm(6)
"""


@pytest.fixture(autouse=True)
def _nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nets_of_one.py").write_text(NETS)
    monkeypatch.syspath_prepend(str(tmp_path))


def natural(folder: Path, *owners: int, **changes: Any) -> dict[str, Any]:
    """An experiment whose first samples are these clients', and the rest a last one's."""
    arrays = tiny_arrays()
    last = max(owners) + 1
    arrays["client_train"] = np.array([*owners, *[last] * (60 - len(owners))])
    arrays["client_test"] = np.arange(30) % (last + 1)
    arrays["client_names"] = np.array([f"site {k}" for k in range(last + 1)])
    np.savez(folder / "sites.npz", **arrays)
    own = {"partition": "natural", "clients": None, "model": "nets_of_one:WithBatchNorm", **changes}
    return {"npz": folder / "sites.npz", **own}


def test_batchnorm_is_refused_before_the_run(tmp_path: Path) -> None:
    experiment = tiny(**natural(tmp_path, 0, 1, 1, sample=1))
    told = (
        r"^client site 0 has one training sample, and model nets_of_one:WithBatchNorm cannot train on a "
        r"single sample \(ValueError: .*nets_of_one.py, line \d+\)\): give it more, or leave it out, or take"
    )
    with pytest.raises(UserError, match=told):
        run(experiment, tmp_path / "run")
    with pytest.raises(UserError, match=told):
        run_seeds(experiment, [0, 1], tmp_path / "seeds", make_view(Console()))
    assert not (tmp_path / "run").exists() and not (tmp_path / "seeds").exists()


def test_all_such_clients_are_counted(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="client site 1 has one training sample, and so have 2 more, and"):
        serve(tiny(**natural(tmp_path, 0, 0, 1, 2, 3)))


def test_a_batch_size_of_one_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^batch_size is 1, and model .*\): raise batch_size, or take"):
        serve(tiny(**natural(tmp_path, 0, 0, batch_size=1)))


def test_two_samples_are_enough_and_so_is_pooled_data(tmp_path: Path) -> None:
    run(tiny(**natural(tmp_path, 0, 0)), tmp_path / "two")
    run(tiny(**natural(tmp_path, 0, algorithm="centralised")), tmp_path / "pooled")


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "nets_of_one:WithLayerNorm"},
        {"model": "tiny-cnn", "algorithm": {"name": "fedgela", "feature_norm": "batchnorm"}},
    ],
)
def test_what_can_train_on_a_single_sample_does(tmp_path: Path, changes: dict[str, Any]) -> None:
    run(tiny(**natural(tmp_path, 0, **changes)), tmp_path / "run")


def test_batchnorm_of_single_pixels_can_become_groupnorm(tmp_path: Path) -> None:
    pixels = "Unflatten(1, (6, 1, 1)), nn.BatchNorm2d(6), nn.Flatten()"
    (tmp_path / "pixel_nets.py").write_text(NETS.replace("BatchNorm1d(6)", pixels))
    settings = natural(tmp_path, 0, model="pixel_nets:WithBatchNorm")
    with pytest.raises(UserError, match='leave it out, or set batchnorm = "group", or take'):
        serve(tiny(**settings))
