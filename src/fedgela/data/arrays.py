"""A data set from arrays, which are checked first: those of an .npz file, a table, decoded images."""

import unicodedata
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgela.data.dataset import Dataset
from fedgela.data.groups import numbered
from fedgela.errors import UserError, printable
from fedgela.inputs import Kind

REAL = "biuf"  # kinds of NumPy types that features may have; booleans become 0 and 1


def make_dataset(
    name: str,
    x_train: np.ndarray,
    y_train: np.ndarray,
    x_test: np.ndarray,
    y_test: np.ndarray,
    client_train: np.ndarray | None = None,
    client_test: np.ndarray | None = None,
    *,
    group_train: np.ndarray | None = None,
    group_test: np.ndarray | None = None,
    vocabulary: int = 0,
    class_names: tuple[str, ...] = (),
    numbers_written: bool = False,
    client_names: tuple[str, ...] = (),
    feature_names: tuple[str, ...] = (),
    notes: tuple[str, ...] = (),
) -> Dataset:
    """A data set from arrays like those of an .npz file, after checking them: uint8 images [n, height, width]
    or [n, height, width, channels], real features [n, d], or, with a vocabulary, tokens [n, length]."""
    kind: Kind = "tokens" if vocabulary else "features" if x_train.ndim == 2 else "image"
    for part, x, y, ids in (
        ("train", x_train, y_train, client_train),
        ("test", x_test, y_test, client_test),
    ):
        _check_samples(part, x, kind, vocabulary)
        _check_integers(f"y_{part}", y, x, part)
        if ids is not None:
            _check_integers(f"client_{part}", ids, x, part)
        if y.min() < 0:
            raise UserError(f"y_{part} holds the label {y.min()}; labels start at 0")
    if x_train.shape[1:] != x_test.shape[1:]:
        raise UserError(f"train and test samples differ in shape: {x_train.shape[1:]} and {x_test.shape[1:]}")
    if (client_train is None) != (client_test is None):
        raise UserError("client ids must be given for train and test, or for neither")
    group_train, group_test = numbered(group_train, group_test, len(x_train), len(x_test))
    if client_names and client_train is not None and client_test is not None:
        ids = np.concatenate([client_train, client_test])
        if ids.min() < 0 or ids.max() >= len(client_names):
            raise UserError(f"client ids must be places among the {len(client_names)} client_names")
    classes = _number_of_classes(y_train, y_test, class_names)
    for key, names in (("class_names", class_names), ("client_names", client_names)):
        if len(set(names)) < len(names):
            raise UserError(f"two of the {key} are the same")
    return Dataset(
        name=name,
        kind=kind,
        x_train=_tensor("x_train", x_train, kind),
        y_train=torch.from_numpy(y_train.astype(np.int64)),
        x_test=_tensor("x_test", x_test, kind),
        y_test=torch.from_numpy(y_test.astype(np.int64)),
        classes=classes,
        vocabulary=vocabulary,
        class_names=class_names,
        numbers_written=numbers_written,
        client_train=client_train,
        client_test=client_test,
        group_train=group_train,
        group_test=group_test,
        client_names=client_names,
        feature_names=feature_names,
        notes=(*notes, *similar_names("classes", class_names), *similar_names("clients", client_names)),
    )


def split_dataset(
    name: str,
    x: np.ndarray,
    y: np.ndarray,
    test: np.ndarray,
    client: np.ndarray | None,
    group: np.ndarray | None = None,
    **other: Any,
) -> Dataset:
    """A data set from samples and a mask [n] of those for testing. `other` goes on to make_dataset."""
    for key, values in (("client", client), ("group", group)):
        if values is not None:
            other |= {f"{key}_train": values[~test], f"{key}_test": values[test]}
    return make_dataset(name, x[~test], y[~test], x[test], y[test], **other)


