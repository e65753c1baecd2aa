from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from fedgela.data import Dataset, Federation, build_federation, partition
from fedgela.data.partition import MAX_TRIES, Scheme, by_classes, deal_classes, dirichlet, natural
from fedgela.errors import UserError

Make = Callable[..., Dataset]

seeds = st.integers(0, 2**40)
class_sizes = st.integers(2, 6).flatmap(
    lambda C: st.tuples(
        st.lists(st.integers(1, 40), min_size=C, max_size=C),
        st.lists(st.integers(1, 20), min_size=C, max_size=C),
    )
)


def assert_every_sample_has_one_client(federation: Federation) -> None:
    data = federation.data
    for shards, y in ((federation.train, data.y_train), (federation.test, data.y_test)):
        assert shards.owner.shape == y.shape
        assert shards.owner.min() >= 0
        assert shards.owner.max() < federation.clients
        indices = torch.cat([shards[k] for k in range(federation.clients)])
        assert torch.equal(indices.sort().values, torch.arange(len(y)))  # all of them, none twice
        for k in range(federation.clients):
            assert (shards.owner[shards[k]] == k).all()
            assert len(shards[k]) == shards.sizes[k]


def assert_test_follows_train(federation: Federation) -> None:
    """A client's share of a class is the same in train and test, up to rounding to whole samples."""
    n_train, n_test = federation.train_counts, federation.test_counts
    for c in range(federation.data.classes):
        total_train, total_test = int(n_train[:, c].sum()), int(n_test[:, c].sum())
        if total_train and total_test:
            difference = (n_train[:, c] / total_train - n_test[:, c] / total_test).abs().max().item()
            assert difference <= 1 / total_train + 1 / total_test + 1e-6


# -- how a config names it -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "scheme"),
    [
        ("dirichlet:0.1", Scheme("dirichlet", 0.1)),
        ("dirichlet:10000", Scheme("dirichlet", 10000.0)),
        ("classes:2", Scheme("classes", 2)),
        ("iid", Scheme("iid")),
        ("natural", Scheme("natural")),
    ],
)
def test_scheme_is_read(text: str, scheme: Scheme) -> None:
    assert Scheme.parse(text) == scheme


@pytest.mark.parametrize(
    "text",
    [
        "",
        "dirichlet",
        "dirichlet:",
        "dirichlet:0",
        "dirichlet:-1",
        "dirichlet:nan",
        "dirichlet:inf",
        "classes:0",
        "classes:1.5",
        "classes",
        "iid:3",
        "natural:2",
        "random",
    ],
)
def test_bad_scheme_is_named_with_the_right_ones(text: str) -> None:
    with pytest.raises(ValueError, match=r"'dirichlet:BETA'.*'classes:C'.*'iid' or 'natural'") as error:
        Scheme.parse(text)
    assert repr(text) in str(error.value)


def test_misspelt_scheme_gets_a_hint() -> None:
    with pytest.raises(ValueError, match="did you mean 'natural'"):
        Scheme.parse("naturl")


# -- dirichlet and iid ---------------------------------------------------------------------------------


@given(
    sizes=class_sizes,
    clients=st.integers(1, 6),
    beta=st.sampled_from(["0.1", "0.5", "5", "1000"]),
    min_samples=st.integers(0, 3),
    seed=seeds,
)
def test_dirichlet_deals_every_sample_once(
    toy_data: Make, sizes: tuple[list[int], list[int]], clients: int, beta: str, min_samples: int, seed: int
) -> None:
    assume(sum(sizes[0]) >= 4 * clients * max(min_samples, 1))  # enough for draws to succeed
    try:
        federation = build_federation(toy_data(*sizes), f"dirichlet:{beta}", clients, min_samples, seed)
    except UserError as error:
        assert "in 1000 draws" in str(error)  # the one error that such settings may end in
        return
    assert_every_sample_has_one_client(federation)
    assert_test_follows_train(federation)
    assert federation.train_counts.sum(dim=1).min() >= min_samples


def test_dirichlet_is_redrawn_until_everybody_has_enough(toy_data: Make) -> None:
    data = toy_data([50] * 4, [10] * 4)
    smallest = {
        least: [build_federation(data, "dirichlet:0.3", 5, least, s).train.sizes.min() for s in range(20)]
        for least in (0, 15)
    }
    assert min(smallest[0]) < 15  # what the first draws give
    assert min(smallest[15]) >= 15


@given(sizes=class_sizes, clients=st.integers(1, 6), seed=seeds)
def test_iid_deals_every_sample_once(
    toy_data: Make, sizes: tuple[list[int], list[int]], clients: int, seed: int
) -> None:
    assume(sum(sizes[0]) >= clients)
    federation = build_federation(toy_data(*sizes), "iid", clients, 0, seed)
    assert_every_sample_has_one_client(federation)
    assert_test_follows_train(federation)


