"""Workloads: on real data where it is at hand, else on random images of its size, and told so."""

from pathlib import Path

import numpy as np
import pytest
import torch

from fedgela.bench.workloads import WORKLOADS, prepare
from fedgela.data import load_dataset
from fedgela.resolve import resolve

CPU = torch.device("cpu")


def test_digits_are_the_demo_s(tmp_path: Path) -> None:
    task = prepare("digits", CPU, tmp_path)
    e = task.experiment
    assert (e.dataset, e.model, e.partition, e.clients) == ("digits", "tiny-cnn", "classes:2", 10)
    assert (e.batch_size, e.epochs) == (20, 5)
    assert e.algorithm.name == "fedavg"
    assert task.data == "digits, all of it"


def test_fewer_samples_are_a_part_of_the_real_ones(tmp_path: Path) -> None:
    task = prepare("digits", CPU, tmp_path, samples=200, epochs=2)
    data = resolve(task.experiment)[1].data
    assert len(data.y_train) == 200
    assert task.experiment.epochs == 2
    assert "200 of its" in task.data
    real = {image.numpy().tobytes() for image in load_dataset("digits").x_train.contiguous()}
    assert all(image.numpy().tobytes() in real for image in data.x_train.contiguous())


def test_without_cifar10_there_are_random_images_of_its_size(tmp_path: Path) -> None:
    task = prepare("simple-cnn", CPU, tmp_path, samples=1500, data_dir=str(tmp_path / "nothing"))
    federation = resolve(task.experiment)[1]
    assert federation.data.spec.shape == (3, 32, 32)
    assert federation.data.classes == 10
    assert len(federation.data.y_train) == 1500
    assert min(federation.train.sizes) >= 75
    assert task.data == "1,500 random images of cifar10's size"


def test_cifar10_is_taken_where_it_lies(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {}
    for part, n in (("train", 1200), ("test", 100)):
        arrays[f"x_{part}"] = rng.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8)
        arrays[f"y_{part}"] = np.arange(n) % 10
    np.savez(tmp_path / "cifar10.npz", **arrays)
    task = prepare("simple-cnn", CPU, tmp_path, data_dir=str(tmp_path))
    assert task.experiment.dataset == "cifar10"
    assert task.data == "cifar10, all of it"


@pytest.mark.parametrize("samples", [200, 1000])
def test_few_samples_are_split_too(samples: int, tmp_path: Path) -> None:
    task = prepare("simple-cnn", CPU, tmp_path, samples=samples, data_dir=str(tmp_path / "nothing"))
    assert resolve(task.experiment)[1].train.sizes.sum() == samples


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_workload_is_prepared_for_a_gpu_too(name: str, tmp_path: Path) -> None:
    experiment = prepare(name, torch.device("cuda"), tmp_path, samples=1100).experiment
    assert experiment.device == "cuda"
    assert experiment.epochs == WORKLOADS[name].epochs[1]
