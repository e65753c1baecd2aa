"""What all tests share: one thread, reproducible property tests, and small data sets made to measure."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings
from rich.console import Console

from fedgela import cli, models
from fedgela.data.arrays import make_dataset
from fedgela.data.dataset import Dataset
from fedgela.progress import PlainView
from helpers import Cli, NormBackbone, tiny_arrays, tiny_npz

torch.set_num_threads(1)  # small tensors: more threads only wait for each other

# the same examples on every machine and in every run, and no failure because a machine is slow
settings.register_profile("fedgela", deadline=None, derandomize=True, max_examples=40, database=None)
settings.load_profile("fedgela")


@pytest.fixture(scope="session", autouse=True)
def _no_wait_for_the_disk() -> Iterator[None]:
    """No test cuts the power, and thousands of small files would wait for the disk. That files are synced,
    and when, test_files.py says."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Call the command line in this process: (exit code, stdout, stderr)."""

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["fedgela", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return call


@pytest.fixture(scope="session")
def npz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny data set as a file."""
    return tiny_npz(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session")
def npz32(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Colour images of 32x32, for the nets that need them."""
    path = tmp_path_factory.mktemp("data32") / "tiny32.npz"
    arrays = tiny_arrays()
    for part in ("x_train", "x_test"):
        large = arrays[part].repeat(4, axis=1).repeat(4, axis=2)
        arrays[part] = np.stack([large, large // 2, 255 - large], axis=3)
    np.savez(path, **arrays)
    return path


@pytest.fixture(scope="session")
def toy_data() -> Callable[..., Dataset]:
    """A data set with so many samples of each class, in random order.

    An image holds its own number (training samples first, then test samples), so that a test can tell
    which sample it has got: see `sample_numbers`.
    """

    def make(train: Sequence[int], test: Sequence[int], seed: int = 0, **ids: np.ndarray) -> Dataset:
        rng = np.random.default_rng(seed)
        y_train, y_test = (rng.permutation(np.repeat(np.arange(len(n)), n)) for n in (train, test))
        number = np.arange(len(y_train) + len(y_test))
        images = np.stack([number // 256, number % 256], axis=1).astype(np.uint8).reshape(-1, 1, 2)
        return make_dataset("toy", images[: len(y_train)], y_train, images[len(y_train) :], y_test, **ids)

    return make


@pytest.fixture(scope="session")
def sample_numbers() -> Callable[[torch.Tensor], list[int]]:
    def numbers(images: torch.Tensor) -> list[int]:
        high, low = images.long().flatten(1).unbind(dim=1)
        return (256 * high + low).tolist()

    return numbers


@pytest.fixture
def view() -> PlainView:
    """Of a command that says nothing."""
    return PlainView(Console(quiet=True))


@pytest.fixture
def norm_net(monkeypatch: pytest.MonkeyPatch) -> None:
    """`model = "norm"`: a net with BatchNorm."""
    monkeypatch.setitem(models.BACKBONES, "norm", NormBackbone)
