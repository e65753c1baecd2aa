"""A comparison of three kinds of methods on two seeds, run once, and a folder made by hand for what no test
can train."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from rich.console import Console

from fedgela.compare import compare
from fedgela.methods import experiments_of
from fedgela.progress import PlainView
from fedgela.report import Report, make_report
from helpers import tiny_table

pytest.importorskip("matplotlib")


@pytest.fixture(scope="session")
def comparison(npz: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """FedAvg (fine-tuned PA), FedRep (no global model) and FedGELA (both), seeds 0 and 1."""
    tracked = "angles,collapse,gradients"
    table = {k: v for k, v in tiny_table(npz, rounds=2, track=tracked).items() if k != "algorithm"}
    out = tmp_path_factory.mktemp("comparison")
    with PlainView(Console(quiet=True)) as view:
        compare(experiments_of(table, ["fedavg", "fedrep", "fedgela"], "config"), [0, 1], out, view)
    return out


@pytest.fixture(scope="session")
def report(comparison: Path) -> Report:
    return make_report([comparison])


@pytest.fixture
def made_run(tmp_path: Path) -> Callable[..., Path]:
    """A run folder written by hand: config, metrics and, unless it is unfinished, a result."""

    def make(
        name: str,
        GA: list[float],
        finished: bool = True,
        tracked: dict[str, list[Any]] | None = None,
        **config: Any,
    ) -> Path:
        folder = tmp_path / name
        folder.mkdir(parents=True)
        experiment = {
            "dataset": "cifar10",
            "data_dir": str(tmp_path / "no-data"),
            "partition": "dirichlet:0.1",
            "clients": 10,
            "sample": 10,
            "model": "resnet18",
            "projection": 84,
            "rounds": len(GA),
            "seed": 0,
            "partition_seed": 0,
            "algorithm": {"name": "fedgela"},
        } | config
        (folder / "config.toml").write_text(tomli_w.dumps(experiment))
        lines = [
            {
                "round": i + 1,
                "clients": [0],
                "train_loss": 1.0 / (i + 1),
                "GA": value,
                "GA_by_class": [value] * 10,
                "local_accuracy": value + 5,
                "PA": value + 5,
                "seconds": 0.5,
            }
            | {key: values[i] for key, values in (tracked or {}).items()}
            for i, value in enumerate(GA)
        ]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        if finished:
            n = len(GA)
            ends = {"best": max(GA), "best_round": GA.index(max(GA)) + 1, "last": GA[-1], "last_round": n}
            personal = ends | {"best": max(GA) + 5, "last": GA[-1] + 5}
            result = {"GA": ends, "PA": personal, "PA_of": "local", "wall_seconds": 60.0, "device": "cpu"}
            (folder / "result.json").write_text(json.dumps(result))
        return folder

    return make
