"""A data set: samples as tensors, with labels, train and test, and client ids where the data has them."""

import dataclasses
import hashlib
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgela.data.augment import crop_flip_rotate
from fedgela.data.groups import in_all_and_in_both, numbered
from fedgela.errors import UserError
from fedgela.inputs import InputSpec, Kind, columns_of

REAL = "biuf"  # kinds of NumPy types that features may have; booleans become 0 and 1
# stands for the standard deviation of constant features, so that dividing by it gives zero; finite, since
# statistics are saved and sent
CONSTANT = 1e30
_TENSORS = ("x_train", "y_train", "x_test", "y_test")


@dataclass(frozen=True, repr=False)
class Dataset:
    """Images are uint8 [n, channels, height, width], features float32 [n, d], tokens uint8 or int64
    [n, length]; labels are int64 [n]. Properties that need a pass over the data are computed once."""

    name: str
    kind: Kind
    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    classes: int
    vocabulary: int = 0  # of tokens
    class_names: tuple[str, ...] = ()  # empty: the classes are numbers
    numbers_written: bool = False  # whether labels are numbers read from a table, and so names (numbers.py)
    client_train: np.ndarray | None = None  # natural clients' ids, [n], any integers
    client_test: np.ndarray | None = None
    group_train: np.ndarray | None = None  # which samples belong together (a patient's): numbers from 0, [n]
    group_test: np.ndarray | None = None
    augment: bool = False  # training samples, see augment.py
    client_names: tuple[str, ...] = ()  # of the natural clients 0, 1, ...; empty: their ids say it all
    feature_names: tuple[str, ...] = ()  # of a table's columns
    notes: tuple[str, ...] = ()  # told to whoever trains on it: what looks like a mistake in the file

    def __repr__(self) -> str:
        sizes = f"{len(self.y_train):,} training and {len(self.y_test):,} test samples"
        return f"<Dataset {self.name}: {sizes}, {self.spec}, {self.classes} classes>"

    @property
    def spec(self) -> InputSpec:
        shape = tuple(self.x_train.shape[1:])
        return InputSpec(self.kind, shape, self.vocabulary, columns_of(self.feature_names))

    @property
    def printable_classes(self) -> list[str]:
        """What the classes are called: their names, or else their numbers."""
        return [printable(name) for name in self.class_names] or [str(c) for c in range(self.classes)]

    @cached_property
    def statistics(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of the training samples, by channel of images scaled to [0, 1] or by
        feature. What is constant becomes zero instead of NaN."""
        return mean_and_deviation(*self.sums())

    @cached_property
    def groups(self) -> tuple[int, int]:
        """How many groups there are, and how many of them are both in train and test."""
        return in_all_and_in_both(self.group_train, self.group_test)

    @cached_property
    def constant(self) -> list[str]:
        """Features that are the same in all training samples, by name or by number."""
        if self.kind != "features":
            return []
        places: list[int] = (self.statistics[1] >= CONSTANT / 2).nonzero().flatten().tolist()
        return [self.feature_names[i] if self.feature_names else str(i) for i in places]

    def sums(self) -> tuple[Tensor, Tensor, int]:
        """By channel or feature: the sum of the values, the sum of their squares, and how many there are."""
        x = self.x_train
        axes = (0, 2, 3) if self.kind == "image" else (0,)
        count = x.numel() // x.shape[1]
        total, squares = (torch.zeros(x.shape[1], dtype=torch.float64, device=x.device) for _ in range(2))
        for part in torch.split(x, 1000):
            values = part.double() / 255 if self.kind == "image" else part.double()
            total += values.sum(dim=axes)
            squares += values.square().sum(dim=axes)
        return total, squares, count

    @cached_property
    def fingerprint(self) -> str:
        """A digest of all samples, labels and client ids: a run is resumed only on the data it began with."""
        digest = hashlib.sha256()
        for name in _TENSORS:
            tensor: Tensor = getattr(self, name).cpu()
            if tensor.dim() == 4:
                tensor = tensor.permute(0, 2, 3, 1)  # the order in memory, so that nothing is copied
            digest.update(tensor.contiguous().numpy().data)
        for ids in (self.client_train, self.client_test):
            if ids is not None:
                digest.update(np.ascontiguousarray(ids).data)
        return digest.hexdigest()[:16]

    def inputs(self, x: Tensor) -> Tensor:
        """The network's input of samples: images and features normalised, tokens as int64."""
        if self.kind == "tokens":
            return x.long()
        if self.kind == "image":
            scale, shift = self.normalisation
            return torch.addcmul(shift, x, scale)
        centre, scale = self.centre_and_scale
        # not x * scale + shift, which loses digits of large numbers that are close together, such as years
        return (x - centre) * scale

    @cached_property
    def centre_and_scale(self) -> tuple[Tensor, Tensor]:
        """An input is (x - centre) * scale."""
        mean, std = self.statistics
        if self.kind == "features":
            return mean, 1.0 / std
        return (255.0 * mean).view(-1, 1, 1), (1.0 / (255.0 * std)).view(-1, 1, 1)

    @cached_property
    def normalisation(self) -> tuple[Tensor, Tensor]:
        """(scale, shift) of images, whose bytes lose nothing by x * scale + shift, a single operation."""
        mean, std = self.statistics
        return (1.0 / (255.0 * std)).view(-1, 1, 1), (-mean / std).view(-1, 1, 1)

    def training_inputs(self, x: Tensor, draw: Tensor) -> Tensor:
        """The network's input in training: augmented first, if the data set is, by the step's draws."""
        return self.inputs(crop_flip_rotate(x, draw) if self.augment else x)

    def to(self, device: torch.device, contiguous: bool = False) -> "Dataset":
        """The data set on a device. Images keep their channels last in memory, unless `contiguous`."""
        try:
            there = {name: getattr(self, name).to(device) for name in _TENSORS}
            if contiguous:
                there["x_train"] = there["x_train"].contiguous()
        except torch.OutOfMemoryError:
            megabytes = sum(getattr(self, name).nbytes for name in _TENSORS) / 1e6
            raise UserError(
                f"{device}: out of memory for the data set's {megabytes:.0f} MB; nvidia-smi shows what else "
                "uses the GPU, and device = 'cpu' does without"
            ) from None
        moved = dataclasses.replace(self, **there)
        if "statistics" in self.__dict__:  # already computed: the copy has them too
            return moved.with_statistics(*(value.to(device) for value in self.statistics))
        return moved

    def with_statistics(self, mean: Tensor, deviation: Tensor) -> "Dataset":
        """The data set with these statistics for its own: in a federation, those of all sites' data."""
        same = dataclasses.replace(self)
        same.__dict__["statistics"] = (mean, deviation)
        return same


def mean_and_deviation(total: Tensor, squares: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """From sums as `Dataset.sums` gives them, perhaps added up over clients.

    The deviation of a feature that is constant, as far as float32 can tell, is CONSTANT: the feature is zero
    then, also where it has another value in later data. Its weights are never trained, and would answer at
    random.
    """
    mean = total / count
    std = (squares / count - mean.square()).clamp(min=0).sqrt()
    varies = std > (1e-6 * mean.abs()).clamp(min=1 / CONSTANT)  # of its own size, whatever its unit
    return mean.float(), torch.where(varies, std, CONSTANT).float()


def printable(name: str) -> str:
    """A name from a user's data with its control characters escaped; a folder's name may have some."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in name)


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
