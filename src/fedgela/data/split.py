"""Train and test, for data that comes without."""

import numpy as np
import numpy.typing as npt


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
