"""Where a data set comes from: built in, or a file."""

import os
import zipfile
import zlib
from pathlib import Path

import numpy as np

from fedgela.data.dataset import Dataset, make_dataset
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
