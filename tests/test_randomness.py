import itertools

import numpy as np
import torch

from fedgela.randomness import generator, numpy_generator, seed_of, seed_torch, uniform


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


def test_torch_is_seeded_as_by_itself() -> None:
    torch.manual_seed(5)
    expected = torch.rand(4)
    seed_torch(5)
    assert torch.equal(torch.rand(4), expected)


def test_numpy_draws_are_addressed_too() -> None:
    first = numpy_generator(0, "partition").random(4)
    np.random.seed(5)  # noqa: NPY002 - what must not matter
    assert (first == numpy_generator(0, "partition").random(4)).all()
    assert (first != numpy_generator(1, "partition").random(4)).all()


def test_an_integer_of_numpy_is_the_same_address() -> None:
    assert seed_of(0, "batches", np.int64(3)) == seed_of(0, "batches", 3)


# -- draws inside a step ---------------------------------------------------------------------------


def draw(number: int, stream: int, *shape: int) -> torch.Tensor:
    return uniform(torch.tensor(number), stream, shape)


def test_a_draw_inside_a_step_never_changes() -> None:
    # pinned, in 2^-24: it must be the same in every version, on every device
    assert (draw(12345, 2, 2, 3) * 2**24).tolist() == [
        [4818505, 9361585, 11324520],
        [14988708, 13316966, 15829308],
    ]
    assert draw(12345, 2, 2, 3).dtype == torch.float32


def test_draws_are_addressed_by_number_and_stream() -> None:
    assert torch.equal(draw(5, 1, 100), draw(5, 1, 100))
    assert torch.equal(draw(5, 1, 100), draw(5, 1, 10, 10).flatten())
    assert torch.equal(draw(5, 1, 100)[:40], draw(5, 1, 40))  # whatever is drawn after
    torch.manual_seed(3)
    state = torch.get_rng_state()
    draw(5, 1, 100)
    assert torch.equal(torch.get_rng_state(), state)
    # neighbours, and a number that is another's plus a stream's step
    numbers = [0, 1, 2, 5, 6, 2**62, 2**63 - 1, seed_of(0, "draws")]
    every = {tuple(draw(n, s, 4).tolist()) for n in numbers for s in range(4)}
    assert len(every) == 4 * len(numbers)


def test_draws_are_uniform() -> None:
    values = draw(7, 0, 100_000).double()
    assert 0 <= values.min() < 1e-3
    assert 1 - 1e-3 < values.max() < 1
    # five standard errors
    assert abs(values.mean() - 1 / 2) < 5 * (1 / 12 / 1e5) ** 0.5
    assert abs(values.var() - 1 / 12) < 5 * (1 / 180 / 1e5) ** 0.5
    counts = torch.histc(values, bins=100, min=0, max=1)
    assert ((counts - 1000) ** 2 / 1000).sum() < 99 + 5 * (2 * 99) ** 0.5
    assert values.unique().numel() > 99_000  # 24 bits: about 300 coincidences


def correlation(a: torch.Tensor, b: torch.Tensor) -> float:
    return abs(torch.corrcoef(torch.stack([a, b]))[0, 1].item())


def test_neither_neighbours_nor_steps_nor_streams_are_correlated() -> None:
    n = 50_000
    values = draw(7, 0, n).double()
    bound = 5 / n**0.5
    for lag in (1, 2, 32, 64):
        assert correlation(values[:-lag], values[lag:]) < bound
    assert correlation(values, draw(8, 0, n).double()) < bound
    assert correlation(values, draw(7, 1, n).double()) < bound
    # the first number of each of many steps: a step's number counts on by one
    first = torch.cat([draw(k, 0, 1) for k in range(4000)]).double()
    assert correlation(first[:-1], first[1:]) < 5 / 4000**0.5
    assert abs(first.mean() - 1 / 2) < 5 * (1 / 12 / 4000) ** 0.5
