import itertools

import numpy as np
import pytest
import torch

from fedgela.randomness import generator, numpy_generator, seed_of


def test_a_seed_never_changes() -> None:
    # pinned: another value would silently change every run's clients, batches and weights
    assert seed_of(0, "batches", 1, 2, 3) == 5173412038751644335


def test_seeds_fit_a_generator() -> None:
    assert all(0 <= seed_of(i, "x") < 2**63 for i in range(200))


def test_every_part_of_an_address_counts() -> None:
    addresses = list(itertools.product((0, 1), ("select", "batches"), (1, 2, 11), (1, 2, 12), (0, 1)))
    addresses += [(1,), ("1",), (1, 1), (11,), ("a", "b"), ("ab",), ("a, b",)]
    assert len({seed_of(*address) for address in addresses}) == len(addresses)


def test_a_draw_depends_on_its_address_and_not_on_earlier_draws() -> None:
    first = torch.rand(4, generator=generator(0, "noise", 3))
    torch.rand(100, generator=generator(0, "noise", 2))
    torch.manual_seed(5)
    assert torch.equal(first, torch.rand(4, generator=generator(0, "noise", 3)))
    assert not torch.equal(first, torch.rand(4, generator=generator(0, "noise", 4)))


def test_numpy_draws_are_addressed_too() -> None:
    first = numpy_generator(0, "partition").random(4)
    np.random.seed(5)  # noqa: NPY002 - what must not matter
    assert (first == numpy_generator(0, "partition").random(4)).all()
    assert (first != numpy_generator(1, "partition").random(4)).all()


def test_an_integer_of_numpy_is_the_same_address() -> None:
    assert seed_of(0, "batches", np.int64(3)) == seed_of(0, "batches", 3)