def test_iid_gives_everybody_about_the_same(toy_data: Make) -> None:
    federation = build_federation(toy_data([500] * 4, [100] * 4), "iid", 5, 0, seed=0)
    assert (federation.train_counts - 100).abs().max() <= 10
    assert (federation.test_counts - 20).abs().max() <= 3


def test_small_beta_leaves_clients_without_classes_and_large_beta_does_not(toy_data: Make) -> None:
    data = toy_data([200] * 10, [50] * 10)

    def missing(scheme: str) -> int:
        return int((build_federation(data, scheme, 10, 1, seed=0).train_counts == 0).sum())

    assert missing("dirichlet:0.1") > 20
    assert missing("dirichlet:100") == 0


@pytest.mark.parametrize("beta", [1e-3, 1e6, 1e9])
def test_extreme_beta_works(toy_data: Make, beta: float) -> None:
    # RuntimeWarnings (NaN, overflow) are errors in this test suite
    federation = build_federation(toy_data([300] * 5, [60] * 5), f"dirichlet:{beta}", 8, 0, seed=1)
    assert_every_sample_has_one_client(federation)
    assert_test_follows_train(federation)


def test_vanishing_beta_gives_each_class_to_one_client(toy_data: Make) -> None:
    federation = build_federation(toy_data([300] * 5, [60] * 5), "dirichlet:0.0001", 8, 0, seed=1)
    assert (federation.train_counts > 0).sum(dim=0).tolist() == [1] * 5
    assert torch.equal(federation.train_counts > 0, federation.test_counts > 0)


def test_a_beta_too_small_to_draw_with_is_refused() -> None:
    with pytest.raises(ValueError, match="not 'dirichlet:1e-308'"):
        Scheme.parse("dirichlet:1e-308")


def test_rounding_favours_no_client(toy_data: Make) -> None:
    data = toy_data([500] * 10, [100] * 10)
    held = torch.zeros(10)
    for seed in range(30):
        held += (build_federation(data, "dirichlet:0.1", 10, 0, seed).train_counts > 0).sum(dim=1)
    held /= 30
    # classes a client holds, on average: the clients are alike, so none may stand out
    assert (held - held.mean()).abs().max() < 1.5


def test_the_odd_samples_of_a_class_go_to_any_of_its_holders(toy_data: Make) -> None:
    data = toy_data([31] * 4, [5] * 4)  # of two holders each: 16 and 15, 3 and 2
    more = torch.zeros(2, 4)
    for seed in range(60):
        federation = build_federation(data, "classes:2", 4, 0, seed)
        for part, counts in enumerate((federation.train_counts, federation.test_counts)):
            more[part] += (counts == counts.max()).sum(dim=1)
    # each client holds two classes: of one it has the odd sample, on average
    assert (more / 60 - 1).abs().max() < 0.35


def test_same_seed_same_partition_other_seed_other(toy_data: Make) -> None:
    data = toy_data([50] * 4, [20] * 4)
    for scheme in ("dirichlet:0.5", "classes:2", "iid"):
        first, again, other = (build_federation(data, scheme, 5, 1, seed) for seed in (3, 3, 4))
        assert torch.equal(first.train.owner, again.train.owner)
        assert torch.equal(first.test.owner, again.test.owner)
        assert not torch.equal(first.train.owner, other.train.owner)


def test_too_few_samples_for_a_batch_each_is_said_with_the_numbers(toy_data: Make) -> None:
    with pytest.raises(UserError, match="60 training samples are too few to give 7 clients 10 each") as error:
        build_federation(toy_data([30, 30], [5, 5]), "dirichlet:1", 7, 10, seed=0)
    assert "min_samples (unless set, it is batch_size)" in str(error.value)  # true whether it was set or not
    assert "one batch" not in str(error.value)


def test_hopeless_draws_end_after_bounded_tries_and_say_the_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = 0
    rows = partition._dirichlet_rows

    def counted(*args: object) -> np.ndarray:
        nonlocal tries
        tries += 1
        return rows(*args)

    monkeypatch.setattr(partition, "_dirichlet_rows", counted)
    y = np.repeat([0, 1], 50)
    with pytest.raises(UserError) as error:  # two classes, each in one place, for five clients
        dirichlet(y, y, 2, 5, 1e-3, 10, np.random.default_rng(0))
    assert tries == MAX_TRIES
    assert f"in {MAX_TRIES} draws over 5 clients none gave every client 10" in str(error.value)
    assert "smallest clients have 0, 0, 0," in str(error.value)
    assert "min_samples (unless set, it is batch_size)" in str(error.value)
    assert "one batch" not in str(error.value)
    assert len(str(error.value).splitlines()) == 2


