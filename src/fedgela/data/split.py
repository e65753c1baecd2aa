"""Splitting samples into train and test, for data that comes without a test set."""

from collections import Counter

import numpy as np
import numpy.typing as npt

from fedgela.errors import UserError


def places(sizes: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    """0, 1, 2, ... anew in each of consecutive groups of these sizes, [sum of sizes]."""
    first = np.cumsum(sizes) - sizes
    place: npt.NDArray[np.int64] = np.arange(sizes.sum()) - np.repeat(first, sizes)
    return place


def every_fifth(
    key: npt.NDArray[np.integer], then: npt.NDArray[np.generic] | None = None
) -> npt.NDArray[np.bool_]:
    """The test samples [n]: every fifth of those with the same key, in the order of `then`, or as they come.

    Of two to four samples with the same key the last one is for testing, and a single one is for training.
    With labels as the key the split is stratified; with clients as the key and labels as `then` it is
    stratified within each client.
    """
    order = np.argsort(key, kind="stable") if then is None else np.lexsort((then, key))
    _, sizes = np.unique(key, return_counts=True)
    place = places(sizes)
    size = np.repeat(sizes, sizes)
    test = np.zeros(len(key), dtype=bool)
    test[order] = (place % 5 == 4) | ((size > 1) & (size < 5) & (place == size - 1))
    return test


def own_tests(
    y: npt.NDArray[np.integer],
    client: npt.NDArray[np.integer] | None = None,
    group: npt.NDArray[np.generic] | None = None,
) -> npt.NDArray[np.bool_]:
    """The test samples [n] of a user's data without a test set (see split_off); there must be some."""
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
    """The test samples [n]: about a fifth of each client, or without clients of each class; perhaps none. All
    samples of a group (a patient's images, say) are on the same side."""
    if group is None:
        return every_fifth(y) if client is None else within_clients(y, client)
    one = _one_of_each(group, y)
    if client is None:
        return np.isin(group, group[one[every_fifth(y[one])]])
    # Every fifth group of a client is for testing, and a client may have only about five: in the order of
    # labels it would be one of the last classes for all clients. So clients begin with different classes.
    number, label = (np.unique(ids, return_inverse=True)[1] for ids in (client, y))
    turned = (label + number) % (label.max() + 1)
    test = np.isin(group, group[one[within_clients(y[one], client[one], turned[one])]])
    # clients without training samples, since all of theirs are in groups that another client's split chose
    lost = np.setdiff1d(client, client[~test])
    return test & ~np.isin(group, group[np.isin(client, lost)])


def _one_of_each(group: npt.NDArray[np.generic], y: npt.NDArray[np.integer]) -> npt.NDArray[np.intp]:
    """One sample to stand for each group, in the order of the samples. It is of the group's rarest class,
    which a split is most likely to miss."""
    _, label, sizes = np.unique(y, return_inverse=True, return_counts=True)
    order = np.lexsort((sizes[label], group))
    _, first = np.unique(group[order], return_index=True)
    return np.sort(order[first])


def within_clients(
    y: npt.NDArray[np.integer],
    client: npt.NDArray[np.integer],
    then: npt.NDArray[np.integer] | None = None,
) -> npt.NDArray[np.bool_]:
    """The test samples [n]: every fifth of each client, in the order of `then` or else of its labels.

    Where that leaves a class of two samples or more without any training sample, or without any test sample,
    one of its samples is moved.
    """
    test = every_fifth(client, then=y if then is None else then)
    if not test.any():
        return test
    tested_only = np.setdiff1d(y[test], y[~test])
    test[[np.flatnonzero(y == c)[0] for c in tested_only]] = False
    samples_of = Counter(client.tolist())
    trained_on = Counter(client[~test].tolist())
    for c in np.setdiff1d(y[~test], y[test]):
        members = np.flatnonzero(y == c)
        spare = [i for i in members.tolist() if trained_on[client[i]] > 1]  # every client keeps at least one
        if len(members) > 1 and spare:
            # from the client with most samples of the class, so that others still train on it
            here = Counter(client[members].tolist())
            given = max(spare, key=lambda i: (here[client[i]], samples_of[client[i]], i))
            test[given] = True
            trained_on[client[given]] -= 1
    return test
