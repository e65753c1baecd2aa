"""Natural clients: all of them, some of them, or more than there are."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedgela.data import Dataset, build_federation
from fedgela.data.partition import LEFT_OUT, natural, split_largest
from fedgela.data.split import own_tests
from fedgela.errors import UserError

Make = Callable[..., Dataset]
Numbers = Callable[[torch.Tensor], list[int]]
seeds = st.integers(0, 2**40)
ids_of = st.lists(st.integers(-(2**40), 2**40), min_size=1, max_size=8, unique=True)


def with_clients(toy_data: Make, names: list[int], seed: int, extra: int = 30) -> Dataset:
    """Every client has a training and a test sample, and the rest falls as it may."""
    rng = np.random.default_rng(seed)
    train, test = (rng.permutation([*names, *rng.choice(names, n)]) for n in (extra, extra // 2))
    return toy_data(
        [len(train) - 3, 3], [len(test) - 3, 3], seed=seed % 2**32, client_train=train, client_test=test
    )


@given(names=ids_of, clients=st.integers(1, 20), seed=seeds)
def test_every_sample_of_the_chosen_clients_goes_to_exactly_one_client(
    toy_data: Make, sample_numbers: Numbers, names: list[int], clients: int, seed: int
) -> None:
    data = with_clients(toy_data, names, seed)
    federation = build_federation(data, "natural", clients, 0, seed)
    assert federation.clients == clients
    assert data.client_train is not None and data.client_test is not None
    n_train = len(data.y_train)
    chosen: set[int] = set()
    homes: dict[int, set[int]] = {}
    for part, x, ids, first in (
        ("train", federation.data.x_train, data.client_train, 0),
        ("test", federation.data.x_test, data.client_test, n_train),
    ):
        shards = getattr(federation, part)
        held = [i for k in range(clients) for i in shards[k].tolist()]
        assert sorted(held) == list(range(len(x)))  # what is in the federation is held, and held once
        numbers = [number - first for number in sample_numbers(x)]
        for k in range(clients):
            homes.setdefault(k, set()).update(int(ids[numbers[i]]) for i in shards[k].tolist())
        chosen |= {int(ids[number]) for number in numbers}
        assert sorted(numbers) == np.flatnonzero(np.isin(ids, list(chosen))).tolist()  # and nothing is lost
    assert all(len(home) == 1 for home in homes.values())  # nobody mixes two natural clients
    assert len(chosen) == min(clients, len(names))
    assert federation.train.sizes.min() > 0


@given(names=ids_of, seed=seeds)
def test_samples_keep_their_labels(
    toy_data: Make, sample_numbers: Numbers, names: list[int], seed: int
) -> None:
    data = with_clients(toy_data, names, seed)
    held = build_federation(data, "natural", 1, 0, seed).data
    assert held.y_train.tolist() == data.y_train[sample_numbers(held.x_train)].tolist()
    labels = torch.cat([data.y_train, data.y_test])
    assert held.y_test.tolist() == labels[sample_numbers(held.x_test)].tolist()


def test_the_partition_seed_draws_the_clients(toy_data: Make) -> None:
    data = with_clients(toy_data, list(range(40)), seed=0)

    def drawn(seed: int) -> list[int]:
        federation = build_federation(data, "natural", 5, 0, seed)
        assert federation.data.client_train is not None
        return np.unique(federation.data.client_train).tolist()

    assert drawn(0) == drawn(0) != drawn(1)
    assert len(drawn(0)) == 5


def test_the_papers_20_clients_of_6_centres() -> None:
    sizes = np.array([9930, 3163, 2691, 1807, 655, 351])  # FLamby's training samples
    parts = split_largest(sizes, 20)
    assert parts.sum() == 20
    assert parts[4] == parts[5] == 1  # the small centres stay whole
    mean = sizes / parts
    assert mean[parts > 1].min() * 2 > mean.max()  # nobody was split who was not the largest


@given(st.lists(st.integers(1, 50), min_size=1, max_size=6), st.integers(0, 20), seeds)
def test_a_split_clients_parts_are_even(sizes: list[int], more: int, seed: int) -> None:
    ids = np.repeat(np.arange(len(sizes)), sizes)
    clients = min(len(sizes) + more, len(ids))
    rng = np.random.default_rng(seed)
    train, test, found = natural(ids, ids, clients, rng)
    assert found == clients
    for owner in (train, test):
        for k in range(len(sizes)):
            counts = np.unique(owner[ids == k], return_counts=True)[1]
            assert counts.max() - counts.min() <= 1
        assert np.bincount(owner, minlength=clients).min() >= 1


def test_a_clients_parts_are_no_runs_of_its_samples() -> None:
    train, _, _ = natural(np.zeros(40, int), np.zeros(4, int), 2, np.random.default_rng(0))
    assert 5 < (np.diff(train) == 0).sum() < 34  # neither in two halves nor strictly in turn


def test_more_clients_than_training_samples_are_an_error() -> None:
    with pytest.raises(UserError, match="clients: 5 are more than the 4 training samples"):
        natural(np.array([1, 1, 2, 2]), np.array([1]), 5, np.random.default_rng(0))


def test_samples_of_clients_not_drawn_have_no_owner() -> None:
    ids = np.array([3, 8, 3, 9])
    train, test, clients = natural(ids, ids, 1, np.random.default_rng(0))
    assert clients == 1
    assert set(train.tolist()) == {0, LEFT_OUT}
    assert (train == test).all()


def test_drawn_clients_without_test_samples_are_an_error(toy_data: Make) -> None:
    train = np.array([0] + [1] * 19)
    data = toy_data([10, 10], [2, 2], client_train=train, client_test=np.zeros(4, int))
    told = set()
    for seed in range(20):
        try:
            build_federation(data, "natural", 1, 0, seed)
        except UserError as error:
            told.add(str(error))
    assert len(told) == 1
    assert "none of the drawn clients" in told.pop()


# -- test samples of other clients ---------------------------------------------------------------------


def test_where_test_clients_are_others_each_client_tests_on_a_fifth_of_its_own(
    toy_data: Make, sample_numbers: Numbers
) -> None:
    writers = np.repeat([4, 7], [20, 10])
    data = toy_data([15, 15], [5, 5], client_train=writers, client_test=np.full(10, 99))
    federation = build_federation(data, "natural", None, 0, seed=0)
    assert federation.clients == 2
    assert federation.train.sizes.tolist() == [16, 8]
    assert federation.test.sizes.tolist() == [4, 2]
    both = sample_numbers(federation.data.x_train) + sample_numbers(federation.data.x_test)
    assert sorted(both) == list(range(30))  # the training samples, and no test sample


def test_clients_of_one_sample_and_no_test_samples_are_an_error(toy_data: Make) -> None:
    data = toy_data([2, 2], [1, 1], client_train=np.arange(4), client_test=np.array([8, 9]))
    with pytest.raises(UserError, match="no client of the data set 'toy' has test samples of its own"):
        build_federation(data, "natural", None, 0, seed=0)


def test_no_client_gives_its_only_sample_for_testing() -> None:
    """Class 2 has two samples, each the only one of its client: it is trained on, and not tested."""
    y = np.array([0, 1] * 20 + [2, 2])
    client = np.array([0] * 40 + [1, 2])
    test = own_tests(y, client)
    assert not test[40:].any() and test[:40].sum() == 8
    # where one of its clients has more to train on, that one gives a sample
    test = own_tests(np.append(y, 0), np.append(client, 1))
    assert test[40:].tolist() == [True, False, False]
