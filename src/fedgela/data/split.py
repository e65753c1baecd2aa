"""Train and test, for data that comes without."""

from collections import Counter

import numpy as np
import numpy.typing as npt

from fedgela.errors import UserError


def every_fifth(
    group: npt.NDArray[np.integer], then: npt.NDArray[np.generic] | None = None
) -> npt.NDArray[np.bool_]:
    """The test samples [n]: every fifth of each group, in the order of `then`, or else as they come.

    A group of two to four gives its last one; a single sample is for training. With labels for groups,
    the split is stratified; with clients for groups and `then` the labels, it is so within each client.
    """
    order = np.argsort(group, kind="stable") if then is None else np.lexsort((then, group))
    _, sizes = np.unique(group, return_counts=True)
    place = np.arange(len(group)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    size = np.repeat(sizes, sizes)
    test = np.zeros(len(group), dtype=bool)
    test[order] = (place % 5 == 4) | ((size > 1) & (size < 5) & (place == size - 1))
    return test


def own_tests(
    y: npt.NDArray[np.integer],
    client: npt.NDArray[np.integer] | None = None,
    group: npt.NDArray[np.generic] | None = None,
) -> npt.NDArray[np.bool_]:
    """The test samples [n] of a user's data without a test set: of each client, or else of each class."""
    if not len(y):
        raise UserError("there are no samples")
    test = split_off(y, client, group)
    if not test.any():
        whose = "class" if client is None else "client"
        what = "samples" if group is None else "groups of samples"
        raise UserError(f"no {whose} has two {what}, of which one is for testing; add more, or a test set")
    return test


def split_off(
    y: npt.NDArray[np.integer],
    client: npt.NDArray[np.integer] | None,
    group: npt.NDArray[np.generic] | None,
) -> npt.NDArray[np.bool_]:
    """The same, where there may be none. All samples of a group are on one side."""
    if group is None:
        return every_fifth(y) if client is None else within_clients(y, client)
    one = _one_of_each(group, y)
    if client is None:
        return np.isin(group, group[one[every_fifth(y[one])]])
    # a client may have five groups or so: were the first class the same for all, it would hardly be tested
    number, label = (np.unique(ids, return_inverse=True)[1] for ids in (client, y))
    turned = (label + number) % (label.max() + 1)
    test = np.isin(group, group[one[within_clients(y[one], client[one], turned[one])]])
    lost = np.setdiff1d(client, client[~test])  # of whom other clients' groups took all samples
    return test & ~np.isin(group, group[np.isin(client, lost)])


def _one_of_each(group: npt.NDArray[np.generic], y: npt.NDArray[np.integer]) -> npt.NDArray[np.intp]:
    """A sample that stands for its group, in the order of the samples: of the group's rarest class, since it
    is the rare ones that a split may miss."""
    _, label, sizes = np.unique(y, return_inverse=True, return_counts=True)
    order = np.lexsort((sizes[label], group))
    _, first = np.unique(group[order], return_index=True)
    return np.sort(order[first])


def within_clients(
    y: npt.NDArray[np.integer],
    client: npt.NDArray[np.integer],
    then: npt.NDArray[np.integer] | None = None,
) -> npt.NDArray[np.bool_]:
    """Every fifth of each client, in the order of `then` or else its classes; and where that leaves a class
    of two samples or more without any to learn it from, or any to measure it on, one of them for that."""
    test = every_fifth(client, then=y if then is None else then)
    if not test.any():
        return test
    tested_only = np.setdiff1d(y[test], y[~test])
    test[[np.flatnonzero(y == c)[0] for c in tested_only]] = False
    samples_of = Counter(client.tolist())
    trained_on = Counter(client[~test].tolist())
    for c in np.setdiff1d(y[~test], y[test]):
        members = np.flatnonzero(y == c)
        spare = [i for i in members.tolist() if trained_on[client[i]] > 1]  # no client is left without any
        if len(members) > 1 and spare:
            # of the client that has the most: it, or else another, still trains on the class
            here = Counter(client[members].tolist())
            given = max(spare, key=lambda i: (here[client[i]], samples_of[client[i]], i))
            test[given] = True
            trained_on[client[given]] -= 1
    return test
