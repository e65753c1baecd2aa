from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch

from fedgela.data import Dataset, build_federation
from fedgela.data.federation import Shards
from fedgela.errors import UserError

Make = Callable[..., Dataset]
Numbers = Callable[[torch.Tensor], list[int]]


def test_shards_are_each_clients_samples_in_order() -> None:
    shards = Shards(np.array([2, 0, 2, 0, 3]), clients=5)
    assert [shards[k].tolist() for k in range(5)] == [[1, 3], [], [0, 2], [4], []]
    assert shards.sizes.tolist() == [2, 0, 2, 1, 0]


@pytest.mark.parametrize("scheme", ["dirichlet:0.3", "classes:2", "iid"])
def test_counts_equal_a_loop(toy_data: Make, scheme: str) -> None:
    federation = build_federation(toy_data([40, 25, 30], [9, 7, 8]), scheme, 4, 0, seed=2)
    data = federation.data
    for shards, y, counts in (
        (federation.train, data.y_train, federation.train_counts),
        (federation.test, data.y_test, federation.test_counts),
    ):
        expected = [[sum(int(y[i]) == c for i in shards[k]) for c in range(3)] for k in range(4)]
        assert counts.tolist() == expected
        assert counts.dtype == torch.int64


def test_ten_clients_unless_told(toy_data: Make) -> None:
    assert build_federation(toy_data([40, 40], [9, 9]), "iid", None, 0, seed=0).clients == 10


def test_pooled_is_one_client_with_everything(toy_data: Make) -> None:
    federation = build_federation(toy_data([40, 25], [9, 7]), "classes:1", 4, 0, seed=2)
    pooled = federation.pooled()
    assert pooled.clients == 1
    assert pooled.train[0].tolist() == list(range(65))
    assert pooled.test[0].tolist() == list(range(16))
    assert pooled.train_counts.tolist() == [[40, 25]]
    assert pooled.test_counts.tolist() == [[9, 7]]
    assert pooled.data is federation.data


def test_moving_to_a_device_keeps_the_split(toy_data: Make) -> None:
    federation = build_federation(toy_data([40, 25], [9, 7]), "iid", 4, 0, seed=2)
    moved = federation.on(torch.device("meta"))
    assert moved.data.x_train.device.type == "meta"
    assert moved.data.y_test.device.type == "meta"
    assert moved.train is federation.train
    assert moved.train_counts.device.type == "cpu"


# -- validation ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5, 0.9])
@pytest.mark.parametrize("scheme", ["dirichlet:0.5", "classes:2"])
def test_validation_holds_out_its_share_of_each_client(
    toy_data: Make, sample_numbers: Numbers, scheme: str, share: float
) -> None:
    data = toy_data([120, 130, 110], [30, 30, 30])
    whole = build_federation(data, scheme, 4, 10, seed=5)
    held = build_federation(data, scheme, 4, 10, seed=5, validation=share)
    train_numbers, test_numbers = sample_numbers(held.data.x_train), sample_numbers(held.data.x_test)
    for k in range(4):
        mine = whole.train[k].tolist()  # a training image's number is its index
        kept = [train_numbers[i] for i in held.train[k]]
        out = [test_numbers[i] for i in held.test[k]]
        # the client's own samples, all of them and each once: nobody else's, and no test samples
        assert sorted(kept + out) == mine
        assert len(out) == int(Fraction(str(share)) * len(mine))
    assert max(test_numbers) < 360  # test images have the numbers from 360


def test_validation_labels_stay_with_their_images(toy_data: Make, sample_numbers: Numbers) -> None:
    data = toy_data([60, 50], [9, 7])
    held = build_federation(data, "iid", 3, 0, seed=0, validation=0.3).data
    assert held.y_train.tolist() == data.y_train[sample_numbers(held.x_train)].tolist()
    assert held.y_test.tolist() == data.y_train[sample_numbers(held.x_test)].tolist()
    assert held.classes == data.classes


def test_validation_samples_are_drawn_at_random(toy_data: Make, sample_numbers: Numbers) -> None:
    data = toy_data([60, 50], [9, 7])
    drawn = []
    for seed in (0, 0, 1):
        held = build_federation(data, "iid", 1, 0, seed, validation=0.3)
        drawn.append(sample_numbers(held.data.x_test))
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]
    assert drawn[0] != list(range(33))  # not just the first


def test_validation_of_less_than_a_sample_is_an_error(toy_data: Make) -> None:
    with pytest.raises(UserError, match=r"validation: 0\.01 of a client's"):
        build_federation(toy_data([20, 20], [5, 5]), "iid", 4, 0, seed=0, validation=0.01)


def test_validation_share_is_not_lost_to_float_rounding(toy_data: Make) -> None:
    held = build_federation(toy_data([50, 50], [5, 5]), "iid", 1, 0, seed=0, validation=0.29)
    assert len(held.data.y_test) == 29