def _check_samples(part: str, x: np.ndarray, kind: Kind, vocabulary: int) -> None:
    if kind == "tokens":
        right = x.ndim == 2 and np.issubdtype(x.dtype, np.integer)
        wanted = "integer tokens [n, length]"
    elif kind == "features":
        right = x.ndim == 2 and x.dtype.kind in REAL
        wanted = "real numbers [n, features]"
    else:
        right = x.dtype == np.uint8 and x.ndim in (3, 4)
        wanted = "uint8 images [n, height, width] or [n, height, width, channels]"
    if not right:
        hint = ", or real numbers [n, features]" if kind == "image" else ""
        raise UserError(f"x_{part} must be {wanted}{hint}, not {x.dtype} {list(x.shape)}")
    if kind == "image" and x.ndim == 4 and x.shape[3] > 4 >= x.shape[1]:
        raise UserError(
            f"x_{part} looks like images with their channels first, {list(x.shape)}; they are wanted as "
            "[n, height, width, channels]: x.transpose(0, 2, 3, 1)"
        )
    if x.size == 0:
        raise UserError(f"x_{part} holds no samples, or samples without content: {list(x.shape)}")
    if kind == "tokens" and not (x.min() >= 0 and x.max() < vocabulary):
        raise UserError(f"x_{part} holds tokens outside of the vocabulary of {vocabulary}")


def _check_integers(key: str, values: np.ndarray, x: np.ndarray, part: str) -> None:
    if values.shape != x.shape[:1] or not np.issubdtype(values.dtype, np.integer):
        raise UserError(
            f"{key} must be {len(x)} integers, one a sample of x_{part}, "
            f"not {values.dtype} {list(values.shape)}"
        )


def _number_of_classes(y_train: np.ndarray, y_test: np.ndarray, class_names: Sequence[str]) -> int:
    """The number of class names, or without names the largest label plus one."""
    largest = int(max(y_train.max(), y_test.max()))
    if class_names and largest >= len(class_names):
        raise UserError(f"the label {largest} has no name among the {len(class_names)} class_names")
    classes = len(class_names) or largest + 1
    if classes < 2:
        raise UserError("there must be at least 2 classes")
    if classes > len(y_train) + len(y_test) + len(class_names):
        raise UserError(f"the label {largest} is larger than the number of samples")
    return classes


def as_float32(name: str, values: np.ndarray) -> np.ndarray:
    """Real numbers as float32; a UserError where one is not finite, or too large for float32."""
    with np.errstate(over="ignore"):
        numbers = values.astype(np.float32)
    wrong = np.argwhere(~np.isfinite(numbers))
    if len(wrong):
        place = "row " + ", column ".join(map(str, wrong[0].tolist()))
        more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise UserError(f"{name} holds values that are no finite numbers in float32: {place}{more}")
    return numbers


def _tensor(name: str, x: np.ndarray, kind: Kind) -> Tensor:
    """As a data set holds them. Images keep their channels last in memory: [n, c, h, w] is a view of them."""
    if kind == "features":
        return torch.from_numpy(as_float32(name, x))
    if kind == "image":
        x = x[..., None] if x.ndim == 3 else x
        return torch.from_numpy(x).permute(0, 3, 1, 2)
    return torch.from_numpy(x)


def similar_names(what: str, names: Sequence[str]) -> tuple[str, ...]:
    """A note if two names differ only in case, blanks or the way a number is written; perhaps two sites spell
    one class differently. Names of a single character are left out: letters may well be classes."""
    first: dict[str | float, str] = {}
    pairs = []
    for name in names:
        key = _read_loosely(name)
        if len(str(key)) > 1 and first.setdefault(key, name) != name:
            pairs.append((printable(first[key]), printable(name)))
    if not pairs:
        return ()
    one, other = pairs[0]
    more = f" (and {len(pairs) - 1} more)" if len(pairs) > 1 else ""
    return (
        f"{one!r} and {other!r} are two {what}, though they are called nearly the same{more}: give them one "
        "name if they are one",
    )


def _read_loosely(name: str) -> str | float:
    words = " ".join(unicodedata.normalize("NFKC", name).casefold().replace("_", " ").split())
    try:
        return float(words)
    except ValueError:
        return words
