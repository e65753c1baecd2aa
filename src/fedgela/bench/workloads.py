"""What is trained: a model, data, a split among clients."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedgela.config import Experiment, parse_experiment
from fedgela.data.dataset import Dataset
from fedgela.data.sources import is_at_hand, load_dataset
from fedgela.randomness import numpy_generator


@dataclass(frozen=True)
class Workload:
    """A pair is (on a CPU, on a GPU): a CPU is to answer in about a minute."""

    dataset: str
    model: str
    partition: str
    batch_size: int
    lr: float
    epochs: tuple[int, int]
    samples: tuple[int | None, int | None]  # None: all there are
    clients: int = 10


WORKLOADS = {
    "digits": Workload("digits", "tiny-cnn", "classes:2", 20, 0.04, (5, 5), (None, None)),
    "simple-cnn": Workload("cifar10", "simple-cnn", "dirichlet:0.1", 100, 0.01, (1, 10), (5000, None)),
    "resnet18": Workload("cifar10", "resnet18", "dirichlet:0.1", 100, 0.01, (1, 10), (2000, None)),
}
DEFAULT_ON_CPU = ("digits", "simple-cnn")
DEFAULT_ON_GPU = tuple(WORKLOADS)

CIFAR_TRAIN, CIFAR_TEST = 50_000, 10_000


@dataclass(frozen=True)
class Task:
    """A workload ready to run: every contender makes its federation of the same experiment."""

    workload: str
    experiment: Experiment
    data: str  # which data that is, in words


def prepare(
    name: str,
    device: torch.device,
    folder: Path,
    *,
    samples: int | None = None,
    epochs: int | None = None,
    data_dir: str | None = None,
) -> Task:
    """`samples` and `epochs` are the user's wishes. Data that is made or cut is written into `folder`."""
    workload = WORKLOADS[name]
    on_gpu = device.type == "cuda"
    samples = samples or workload.samples[on_gpu]
    dataset, data = _data(workload, folder, samples, data_dir)
    table: dict[str, Any] = {
        "dataset": dataset,
        "model": workload.model,
        "partition": workload.partition,
        "clients": workload.clients,
        "batch_size": workload.batch_size,
        "epochs": epochs or workload.epochs[on_gpu],
        "rounds": 10**6,  # as many as are asked for: the learning rate is constant
        "lr": workload.lr,
        "algorithm": "fedavg",
        "device": str(device),
    }
    if samples is not None:  # a split can be found for few samples too
        table["min_samples"] = min(workload.batch_size, samples // (2 * workload.clients))
    if data_dir is not None:
        table["data_dir"] = data_dir
    return Task(name, parse_experiment(table, f"workload {name}"), data)


def _data(workload: Workload, folder: Path, samples: int | None, data_dir: str | None) -> tuple[str, str]:
    """The data set's name or file, and what it is in words."""
    name = workload.dataset
    if not is_at_hand(name, data_dir, None):  # a benchmark does not begin with a download
        train = min(samples or CIFAR_TRAIN, CIFAR_TRAIN)
        path = folder / f"random_{train}.npz"
        if not path.exists():
            _write_random(path, train, max(1, train * CIFAR_TEST // CIFAR_TRAIN))
        return str(path), f"{train:,} random images of cifar10's size"
    if samples is None:
        return name, f"{name}, all of it"
    data = load_dataset(name, data_dir)
    there = len(data.y_train)
    if samples >= there:
        return name, f"{name}, all of it"
    path = folder / f"{name}_{samples}.npz"
    if not path.exists():
        _write_some(path, data, samples, max(1, round(samples * len(data.y_test) / there)))
    return str(path), f"{name}, {samples:,} of its {there:,} training samples"


def _write_random(path: Path, train: int, test: int) -> None:
    rng = numpy_generator(0, "bench", train)
    arrays: dict[str, Any] = {}
    for part, n in (("train", train), ("test", test)):
        arrays[f"x_{part}"] = rng.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8)
        arrays[f"y_{part}"] = rng.permutation(np.arange(n) % 10)
    arrays["y_test"][0] = 9  # there are ten classes, however few the samples
    np.savez(path, **arrays)


def _write_some(path: Path, data: Dataset, train: int, test: int) -> None:
    rng = numpy_generator(0, "bench", train)
    arrays: dict[str, Any] = {}
    for part, n in (("train", train), ("test", test)):
        x, y = getattr(data, f"x_{part}"), getattr(data, f"y_{part}")
        chosen = np.sort(rng.permutation(len(y))[:n])
        arrays[f"x_{part}"] = np.ascontiguousarray(x.permute(0, 2, 3, 1).numpy()[chosen])
        arrays[f"y_{part}"] = y.numpy()[chosen]
    np.savez(path, **arrays)
