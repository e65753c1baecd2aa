"""What several tests need: a tiny data set, a tiny experiment, and how to compare two run folders."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from fedgela.config import Experiment, parse_experiment
from fedgela.data import Federation
from fedgela.data.federation import make_federation
from fedgela.data.sources import Dataset, make_dataset
from fedgela.errors import UserError
from fedgela.runs import Listener
from fedgela.server import Server, resolve

CLASSES = 4


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
        "device": "cpu",
        "threads": 1,
        "algorithm": {"name": "fedgela", "E_W": 25.0},
    } | changes


def tiny(npz: Path, **changes: Any) -> Experiment:
    return parse_experiment(tiny_table(npz, **changes))


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
    del result["wall_seconds"]
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


__all__ = [
    "CLASSES",
    "Notes",
    "UserError",
    "federation_of",
    "listing",
    "metrics_of",
    "outcome_of",
    "serve",
    "tiny",
    "tiny_arrays",
    "tiny_dataset",
    "tiny_npz",
    "tiny_table",
]
