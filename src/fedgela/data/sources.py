"""Loading a data set: built in, by name (the data directory, then the hub), or the user's folder or file."""

import contextlib
import dataclasses
import os
from pathlib import Path

import numpy as np

from fedgela.data.arrays import split_dataset
from fedgela.data.catalogue import BUILT_IN, NAMES, Source, known
from fedgela.data.dataset import Dataset
from fedgela.data.folder import load_folder, root_of
from fedgela.data.hub import HubError, fetch
from fedgela.data.npz import keep_npz, load_npz
from fedgela.data.split import every_fifth
from fedgela.data.table import load_table
from fedgela.data.unreadable import Unreadable
from fedgela.errors import UserError, did_you_mean

FILES = (".npz", ".parquet", ".csv")


def load_dataset(
    name: str,
    data_dir: str | None = None,
    *,
    image_size: int | None = None,
    unreadable: Unreadable = "error",
    augment: bool | None = None,
) -> Dataset:
    """A data set by its name, or the user's own by the path of a folder, an .npz, a .parquet or a .csv file.

    `image_size`: the side of the squares that images are resized to as they are decoded (from folders,
    .parquet files and the hub). `unreadable`: what happens to images that cannot be read. `augment`: whether
    training images are augmented; None leaves that to the data set.
    """
    path = as_path(name, data_dir)
    if path is None:
        data = _digits() if name in BUILT_IN else _by_name(name, data_dir, image_size)
    elif path.is_dir():
        data = load_folder(path, image_size, unreadable)
    elif path.suffix.lower() == ".npz":
        data = load_npz(path.stem, path)
    else:
        data = load_table(path, image_size, unreadable)
    if image_size is not None and data.spec.shape[1:] != (image_size, image_size):
        raise UserError(
            "image_size: only images that are decoded (of a folder, a .parquet file or the hub) are resized; "
            f"{name!r} has {data.spec}"
        )
    if augment is None:
        return data
    if augment and data.kind != "image":
        raise UserError(f"augment: only images are augmented, and {name!r} has {data.spec}")
    return dataclasses.replace(data, augment=augment)


def as_path(name: str, data_dir: str | None) -> Path | None:
    """The user's own folder or file that `name` means; None where it is a data set's name.

    What looks like a path is one; a bare word is a folder only where no data set has that name.
    """
    path = _expanded(name)
    if path.suffix.lower() in FILES or len(path.parts) > 1 or name.startswith((".", "~")):
        if not (_is_file(path) or _is_folder(path)):
            what = "file" if path.suffix.lower() in FILES else "folder or file"
            where = "" if path.is_absolute() else f" in {Path.cwd()}, where the command runs"
            raise UserError(f"dataset: there is no {what} {name}{where}")
        if _is_file(path) and path.suffix.lower() not in FILES:
            raise UserError(f"dataset: {name} is neither a folder nor an .npz, .parquet or .csv file")
        return path
    if name in BUILT_IN or known(name) or _in_data_directory(name, data_dir) or not _is_folder(path):
        return None
    return path


def _expanded(name: str) -> Path:
    try:
        return Path(name).expanduser()
    except RuntimeError:  # '~somebody', where there is no such user
        return Path(name)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # not a possible name for a file
        return False


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


# -- by name -------------------------------------------------------------------------------------------


def data_directory(data_dir: str | None) -> Path:
    """Where data is looked for: --data-dir, or else FEDGELA_DATA, or else the user's cache folder."""
    if data_dir is not None:
        return _expanded(data_dir)
    if told := os.environ.get("FEDGELA_DATA"):
        return _expanded(told)
    return _expanded(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "fedgela"


def is_at_hand(name: str, data_dir: str | None, image_size: int | None) -> bool:
    """Whether the data set can be loaded without fetching anything."""
    source = known(name)
    if name in BUILT_IN or source is None or as_path(name, data_dir) is not None:
        return True
    return _in_data_directory(_stem(name, source, image_size), data_dir) is not None


def place_of(name: str, data_dir: str | None, image_size: int | None) -> Path | None:
    """The folder or file that a data set is read from; None where it is built in, or not on this machine."""
    with contextlib.suppress(UserError):  # a path that leads nowhere
        path = as_path(name, data_dir)
        if path is not None:
            return root_of(path) if path.is_dir() else path
    if name in BUILT_IN:
        return None
    return _in_data_directory(_stem(name, known(name), image_size), data_dir)


def _stem(name: str, source: Source | None, image_size: int | None) -> str:
    """The name of a data set's file, without .npz; images of another size are in another file."""
    other = source is not None and source.kind == "image" and image_size not in (None, source.size)
    return f"{name}_{image_size}" if other else name


def _in_data_directory(name: str, data_dir: str | None) -> Path | None:
    for spelling in dict.fromkeys((name, name.replace("-", "_"), name.replace("_", "-"))):
        path = data_directory(data_dir) / f"{spelling}.npz"
        if _is_file(path):
            return path
    return None


def _by_name(name: str, data_dir: str | None, image_size: int | None) -> Dataset:
    source = known(name)
    stem = _stem(name, source, image_size)
    path = _in_data_directory(stem, data_dir)
    if path is None:
        if source is None:
            raise _unknown(name, data_dir)
        path = data_directory(data_dir) / f"{stem.replace('-', '_')}.npz"
        _fetch(source, image_size or source.size, path)
    data = load_npz(name, path)
    if source is None:
        return data
    for part, y in (("y_train", data.y_train), ("y_test", data.y_test)):
        if int(y.max()) >= source.classes:
            raise UserError(
                f"{path}: {part}[{int(y.argmax())}] is {int(y.max())}, but {name} has the classes 0 to "
                f"{source.classes - 1}"
            )
    return dataclasses.replace(data, augment=source.augment)


def _fetch(source: Source, size: int, path: Path) -> None:
    try:
        arrays = fetch(source, size)
    except HubError as error:
        raise UserError(
            f"dataset: {path.name} is not in {path.parent}, and could not be fetched from the Hugging Face "
            f"hub ({source.hub}): {error}\nto do without, put a file {path.name} there with {source.form}"
        ) from None
    try:
        keep_npz(path, arrays)
    except OSError as error:
        raise UserError(f"dataset: {path} cannot be written ({error})") from None


def _unknown(name: str, data_dir: str | None) -> UserError:
    if _is_file(Path(name)):
        return UserError(f"dataset: {name} is neither a folder nor an .npz, .parquet or .csv file")
    return UserError(
        f"dataset: {name!r} is no data set's name ({', '.join(NAMES)}), no folder and no file"
        f"{did_you_mean(name, NAMES)}; looked for {name}.npz in {data_directory(data_dir)}\n"
        "such a file holds x_train, x_test (uint8 images [n, height, width] or [n, height, width, "
        "channels]), y_train, y_test (labels from 0), and for natural clients client_train, client_test"
    )


def _digits() -> Dataset:
    """scikit-learn's 1,797 real handwritten digits, 8x8; every fifth sample of a class is a test sample."""
    from sklearn.datasets import load_digits  # sklearn takes a second to import

    bunch = load_digits()
    x = np.round(bunch.images * (255 / 16)).astype(np.uint8)  # grey levels 0..16
    y = bunch.target.astype(np.int64)
    return split_dataset("digits", x, y, every_fifth(y), None)
