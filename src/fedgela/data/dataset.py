"""A data set: samples as tensors, with labels, train and test, and client ids where the data has them."""

import dataclasses
import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedgela.data.augment import crop_flip_rotate
from fedgela.data.groups import in_all_and_in_both
from fedgela.errors import UserError, printable
from fedgela.inputs import InputSpec, Kind, columns_of

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
    numbers_written: bool = False  # whether labels are numbers of a table, and so names (label_numbers.py)
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
