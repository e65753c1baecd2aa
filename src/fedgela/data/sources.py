"""Data sets: uint8 images with labels, train and test, and client ids where the data has them."""

import dataclasses
import hashlib
import os
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedgela.errors import UserError, did_you_mean

BUILT_IN = ("digits",)
# what np.load raises for a file that is damaged or something else, by where the damage lies
UNREADABLE = (
    OSError,
    ValueError,
    EOFError,
    TypeError,
    NotImplementedError,
    RuntimeError,
    zipfile.BadZipFile,
    zlib.error,
)


@dataclass(frozen=True)
class Dataset:
    """Images as uint8 [n, channels, height, width], labels as int64 [n]."""

    name: str
    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    classes: int
    mean: Tensor  # [channels], of the training images scaled to [0, 1]
    std: Tensor
    client_train: np.ndarray | None = None  # natural clients' ids, [n], any integers
    client_test: np.ndarray | None = None
    fingerprint: str = ""  # of the samples: a run goes on only with the data that it began with

    @property
    def image_shape(self) -> tuple[int, int, int]:
        channels, height, width = self.x_train.shape[1:]
        return channels, height, width

    def normalise(self, images: Tensor) -> Tensor:
        """The network's input, float [B, channels, height, width], of uint8 images."""
        scale = (1.0 / (255.0 * self.std)).view(1, -1, 1, 1)
        shift = (self.mean / self.std).view(1, -1, 1, 1)
        return images.float() * scale - shift

    def to(self, device: torch.device) -> "Dataset":
        moved = {
            name: getattr(self, name).to(device)
            for name in ("x_train", "y_train", "x_test", "y_test", "mean", "std")
        }
        return dataclasses.replace(self, **moved)


def load_dataset(name: str, data_dir: str | None = None) -> Dataset:
    """`digits` (built in), the path of an .npz, or a name to be found as NAME.npz in the data directory."""
    if name == "digits":
        return _digits()
    path = Path(name)
    if path.suffix == ".npz":
        if not is_file(path):
            raise UserError(f"dataset: there is no file {name}")
        return _npz(path.stem, path)
    folders = data_directories(data_dir)
    for folder in folders:
        path = folder / f"{name}.npz"
        if is_file(path):
            return _npz(name, path)
    looked = ", ".join(str(folder) for folder in folders)
    raise UserError(
        f"dataset: {name!r} is neither built in ({', '.join(BUILT_IN)}) nor an .npz file"
        f"{did_you_mean(name, BUILT_IN)}; looked for {name}.npz in {looked}\n"
        "such a file holds x_train, x_test (uint8 images [n, height, width] or [n, height, width, "
        "channels]), y_train, y_test (labels from 0), and for natural clients client_train, client_test"
    )


def is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # no such name can be a file's
        return False


def data_directories(data_dir: str | None) -> list[Path]:
    """Where data is looked for: --data-dir, then FEDGELA_DATA, then the user's cache folder."""
    if data_dir is not None:
        return [Path(data_dir)]
    if "FEDGELA_DATA" in os.environ:
        return [Path(os.environ["FEDGELA_DATA"])]
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return [Path(cache).expanduser() / "fedgela"]


def _digits() -> Dataset:
    """scikit-learn's 1,797 real handwritten digits, 8x8; every fifth sample of a class is a test sample."""
    from sklearn.datasets import load_digits  # sklearn takes a second to import

    bunch = load_digits()
    x = np.round(bunch.images * (255 / 16)).astype(np.uint8)  # grey levels 0..16
    y = bunch.target.astype(np.int64)
    place_in_class = np.empty_like(y)
    for c in range(10):
        place_in_class[y == c] = np.arange((y == c).sum())
    test = place_in_class % 5 == 4
    return make_dataset("digits", x[~test], y[~test], x[test], y[test])


