"""What the engine chooses by itself: from config and machine alone, recorded, and not where it is set."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedgela.config import Experiment
from fedgela.errors import UserError
from fedgela.runfolder import RunFolder
from fedgela.runs import run
from fedgela.training import choice
from helpers import serve, tiny, tiny_arrays


@pytest.fixture(autouse=True)
def _four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "cores", lambda: 4)


def chosen(npz: Path, **changes: Any) -> Experiment:
    server = serve(tiny(npz, **{"threads": None, "partition": "classes:4", "clients": 8, **changes}))
    server.close()
    return server.experiment


def ways(experiment: Experiment) -> tuple[int | None, int | None, int | None]:
    return experiment.lanes, experiment.width, experiment.threads


def test_operations_of_training_are_those_of_three_forward_passes(tmp_path: Path) -> None:
    arrays = tiny_arrays()
    features = {x: arrays[x].reshape(len(arrays[x]), -1).astype(np.float32) for x in ("x_train", "x_test")}
    np.savez(tmp_path / "features.npz", **(arrays | features))
    server = serve(tiny(tmp_path / "features.npz", model="mlp", algorithm="fedavg"))
    products = sum(p.numel() for p in server.net.parameters() if p.dim() == 2)
    assert choice.training_operations(server.net, server.federation) == 3 * 2 * products


def test_a_short_run_of_a_small_net_starts_no_process(npz: Path) -> None:
    assert ways(chosen(npz)) == (1, 8, 1)


def test_a_long_run_uses_every_core(npz: Path) -> None:
    assert ways(chosen(npz, rounds=10**4)) == (4, 2, 1)
    assert ways(chosen(npz, rounds=10**4, sample=3)) == (3, 1, 1)


def test_a_larger_net_trains_its_clients_one_by_one(npz32: Path) -> None:
    assert ways(chosen(npz32, model="simple-cnn", batch_size=60, clients=4)) == (1, 1, 4)
    long = {"model": "simple-cnn", "batch_size": 60, "clients": 4, "rounds": 10**4}
    assert ways(chosen(npz32, **long)) == (4, 1, 1)


def test_a_client_that_outlasts_all_others_gets_all_threads(npz32: Path) -> None:
    one_large = {"model": "resnet18", "rounds": 10**4, "partition": "dirichlet:0.05", "clients": 2}
    experiment = chosen(npz32, **one_large, min_samples=1, seed=3)
    assert ways(experiment) == (1, 1, 4)


def test_one_client_alone_trains_in_this_process(npz: Path) -> None:
    assert ways(chosen(npz, algorithm="centralised", rounds=10**4)) == (1, 1, 1)


def test_what_is_set_is_left_alone(npz: Path) -> None:
    experiment = chosen(npz, lanes=2, width=3, threads=2, precision="fp32", compile=True)
    assert ways(experiment) == (2, 3, 2)
    assert (experiment.precision, experiment.compile, experiment.engine) == ("fp32", True, "lanes")
    assert ways(chosen(npz, engine="eager")) == (1, 1, 1)
    assert chosen(npz).precision == "fp32"


def test_it_is_recorded_with_the_run(npz: Path, tmp_path: Path) -> None:
    run(tiny(npz, threads=None), tmp_path / "run")
    held = RunFolder(tmp_path / "run").experiment()
    assert ways(held) == (1, 4, 1) and held.engine == "lanes"
    torch.set_num_threads(1)


def test_in_bf16_a_cpu_trains_clients_one_by_one(npz: Path) -> None:
    experiment = chosen(npz, precision="bf16")
    assert experiment.width == 1
    server = serve(experiment)
    server.step(server.begin())
    with pytest.raises(UserError, match="width: in bf16 clients train one by one on a CPU"):
        chosen(npz, precision="bf16", width=2)


def test_a_net_that_draws_trains_its_clients_one_by_one(npz: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "draws_by_itself", lambda net: True)
    assert chosen(npz).width == 1
    with pytest.raises(UserError, match="width: clients have draws of their own in this model"):
        chosen(npz, width=2)
