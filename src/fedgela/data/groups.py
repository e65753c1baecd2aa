"""Groups of samples that belong together, such as a patient's images, given by numbers or by names."""

from collections import Counter
from collections.abc import Iterable

import numpy as np

from fedgela.errors import UserError


def check_group(key: str, values: np.ndarray, samples: int) -> None:
    if values.shape != (samples,) or values.dtype.kind not in "iuU":
        raise UserError(
            f"{key} must be {samples} integers or strings, one a sample, not {values.dtype} "
            f"{list(values.shape)}"
        )


def repeated_ids(ids: Iterable[object]) -> tuple[str, ...]:
    """A note where several samples have one id and there are no groups: ids of patients, perhaps, instead of
    samples."""
    times = Counter(text for text in map(str, ids) if text.strip())
    repeated = [one for one, count in times.items() if count > 1]
    if not repeated:
        return ()
    more = f" ({len(repeated) - 1} more ids are repeated)" if len(repeated) > 1 else ""
    return (
        f"{times[repeated[0]]} samples have the id {repeated[0]!r}{more}: if samples of one id belong "
        "together, as a patient's do, call the ids 'group', so that none are in training while others are in "
        "test",
    )


def numbered(
    train: np.ndarray | None, test: np.ndarray | None, n_train: int, n_test: int
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """The groups of train and test as numbers from 0; the same group has the same number in both."""
    if train is None and test is None:
        return None, None
    if train is None or test is None:
        raise UserError("groups must be given for train and test, or for neither")
    check_group("group_train", train, n_train)
    check_group("group_test", test, n_test)
    if (train.dtype.kind == "U") != (test.dtype.kind == "U"):
        raise UserError("group_train and group_test must both be integers, or both strings")
    numbers = np.unique(np.concatenate([train, test]), return_inverse=True)[1]
    return numbers[:n_train], numbers[n_train:]


def in_all_and_in_both(train: np.ndarray | None, test: np.ndarray | None) -> tuple[int, int]:
    """How many groups there are, and how many of them have samples both in training and in test."""
    if train is None or test is None:
        return 0, 0
    return len(np.union1d(train, test)), len(np.intersect1d(train, test))