def _npz(name: str, path: Path) -> Dataset:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
    except UNREADABLE as error:
        raise UserError(f"{path}: not a readable .npz file ({error})") from None
    missing = [key for key in ("x_train", "y_train", "x_test", "y_test") if key not in arrays]
    if missing:
        raise UserError(f"{path}: lacks {', '.join(missing)}; it holds {', '.join(arrays) or 'nothing'}")
    try:
        return make_dataset(
            name,
            arrays["x_train"],
            arrays["y_train"],
            arrays["x_test"],
            arrays["y_test"],
            client_train=arrays.get("client_train"),
            client_test=arrays.get("client_test"),
        )
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def make_dataset(
    name: str,
    x_train: np.ndarray,
    y_train: np.ndarray,
    x_test: np.ndarray,
    y_test: np.ndarray,
    client_train: np.ndarray | None = None,
    client_test: np.ndarray | None = None,
) -> Dataset:
    """A data set of arrays as in an .npz file, checked."""
    for part, x, y, ids in (
        ("train", x_train, y_train, client_train),
        ("test", x_test, y_test, client_test),
    ):
        if x.dtype != np.uint8 or x.ndim not in (3, 4):
            raise UserError(
                f"x_{part} must be uint8 images [n, height, width] or [n, height, width, channels], "
                f"not {x.dtype} {list(x.shape)}"
            )
        for key, values in ((f"y_{part}", y), (f"client_{part}", ids)):
            if values is None:
                continue
            if values.shape != x.shape[:1] or not np.issubdtype(values.dtype, np.integer):
                raise UserError(
                    f"{key} must be {len(x)} integers, one a sample of x_{part}, "
                    f"not {values.dtype} {list(values.shape)}"
                )
        if x.size == 0:
            raise UserError(f"x_{part} holds no samples, or images without pixels: {list(x.shape)}")
        if y.min() < 0:
            raise UserError(f"y_{part} holds the label {y.min()}; labels start at 0")
    if x_train.shape[1:] != x_test.shape[1:]:
        raise UserError(f"train and test images differ in shape: {x_train.shape[1:]} and {x_test.shape[1:]}")
    if (client_train is None) != (client_test is None):
        raise UserError("client ids must be given for train and test, or for neither")
    classes = int(max(y_train.max(), y_test.max())) + 1
    if classes < 2:
        raise UserError("there must be at least 2 classes")
    if classes > len(y_train) + len(y_test):
        raise UserError(f"the label {classes - 1} is larger than the number of samples")

    images = [torch.from_numpy(np.ascontiguousarray(_channels_first(x))) for x in (x_train, x_test)]
    mean, std = channel_statistics(images[0])
    return Dataset(
        name=name,
        x_train=images[0],
        y_train=torch.from_numpy(y_train.astype(np.int64)),
        x_test=images[1],
        y_test=torch.from_numpy(y_test.astype(np.int64)),
        classes=classes,
        mean=mean,
        std=std,
        client_train=client_train,
        client_test=client_test,
        fingerprint=_fingerprint(x_train, y_train, x_test, y_test),
    )


def _fingerprint(*arrays: np.ndarray) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:16]


def _channels_first(x: np.ndarray) -> np.ndarray:
    return x[:, None] if x.ndim == 3 else x.transpose(0, 3, 1, 2)


def channel_statistics(images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation by channel of uint8 images in [0, 1], from exact integer histograms."""
    levels = torch.arange(256, dtype=torch.float64) / 255
    means, stds = [], []
    for channel in images.unbind(dim=1):
        share = torch.bincount(channel.flatten().int(), minlength=256).double() / channel.numel()
        mean = (share * levels).sum()
        means.append(mean)
        stds.append((share * (levels - mean) ** 2).sum().sqrt())
    mean, std = torch.stack(means).float(), torch.stack(stds).float()
    return mean, torch.where(std > 1e-6, std, 1.0)  # a constant channel becomes zero instead of NaN
