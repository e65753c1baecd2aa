"""What several tests need: a tiny data set, a tiny experiment, and how to compare two run folders."""

import contextlib
import json
import math
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Sequence
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedgela import cli
from fedgela.algorithms import Update
from fedgela.config import Experiment, parse_experiment
from fedgela.data import Federation
from fedgela.data.arrays import make_dataset
from fedgela.data.dataset import Dataset
from fedgela.data.federation import make_federation
from fedgela.evaluation import Record
from fedgela.inputs import InputSpec
from fedgela.listener import Listener
from fedgela.models import Backbone, State
from fedgela.resolve import resolve
from fedgela.rounds import InMemoryStore, Progress
from fedgela.runs import run
from fedgela.server import Server

CLASSES = 4
Cli = Callable[..., tuple[int, str, str]]  # arguments -> exit code, stdout, stderr
TIMES = {"seconds", "training_seconds"}  # of a round: no two are the same
FSYNC = os.fsync  # before conftest.py spares the tests its time


def tiny_arrays(train: int = 60, test: int = 30, classes: int = CLASSES, seed: int = 0) -> dict[str, Any]:
    """8x8 images in which a class is a bright quadrant under noise: something to learn, in no time."""
    rng = np.random.default_rng(seed)
    arrays: dict[str, Any] = {}
    for part, n in (("train", train), ("test", test)):
        y = np.arange(n) % classes
        x = rng.integers(0, 150, (n, 8, 8))
        for i, c in enumerate(y):
            row, column = divmod(int(c) % 4, 2)
            x[i, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4] += 60
        arrays[f"x_{part}"] = x.astype(np.uint8)
        arrays[f"y_{part}"] = y.astype(np.int64)
    return arrays


def tiny_npz(folder: Path, **options: Any) -> Path:
    path = folder / "tiny.npz"
    np.savez(path, **tiny_arrays(**options))
    return path


def tiny_dataset(**options: Any) -> Dataset:
    return make_dataset("tiny", **tiny_arrays(**options))


def federation_of(data: Dataset, train: list[int], test: list[int]) -> Federation:
    """A federation with chosen owners: train[i] is the client of training sample i."""
    owners = [np.array(owner, dtype=np.int64) for owner in (train, test)]
    return make_federation(data, int(max(train)) + 1, *owners)


def tiny_table(npz: Path, **changes: Any) -> dict[str, Any]:
    return {
        "dataset": str(npz),
        "partition": "classes:2",
        "clients": 4,
        "rounds": 3,
        "epochs": 1,
        "batch_size": 5,
        "lr": 0.05,
        "projection": 8,
        "finetune_epochs": 1,
        "checkpoint_every": 1,
        "device": "cpu",
        "threads": 1,
        "algorithm": {"name": "fedgela", "E_W": 25.0},
    } | changes


def tiny(npz: Path, **changes: Any) -> Experiment:
    return parse_experiment(tiny_table(npz, **changes))


class NormBackbone(Backbone):
    """A body with BatchNorm, as a ResNet has, in milliseconds."""

    def __init__(self, spec: InputSpec) -> None:
        super().__init__(width=6)
        self.flat = nn.Linear(math.prod(spec.shape), 6)
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm(self.flat(x.flatten(1))))


def serve(experiment: Experiment) -> Server:
    return Server(*resolve(experiment))


class Notes(Listener):
    """Keeps what a run says."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.began_at: int | None = None

    def started(self, experiment: Experiment, done: int) -> None:
        self.began_at = done

    def note(self, text: str) -> None:
        self.notes.append(text)


def metrics_of(folder: Path) -> str:
    """metrics.jsonl byte for byte, but for the time that rounds took."""
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    kept = []
    for line in lines:
        head, found, _ = line.rpartition(', "seconds": ')
        assert found, f"a round without seconds: {line}"
        kept.append(head)
    return "\n".join(kept)


def outcome_of(folder: Path) -> dict[str, Any]:
    """All that a finished run must reproduce to the bit. Model files carry their checksum in the name."""
    result = json.loads((folder / "result.json").read_text())
    del result["wall_seconds"], result["peak_memory_bytes"]
    return {
        "result": result,
        "metrics": metrics_of(folder),
        "config": (folder / "config.toml").read_text(),
        **{path.name: path.read_bytes() for path in (folder / "models").iterdir()},
        "clients": {path.name for path in (folder / "clients").iterdir()},
    }


def listing(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every file with its time and content, to see that nothing was touched. A lock holds no content."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


class Cutting(Listener):
    """Ctrl-C at the end of a round."""

    def __init__(self, at: int) -> None:
        self.at = at

    def round(self, record: Record) -> None:
        if record["round"] == self.at:
            raise KeyboardInterrupt


def run_cut(experiment: Experiment, folder: Path, at: int) -> None:
    """A run that Ctrl-C ends at the end of a round, of which a checkpoint is written then."""
    with pytest.raises(KeyboardInterrupt):
        run(experiment, folder, Cutting(at))


# -- commands in a process of their own ------------------------------------------------------------


def start_command(*arguments: object, cwd: Path | None = None, log: Path | None = None) -> ForkProcess:
    """`fedgela ARGUMENTS` in a process that can be killed for real, forked from this one: a new interpreter
    would spend seconds on imports. What it says goes into `log`, or nowhere."""
    process = multiprocessing.get_context("fork").Process(
        target=_command, args=(arguments, cwd, log), daemon=True
    )
    process.start()
    return process


def _command(arguments: Sequence[object], cwd: Path | None, log: Path | None) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.fsync = FSYNC  # so that a file is being written for as long as in truth
    os.chdir(cwd or Path.cwd())
    sys.argv = ["fedgela", *map(str, arguments)]
    with (
        (log or Path(os.devnull)).open("w") as said,
        contextlib.redirect_stdout(said),
        contextlib.redirect_stderr(said),
    ):
        cli.main()


# -- runs in memory --------------------------------------------------------------------------------


class Recording(InMemoryStore):
    """Remembers every local model of a run: [(client, model)]."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[tuple[int, State]] = []

    def put(self, client: int, model: State) -> None:
        super().put(client, model)
        self.log.append((client, model))


def play(server: Server, rounds: int | None = None) -> tuple[Progress, list[Record]]:
    progress = server.begin()
    return progress, [server.step(progress) for _ in range(rounds or server.experiment.rounds)]


def watch_updates(server: Server) -> list[Update]:
    """A list that fills with all that clients send to this server."""
    seen: list[Update] = []
    aggregate = server._aggregate

    def watched(progress: Progress, updates: Sequence[Update]) -> None:
        seen.extend(updates)
        aggregate(progress, updates)

    server._aggregate = watched  # type: ignore[method-assign]
    return seen


def same(a: State, b: State) -> bool:
    """Bit for bit."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def assert_same_run(a: Experiment, b: Experiment, *, but: Sequence[str] = ()) -> None:
    """Two experiments give the same rounds and the same global model, to the bit."""
    (mine, my_records), (theirs, their_records) = play(serve(a)), play(serve(b))
    for one, other in zip(my_records, their_records, strict=True):
        assert one.keys() == other.keys()
        for key in one.keys() - {*TIMES, *but}:
            assert one[key] == other[key], key
    assert same(mine.server.model, theirs.server.model)
