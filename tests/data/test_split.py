"""What is held out for testing of data that comes without a test set."""

import numpy as np
import pytest

from fedgela.data.split import every_fifth, own_tests


def test_every_fifth_of_a_group_is_for_testing() -> None:
    group = np.array([7] * 10 + [3] * 5)
    assert np.flatnonzero(every_fifth(group)).tolist() == [4, 9, 14]


@pytest.mark.parametrize(("n", "test"), [(1, 0), (2, 1), (3, 1), (4, 1), (5, 1), (9, 1), (10, 2), (104, 20)])
def test_a_group_keeps_at_least_one_of_each_where_it_can(n: int, test: int) -> None:
    assert every_fifth(np.zeros(n, int)).sum() == test


def test_within_a_group_the_second_key_is_stratified() -> None:
    rng = np.random.default_rng(0)
    client, y = rng.integers(0, 3, 3000), rng.integers(0, 4, 3000)
    test = every_fifth(client, then=y)
    for k in range(3):
        for c in range(4):
            cell = (client == k) & (y == c)
            assert abs(test[cell].sum() - cell.sum() / 5) < 1


def test_a_class_of_two_samples_is_learned_and_measured() -> None:
    """Sites of 40 and 13 samples; three of class 1 lie where no fifth of the first site falls."""
    y = np.array([0] * 20 + [1] * 3 + [2] * 17 + [0] * 12 + [3])
    client = np.array([0] * 40 + [1] * 13)
    assert not every_fifth(client, then=y)[y == 1].any()
    test = own_tests(y, client)
    assert np.flatnonzero(test & (y == 1)).tolist() == [22]
    others = y != 1
    assert (test[others] == every_fifth(client, then=y)[others]).all()
    assert not test[y == 3].any()  # a single sample is for training


def test_a_rare_class_is_tested_where_it_is_trained_on() -> None:
    y = np.array([0, 0, 0, 1] + [0, 0, 0, 1, 1] + [0] * 6)
    client = np.repeat([7, 8, 9], [4, 5, 6])
    rotated = np.where(y == 1, -1, y)  # as it sorts first, no fifth falls on it
    test = own_tests(rotated, client)
    assert np.flatnonzero(test & (y == 1)).tolist() == [8]  # of the two of client 8
