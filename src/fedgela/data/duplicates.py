"""Samples that are there twice: in training and in test, on several clients, or with two labels."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedgela.data.digests import digests
from fedgela.data.federation import Federation

Ints = npt.NDArray[np.int64]

EXAMPLES = 5  # named of each kind


@dataclass(frozen=True)
class Duplicates:
    """How many samples are the same to the byte, by kind, with a few examples (indices) of each."""

    test_in_train: int  # test samples that some client also trains on
    test_in_train_of_same_client: int  # of those, the ones that their own client trains on
    across_clients: int  # training samples that another client has too
    within_client: int  # training samples beyond the first that the same client has
    conflicting: int  # training samples whose twin, anywhere in training, has another label
    examples_test_in_train: tuple[tuple[int, int], ...]  # (test sample, training sample)
    examples_across_clients: tuple[tuple[int, int], ...]  # two training samples
    examples_within_client: tuple[tuple[int, int], ...]


def find_duplicates(federation: Federation) -> Duplicates:
    """Equal samples by a 128-bit cryptographic hash of their bytes."""
    data, N = federation.data, federation.clients
    group = _groups(np.concatenate([digests(data.x_train), digests(data.x_test)]))
    train, test = group[: len(data.y_train)], group[len(data.y_train) :]
    owner, owner_test = federation.train.owner.numpy(), federation.test.owner.numpy()
    labels = data.y_train.cpu().numpy()
    groups = int(group.max()) + 1

    first = np.full(groups, -1)
    first[train[::-1]] = np.arange(len(train))[::-1]  # the first training sample of every group
    leaked = np.flatnonzero(first[test] >= 0)

    # holdings: the distinct pairs (content of a sample, client that trains on it)
    pair = train * N + owner
    holdings, first_of_pair = np.unique(pair, return_index=True)
    holders = np.bincount(holdings // N, minlength=groups)
    shared = holders[train] > 1
    others = np.flatnonzero(shared & (owner != owner[first[train]]))
    again = np.ones(len(train), dtype=bool)
    again[first_of_pair] = False
    repeated = np.flatnonzero(again)
    twin = first_of_pair[np.searchsorted(holdings, pair[repeated])]

    labelled = np.unique(train * data.classes + labels) // data.classes
    contradicted = np.bincount(labelled, minlength=groups)[train] > 1
    return Duplicates(
        test_in_train=len(leaked),
        test_in_train_of_same_client=int(np.isin(test * N + owner_test, holdings).sum()),
        across_clients=int(shared.sum()),
        within_client=len(repeated),
        conflicting=int(contradicted.sum()),
        examples_test_in_train=_pairs(leaked, first[test[leaked]]),
        examples_across_clients=_pairs(first[train[others]], others),
        examples_within_client=_pairs(twin, repeated),
    )


def _pairs(left: Ints, right: Ints) -> tuple[tuple[int, int], ...]:
    return tuple(zip(left[:EXAMPLES].tolist(), right[:EXAMPLES].tolist(), strict=True))


def _groups(samples: npt.NDArray[np.uint64]) -> Ints:
    """Numbers from 0, [n], the same for the same digest."""
    order = np.lexsort((samples[:, 1], samples[:, 0]))
    ordered = samples[order]
    new = np.any(ordered[1:] != ordered[:-1], axis=1)
    group = np.empty(len(samples), dtype=np.int64)
    group[order] = np.concatenate([[0], np.cumsum(new)])
    return group
