"""A federation: the data's tensors, and which client holds which samples."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgela.data.dataset import Dataset
from fedgela.data.held_out import hold_out
from fedgela.data.partition import IID_BETA, LEFT_OUT, Owners, Scheme, by_classes, dirichlet, natural
from fedgela.data.split import split_off
from fedgela.errors import UserError
from fedgela.randomness import numpy_generator


class Shards:
    """Every client's sample indices, grouped: client k's are `shards[k]`, an int64 tensor."""

    def __init__(self, owner: Owners, clients: int) -> None:
        self.sizes = np.bincount(owner, minlength=clients)
        self.owner = torch.from_numpy(owner)
        self._indices = torch.from_numpy(np.argsort(owner, kind="stable"))
        self._ends = np.cumsum(self.sizes)

    def __getitem__(self, client: int) -> Tensor:
        end = int(self._ends[client])
        return self._indices[end - int(self.sizes[client]) : end]


@dataclass(frozen=True)
class Federation:
    """N clients' shares of one data set. Counts stay with their clients unless a method declares more."""

    data: Dataset
    clients: int
    train: Shards
    test: Shards
    train_counts: Tensor  # [N, C], int64: n_kc
    test_counts: Tensor  # [N, C], int64

    @property
    def only_in_test(self) -> list[int]:
        """Classes that are in test sets, but that nobody has a training sample of."""
        return self._classes_with(trained=False, tested=True)

    @property
    def never_tested(self) -> list[int]:
        """Classes that clients train on, but that no test set has a sample of: no accuracy covers them."""
        return self._classes_with(trained=True, tested=False)

    @property
    def nowhere(self) -> list[int]:
        """Classes without any sample."""
        return self._classes_with(trained=False, tested=False)

    def _classes_with(self, *, trained: bool, tested: bool) -> list[int]:
        in_train, in_test = self.train_counts.sum(dim=0) > 0, self.test_counts.sum(dim=0) > 0
        found: list[int] = ((in_train == trained) & (in_test == tested)).nonzero().flatten().tolist()
        return found

    def on(self, device: torch.device) -> "Federation":
        """The same with the data's tensors on a device; indices and counts stay on the CPU."""
        return dataclasses.replace(self, data=self.data.to(device))

    def pooled(self) -> "Federation":
        """All training data with one client: what the Centralised bound trains on."""
        return make_federation(
            self.data,
            1,
            np.zeros(len(self.data.y_train), dtype=np.int64),
            np.zeros(len(self.data.y_test), dtype=np.int64),
        )


def make_federation(data: Dataset, clients: int, train: Owners, test: Owners) -> Federation:
    return Federation(
        data=data,
        clients=clients,
        train=Shards(train, clients),
        test=Shards(test, clients),
        train_counts=_counts(train, data.y_train, clients, data.classes),
        test_counts=_counts(test, data.y_test, clients, data.classes),
    )


def _counts(owner: Owners, y: Tensor, clients: int, classes: int) -> Tensor:
    cell = torch.from_numpy(owner) * classes + y.cpu()
    return torch.bincount(cell, minlength=clients * classes).view(clients, classes)


def build_federation(
    data: Dataset,
    partition: str,
    clients: int | None,
    min_samples: int,
    seed: int,
    validation: float = 0.0,
) -> Federation:
    """Split a data set among clients.

    With `validation` > 0 that share of each client's training samples is held out and takes the place
    of the test sets, which are then never looked at (see held_out.py).
    """
    scheme = Scheme.parse(partition)
    y_train, y_test = data.y_train.numpy(), data.y_test.numpy()
    rng = numpy_generator(seed, "partition")
    if scheme.kind == "natural":
        data = _with_own_tests(data)
        assert data.client_train is not None and data.client_test is not None
        train, test, clients = natural(data.client_train, data.client_test, clients, rng, data.client_names)
        data, train, test = _without_left_out(data, train, test)
    else:
        clients = 10 if clients is None else clients
        if clients > len(y_train):
            raise UserError(f"clients: {clients} are more than the {len(y_train)} training samples")
        if scheme.kind == "classes":
            train, test = by_classes(y_train, y_test, data.classes, clients, int(scheme.value), rng)
        else:
            beta = IID_BETA if scheme.kind == "iid" else scheme.value
            train, test = dirichlet(y_train, y_test, data.classes, clients, beta, min_samples, rng)
    if validation > 0:
        kept, held_out = hold_out(data, train, clients, validation, numpy_generator(seed, "validation"))
        data = _hold_back(data, kept, held_out)
        train, test = train[kept], train[held_out]
    return make_federation(data, clients, train, test)


def _with_own_tests(data: Dataset) -> Dataset:
    """The data, in which natural clients have test samples of their own.

    Where all test samples are of clients without training samples (MNIST by writer), no client's accuracy
    could be measured: every fifth training sample of each client then takes the place of the test set.
    """
    if data.client_train is None or data.client_test is None:
        raise UserError(f"partition natural: the data set {data.name!r} has no client ids")
    if np.isin(data.client_test, data.client_train).any():
        return data
    test = split_off(data.y_train.numpy(), data.client_train, data.group_train)
    if not test.any():
        raise UserError(
            f"partition natural: no client of the data set {data.name!r} has test samples of its own, "
            "or two training samples to split"
        )
    return _hold_back(data, ~test, test)


def _hold_back(data: Dataset, kept: np.ndarray, held_out: np.ndarray) -> Dataset:
    """The data with held-out training samples in the place of the test samples, which are dropped."""
    return dataclasses.replace(
        data, **_chosen(data, "train", kept), **_chosen(data, "train", held_out, "test")
    )


def _chosen(data: Dataset, part: str, chosen: np.ndarray, new_part: str | None = None) -> dict[str, Any]:
    """The chosen samples of a part (train or test), with all that is known of each, as the fields of a data
    set; as those of `new_part` if it is given."""
    held = {key: getattr(data, f"{key}_{part}") for key in ("x", "y", "client", "group")}
    return {f"{key}_{new_part or part}": v if v is None else v[chosen] for key, v in held.items()}


def _without_left_out(data: Dataset, train: Owners, test: Owners) -> tuple[Dataset, Owners, Owners]:
    """The data and owners without the samples of natural clients that were not drawn."""
    kept_train, kept_test = train != LEFT_OUT, test != LEFT_OUT
    if kept_train.all() and kept_test.all():
        return data, train, test
    if not kept_test.any():
        raise UserError(
            f"partition natural: none of the drawn clients of {data.name!r} has test samples; draw more, "
            "or with another partition_seed"
        )
    data = dataclasses.replace(data, **_chosen(data, "train", kept_train), **_chosen(data, "test", kept_test))
    return data, train[kept_train], test[kept_test]
