"""Samples to be predicted: image files and folders of them, arrays and tables; labels where there are any."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgela.data.arrays import REAL, as_float32
from fedgela.data.cells import Cells, check_cells
from fedgela.data.columns import ID
from fedgela.data.folder import is_image, walk
from fedgela.data.images import SUFFIXES, decode
from fedgela.data.label_numbers import are_names, places_of
from fedgela.data.npz import names_of, read_arrays
from fedgela.data.table import (
    encoded_images,
    feature_names,
    features,
    read_table,
    row_name,
    split_of,
)
from fedgela.data.text import TEXT, next_characters
from fedgela.data.unreadable import Unreadable, without_unreadable
from fedgela.errors import UserError, prefixed
from fedgela.inputs import InputSpec, columns_of

SHOWN = 5  # classes in a note


@dataclass(frozen=True)
class Samples:
    names: list[str]
    x: Tensor  # as a Model takes them
    labels: list[str] | None  # true classes, by name


def read_samples(
    path: Path,
    spec: InputSpec,
    classes: Sequence[str],
    columns: Sequence[str] = (),
    unreadable: Unreadable = "error",
) -> Samples:
    """`path` is an image, a folder of images at any depth, an .npz, a .parquet or a .csv file. `columns` are
    the names of a table's features, in the order that the model takes them; empty: as they come."""
    if not path.exists():
        raise UserError(f"{path}: there is no such file or folder")
    if path.suffix.lower() == ".npz":
        with prefixed(path):
            return _of_arrays(read_arrays(path), spec, classes)
    if path.suffix.lower() in (".parquet", ".csv"):
        table = read_table(path)
        with prefixed(path):
            return _of_table(table, spec, classes, columns, unreadable)
    with prefixed(path):
        if path.is_file() and path.suffix.lower() not in SUFFIXES:
            raise UserError(f"is no image ({', '.join(SUFFIXES)}), no .npz, .parquet or .csv file")
        return _of_images(path, spec, classes, unreadable)


# -- images --------------------------------------------------------------------------------------------


def _of_images(path: Path, spec: InputSpec, classes: Sequence[str], unreadable: Unreadable) -> Samples:
    size, channels = _square(spec)
    files = _image_files(path) if path.is_dir() else [path]
    if not files:
        raise UserError(f"holds no images ({', '.join(SUFFIXES)})")
    root = path if path.is_dir() else path.parent
    names = [str(file.relative_to(root)) for file in files]
    decoded = decode(files, size, channels)
    decoded.check_depth()
    x, read = without_unreadable(decoded, lambda i: names[i], unreadable)
    kept = [i for i, ok in enumerate(read) if ok]
    # a folder that is called like a class says what its images are; if all are, they are labels
    folders = [files[i].absolute().parent.name for i in kept]
    strange = sorted(set(folders) - set(classes))
    labels = None if strange else folders
    if strange and set(folders) & set(classes):
        _without_labels(f"the folder {strange[0]!r} is none of the model's classes")
    return Samples([names[i] for i in kept], _image_tensor(x, spec), labels)


def _image_files(folder: Path) -> list[Path]:
    return sorted(
        folder.joinpath(*parts, name) for parts, names in walk(folder) for name in names if is_image(name)
    )


def _square(spec: InputSpec) -> tuple[int, int]:
    """The size and the channels that files are decoded to."""
    if spec.kind != "image":
        raise UserError(
            f"the model takes {spec}, no image files: an .npz, a .parquet or a .csv file holds them"
        )
    channels, height, width = spec.shape
    if height != width or channels not in (1, 3):
        raise UserError(
            f"the model takes {spec}; image files are made squares, grey or RGB: give an .npz file"
        )
    return height, channels


def _image_tensor(x: np.ndarray, spec: InputSpec) -> Tensor:
    """uint8 [n, height, width(, channels)] as [n, channels, height, width]."""
    if x.dtype != np.uint8 or x.ndim not in (3, 4):
        raise UserError(
            f"x must be uint8 images [n, height, width(, channels)], not {x.dtype} {list(x.shape)}"
        )
    images = torch.from_numpy(x[..., None] if x.ndim == 3 else x).permute(0, 3, 1, 2)
    return _fitting(images.contiguous(), spec)


def _fitting(x: Tensor, spec: InputSpec) -> Tensor:
    if len(x) == 0:
        raise UserError("holds no samples")
    if tuple(x.shape[1:]) != spec.shape:
        raise UserError(f"holds samples of shape {'x'.join(map(str, x.shape[1:]))}; the model takes {spec}")
    return x


# -- arrays and tables ---------------------------------------------------------------------------------


def _of_arrays(arrays: dict[str, np.ndarray], spec: InputSpec, classes: Sequence[str]) -> Samples:
    """x, and y if it is there; of a data set's file, its test samples; of texts, their last windows."""
    if arrays.keys() >= TEXT:
        texts = next_characters("", *(arrays[key] for key in ("text", "offset", "role")))
        arrays = {"x_test": texts.x_test.numpy(), "y_test": texts.y_test.numpy()}
    key = next((key for key in ("x", "x_test") if key in arrays), None)
    if key is None:
        raise UserError(f"has neither x nor x_test; it holds {', '.join(arrays) or 'nothing'}")
    y = arrays.get(key.replace("x", "y", 1))
    x = _tensor(arrays[key], spec)
    # a token is a place, whatever digits are called
    names = names_of(arrays, "class_names") or (tuple(classes) if spec.kind == "tokens" else ())
    labels = None if y is None else _labels(y, len(x), names, classes, False)
    ids = arrays.get(key.replace("x", ID, 1))
    if ids is not None and ids.shape != (len(x),):
        raise UserError(f"there must be one {ID} a sample, {len(x)}, not {list(ids.shape)}")
    return Samples([str(i) for i in (range(len(x)) if ids is None else ids.tolist())], x, labels)


