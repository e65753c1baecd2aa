"""Flower's simulation gives what a local run gives, for every method."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from fedgela.algorithms import ALGORITHMS
from fedgela.config import Experiment
from fedgela.resolve import resolve
from fedgela.server import Server
from helpers import TIMES, tiny

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedgela[flower]'")
pytest.importorskip("ray", reason="Ray is not installed: pip install 'fedgela[flower]'")

from flower.sites import assert_close

if TYPE_CHECKING:
    from fedgela.flower.simulation import Simulation

CLIENTS = 4


@pytest.fixture(scope="module")
def simulation() -> Iterator["Simulation"]:
    """Ray takes seconds to start: all methods share one."""
    from fedgela.flower.simulation import Simulation

    shared = Simulation(CLIENTS, gpus=0.0)
    yield shared
    shared.close()


def simulated(experiment: Experiment, simulation: "Simulation") -> Server:
    from fedgela.flower.simulation import SimulatedServer

    server = SimulatedServer(*resolve(experiment.with_(engine="flower-simulation")))
    server.simulation = simulation
    return server


def assert_same_rounds(experiment: Experiment, simulation: "Simulation") -> None:
    here, there = Server(*resolve(experiment)), simulated(experiment, simulation)
    mine, theirs = here.begin(), there.begin()
    for _ in range(experiment.rounds):
        records = here.step(mine), there.step(theirs)
        assert_close(mine.server.model, theirs.server.model)
        assert_close(mine.server.extra, theirs.server.extra)
        assert_close(mine.server.private, theirs.server.private)
        for key in ("clients", "lr"):
            assert records[0].get(key) == records[1].get(key)
        assert records[0].keys() - TIMES == records[1].keys() - TIMES
        for key in records[0].keys() - TIMES:
            if isinstance(records[0][key], float):
                assert records[1][key] == pytest.approx(records[0][key], rel=1e-3, abs=1e-3), key
    assert torch.equal(mine.visited, theirs.visited)
    assert torch.equal(mine.right, theirs.right)
    assert here.finish(mine) == there.finish(theirs)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_method_gives_the_same_rounds(name: str, npz: Path, simulation: "Simulation") -> None:
    experiment = tiny(npz, algorithm=name, clients=CLIENTS, sample=3, rounds=3, server_momentum=0.5)
    assert_same_rounds(experiment, simulation)


@pytest.mark.parametrize(
    "changes",
    [
        {"batchnorm": "local", "model": "tiny-cnn"},
        {"algorithm": {"name": "fedgela", "phi": "paper-sqrt"}},
        {"track": ["angles", "collapse"]},
        {"schedule": "cosine", "optimizer": "adam", "lr": 0.01, "clip_norm": 1.0},
    ],
    ids=["own BatchNorm", "shared statistics", "tracked", "another optimiser"],
)
def test_options_of_the_round(changes: dict[str, Any], npz: Path, simulation: "Simulation") -> None:
    assert_same_rounds(tiny(npz, clients=CLIENTS, rounds=2, **changes), simulation)


def test_a_simulation_that_does_not_start_is_not_in_the_next_ones_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from fedgela.flower import simulation as module

    def broken(*args: Any, **more: Any) -> None:
        raise OSError("no room")

    monkeypatch.setattr(module, "run_simulation", broken)
    monkeypatch.setattr(module, "_ONE_AT_A_TIME", threading.Lock())
    for _ in range(2):
        with pytest.raises(RuntimeError, match="did not start"):
            module.Simulation(CLIENTS, gpus=0.0)