# -- classes:c -----------------------------------------------------------------------------------------


@given(data=st.data(), sizes=class_sizes, clients=st.integers(1, 8), seed=seeds)
def test_classes_gives_each_client_exactly_so_many(
    toy_data: Make, data: st.DataObject, sizes: tuple[list[int], list[int]], clients: int, seed: int
) -> None:
    train, test = [n + 8 for n in sizes[0]], sizes[1]  # at least as many as there are clients
    C = len(train)
    per_client = data.draw(st.integers(-(-C // clients), C))
    federation = build_federation(toy_data(train, test), f"classes:{per_client}", clients, 0, seed)
    assert_every_sample_has_one_client(federation)
    assert_test_follows_train(federation)
    holds = federation.train_counts > 0
    assert (holds.sum(dim=1) == per_client).all()
    holders = holds.sum(dim=0)
    assert holders.min() >= 1
    assert holders.max() - holders.min() <= 1
    for c in range(C):
        for counts in (federation.train_counts, federation.test_counts):
            split = counts[holds[:, c], c]
            assert split.max() - split.min() <= 1
        assert federation.test_counts[~holds[:, c], c].sum() == 0  # tested only on what it trains on


@given(st.integers(1, 40), st.integers(1, 40), st.data(), seeds)
def test_classes_are_dealt_evenly(classes: int, clients: int, data: st.DataObject, seed: int) -> None:
    per_client = data.draw(st.integers(1, classes))
    holds = deal_classes(classes, clients, per_client, np.random.default_rng(seed))
    assert (holds.sum(axis=1) == per_client).all()
    assert np.ptp(holds.sum(axis=0)) <= 1


def test_classes_are_dealt_at_random() -> None:
    deals = {deal_classes(10, 10, 2, np.random.default_rng(seed)).tobytes() for seed in range(5)}
    assert len(deals) == 5


@pytest.mark.parametrize(
    ("per_client", "clients", "message"),
    [
        (4, 5, "classes:4: the data has only 3 classes"),
        (1, 2, "2 clients with 1 classes each cannot hold all 3 classes"),
        (3, 5, r"class 2 has 4 training samples for 5 clients"),
    ],
)
def test_impossible_classes_are_errors(per_client: int, clients: int, message: str) -> None:
    y = np.array([0] * 9 + [1] * 9 + [2] * 4)
    with pytest.raises(UserError, match=message):
        by_classes(y, y, 3, clients, per_client, np.random.default_rng(0))


def test_more_clients_than_samples_is_an_error(toy_data: Make) -> None:
    with pytest.raises(UserError, match="clients: 9 are more than the 8 training samples"):
        build_federation(toy_data([4, 4], [4, 4]), "classes:1", 9, 0, seed=0)


# -- natural -------------------------------------------------------------------------------------------


@given(st.lists(st.integers(-(2**40), 2**40), min_size=1, max_size=6, unique=True), seeds)
def test_natural_keeps_the_clients_of_the_data(toy_data: Make, names: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    ids_train = np.concatenate([names, rng.choice(names, 20)])
    ids_test = rng.choice(names, 10)
    data = toy_data([len(ids_train) - 5, 5], [5, 5], client_train=ids_train, client_test=ids_test)
    federation = build_federation(data, "natural", None, 0, seed)
    assert_every_sample_has_one_client(federation)
    assert federation.clients == len(names)
    in_order = np.sort(names)  # client k is the k-th smallest id
    assert (in_order[federation.train.owner.numpy()] == ids_train).all()
    assert (in_order[federation.test.owner.numpy()] == ids_test).all()


def test_natural_clients_are_numbered_in_the_order_of_their_ids() -> None:
    train, test, clients = natural(
        np.array([70, 5, 5, 30]), np.array([30, 70]), None, np.random.default_rng(0)
    )
    assert train.tolist() == [2, 0, 0, 1]
    assert test.tolist() == [1, 2]
    assert clients == 3


@pytest.mark.parametrize(("unknown", "message"), [([4], "client 4 has test"), ([99, 4, 99], "1 more")])
def test_natural_test_client_without_training_samples_is_an_error(unknown: list[int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        natural(np.array([1, 2, 5]), np.array([1, *unknown]), None, np.random.default_rng(0))


def test_natural_needs_client_ids(toy_data: Make) -> None:
    with pytest.raises(UserError, match="'toy' has no client ids"):
        build_federation(toy_data([4, 4], [4, 4]), "natural", None, 0, seed=0)
