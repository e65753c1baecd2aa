"""Train and test, for data that comes without."""

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
    y: npt.NDArray[np.integer], client: npt.NDArray[np.integer] | None = None
) -> npt.NDArray[np.bool_]:
    """The test samples [n] of a user's data without a test set: of each client, or else of each class."""
    if not len(y):
        raise UserError("there are no samples")
    test = every_fifth(y) if client is None else every_fifth(client, then=y)
    tested_only = np.setdiff1d(y[test], y[~test])  # by client only: nobody could learn these classes
    first = [np.flatnonzero(y == c)[0] for c in tested_only]
    test[first] = False
    if not test.any():
        group = "class" if client is None else "client"
        raise UserError(f"no {group} has two samples, of which one is for testing; add more, or a test set")
    return test