def _of_table(
    table: Any, spec: InputSpec, classes: Sequence[str], columns: Sequence[str], unreadable: Unreadable
) -> Samples:
    """A column image, or columns of numbers, and a column label if it is there; of a data set with a column
    split its test samples."""
    rows = np.arange(table.num_rows)
    if "split" in table.column_names and (test := split_of(table)).any():
        rows = rows[test]
        table = table.take(rows)
    if not columns:
        columns = feature_names(table)
        if spec.columns and "image" not in table.column_names and columns_of(columns) != spec.columns:
            raise UserError(
                "its columns are not those that the sites trained on, in their order; the sites know them by "
                "name: there 'fedgela predict SITE_FOLDER' finds them"
            )
    if spec.kind == "image" and "image" not in table.column_names:
        raise UserError(f"has no column image, and the model takes {spec}")
    has_ids, has_images = ID in table.column_names, "image" in table.column_names
    numbers = [] if has_images else [column for column in columns if column in table.column_names]
    used = dict.fromkeys([*numbers, *(["image"] if has_images else []), *([ID] if has_ids else [])])
    check_cells(table, list(used), numbers, rows=rows.tolist())
    if has_images:
        decoded = decode(encoded_images(table["image"]), *_square(spec))
        decoded.check_depth()
        x, read = without_unreadable(decoded, lambda i: row_name(int(rows[i])), unreadable)
    else:
        x, read = features(table, columns), np.ones(len(rows), dtype=bool)
    labels = None
    if "label" in table.column_names:
        if lacking := Cells(table["label"], ("",)).lacking:
            _without_labels(f"column label lacks a value in row {rows[lacking[0]]}")
        else:
            labels = _labels(table["label"].to_numpy()[read], read.sum(), (), classes, True)
    names = table[ID].to_numpy() if has_ids else rows
    return Samples([str(name) for name in names[read].tolist()], _tensor(x, spec), labels)


def _tensor(x: np.ndarray, spec: InputSpec) -> Tensor:
    if spec.kind == "image":
        return _image_tensor(x, spec)
    if x.ndim != 2 or x.dtype.kind not in REAL:
        raise UserError(f"x must be numbers [n, {spec.shape[0]}], not {x.dtype} {list(x.shape)}")
    if spec.kind == "features":
        return _fitting(torch.from_numpy(as_float32("x", x)), spec)
    if x.dtype.kind not in "iu" or (x.size and not (x.min() >= 0 and x.max() < spec.vocabulary)):
        raise UserError(f"x must be tokens, integers from 0 to {spec.vocabulary - 1}")
    return _fitting(torch.from_numpy(x.astype(np.int64)), spec)


def _without_labels(why: str) -> None:
    warnings.warn(f"{why}: how many answers are right is not told", stacklevel=2)


def _tell_places(places: Sequence[int], classes: Sequence[str]) -> None:
    """Another file may well number the same classes in another order."""
    meant = ", ".join(f"{place} for {classes[place]}" for place in places[:SHOWN])
    more = ", ..." if len(places) > SHOWN else ""
    warnings.warn(
        f"labels that are numbers are taken for the model's classes by place: {meant}{more}", stacklevel=2
    )


def _labels(
    y: np.ndarray, n: int, names: Sequence[str], classes: Sequence[str], written: bool
) -> list[str] | None:
    """By name, of n samples; None, with a warning, where some are none of the model's `classes`. `names` are
    the file's own names of classes; `written` are labels of a table, whose numbers may be names."""
    if y.shape != (n,):
        raise UserError(f"there must be one label a sample, {n}, not {list(y.shape)}")
    if y.dtype.kind in "iub":
        labels = _named(y.astype(np.int64), names, classes, written)
        if labels is None:
            return None
    else:
        labels = [str(label).strip() for label in y.tolist()]
    strange = sorted(set(labels) - set(classes))
    if strange:
        _without_labels(f"the label {strange[0]!r} is none of the model's classes")
        return None
    return labels


def _named(
    places: np.ndarray, names: Sequence[str], classes: Sequence[str], written: bool
) -> list[str] | None:
    """Labels that are numbers, by name: they are places among the file's own names, or else what they mean
    among the model's classes. None, with a warning, where they mean nothing there."""
    known = names or classes
    if not names and are_names(classes):
        try:
            meant = places_of(set(places.tolist()), classes, written)
        except UserError as error:
            _without_labels(str(error))
            return None
        places = np.array([meant[place] for place in places.tolist()], dtype=np.int64)
    outside = places[(places < 0) | (places >= len(known))]
    if len(outside):
        if names:
            raise UserError(f"labels must be from 0 to {len(known) - 1}, the file's class_names")
        _without_labels(
            f"the label {outside[0]} is none of the places of the model's classes, 0 to {len(known) - 1}"
        )
        return None
    if not names and not any(name.isdecimal() for name in classes):
        _tell_places(sorted(set(places.tolist())), classes)
    return [known[place] for place in places]
