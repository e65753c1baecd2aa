"""Every cell at tiny size, in a fraction of a second each: proof that all of them can be run, and no more.

Data are random, in each data set's shape, with its classes and clients. Rounds, epochs and batches are as few
as can be, and one small layer stands in for the deep nets; all else is as the cell says.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from fedgela.data.text import LENGTH, LETTERS
from fedgela.inputs import InputSpec
from fedgela.models import Backbone
from fedgela.paper import Cell
from fedgela.reproduce.tasks import Task, tasks_of

Arrays = dict[str, np.ndarray]
TINY: dict[str, Any] = {
    "rounds": 1,
    "epochs": 1,
    "finetune_epochs": 1,
    "min_samples": 0,  # samples are fewer than the cells of 50 clients and 100 classes
    "device": "cpu",
    "engine": "eager",  # stacking clients costs more than these runs do
    "threads": 1,
}
DEEP = ("resnet18", "resnet50", "efficientnet-b0", "lstm")


class Shallow(Backbone):
    """One convolution, or embedded characters, and a mean over places: few weights for inputs of any size."""

    def __init__(self, spec: InputSpec) -> None:
        super().__init__(width=8)
        self.layer: nn.Module
        if spec.kind == "tokens":
            self.layer = nn.Sequential(nn.Embedding(spec.vocabulary, 8), Transposed())
        else:
            self.layer = nn.Sequential(nn.Conv2d(spec.shape[0], 8, kernel_size=8, stride=8), nn.Flatten(2))

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.layer(x).mean(dim=2).relu()
        return z


class Transposed(nn.Module):
    """[B, places, width] to [B, width, places], as a convolution's."""

    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2)


def write_tiny_data(folder: Path) -> None:
    """A file for every data set of the paper."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    sets = {
        "svhn": _images(rng, 10, 200, (32, 32, 3)),
        "cifar10": _images(rng, 10, 200, (32, 32, 3)),
        "cifar100": _images(rng, 100, 500, (32, 32, 3)),
        "fed-isic2019_200": _images(rng, 8, 40, (200, 200, 3), clients=6),
        "femnist": _images(rng, 62, 124, (28, 28, 1), clients=60),
        "shakespeare": _text(rng, roles=60),
    }
    for name, arrays in sets.items():
        np.savez(folder / f"{name}.npz", **arrays)  # type: ignore[arg-type]


def _images(
    rng: np.random.Generator, classes: int, n: int, shape: tuple[int, ...], clients: int = 0
) -> Arrays:
    arrays: Arrays = {}
    for part, count in (("train", n), ("test", max(classes, n // 10, clients))):
        arrays[f"x_{part}"] = rng.integers(0, 256, (count, *shape), dtype=np.uint8)
        arrays[f"y_{part}"] = rng.permutation(np.arange(count) % classes)
        if clients:
            arrays[f"client_{part}"] = np.arange(count) % clients
    return arrays


def _text(rng: np.random.Generator, roles: int) -> Arrays:
    """Of every role one window of text to train on and one to test on, a line each. The lines between are too
    short for a window; they make the last line fall into the last fifth of the role's text, which is its test
    part."""
    letters = np.frombuffer(LETTERS.replace("\n", "").replace(" ", "").encode(), dtype=np.uint8)
    lengths = np.tile([LENGTH + 1, LENGTH, LENGTH, LENGTH, 3, LENGTH + 1], roles)
    return {
        "text": rng.choice(letters, lengths.sum()),
        "offset": np.concatenate([[0], np.cumsum(lengths)]),
        "role": np.repeat([f"role {i:02d}" for i in range(roles)], 6),
    }


def tiny_tasks(chosen: Sequence[Cell], data_dir: Path) -> list[Task]:
    def shrink(table: dict[str, Any]) -> None:
        table |= TINY | {"data_dir": str(data_dir)}
        if table["model"] in DEEP:
            table["model"] = f"{Shallow.__module__}:{Shallow.__name__}"

    return [replace(task, repetitions=1) for task in tasks_of(chosen, [0], change=shrink)]
