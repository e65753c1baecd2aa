"""Masks hide every single change, and cancel in the sum of those that are opened together."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

pytest.importorskip("cryptography", reason="Flower is not installed: pip install 'fedgela[flower]'")

from fedgela.flower.masks import (
    FIXED_POINT,
    FixedPoint,
    Masker,
    Seeds,
    Unmaskable,
    digest_of,
    opened,
    share_of,
)
from fedgela.models import State

WIDE, NARROW = FIXED_POINT["fp32"], FIXED_POINT["bf16"]


class Round:
    """Sites that have masked their changes."""

    def __init__(self, sites: int = 4, fixed: FixedPoint = WIDE, size: int = 500) -> None:
        self.fixed = fixed
        self.maskers = {k: Masker() for k in range(sites)}
        self.keys = {k: masker.new_key() for k, masker in self.maskers.items()}
        draw = torch.Generator().manual_seed(7)
        self.changes: dict[int, State] = {
            k: {
                "b": torch.randn(3, 2, generator=draw),
                "a": 0.01 * torch.randn(size, generator=draw),
            }
            for k in self.maskers
        }
        self.masked = {
            k: masker.mask(self.changes[k], k, self.keys, fixed) for k, masker in self.maskers.items()
        }

    def seeds(self, here: Sequence[int]) -> dict[int, Seeds]:
        return {k: self.maskers[k].reveal(here) for k in here}

    def sum_of(self, here: Sequence[int]) -> State:
        return {name: sum(self.changes[k][name].double() for k in here) for name in self.changes[0]}  # type: ignore[misc]


@pytest.mark.parametrize("fixed", [WIDE, NARROW])
@pytest.mark.parametrize("here", [(0, 1, 2, 3), (0, 1, 3), (1, 2, 3)])
def test_the_sum_of_those_that_are_there_is_opened(here: tuple[int, ...], fixed: FixedPoint) -> None:
    round = Round(fixed=fixed)
    total = opened({k: round.masked[k] for k in here}, round.seeds(here), fixed)
    for name, value in round.sum_of(here).items():
        torch.testing.assert_close(total[name], value, rtol=0, atol=len(here) / 2**fixed.fraction)


@pytest.mark.parametrize("fixed", [WIDE, NARROW])
def test_a_masked_change_looks_random(fixed: FixedPoint) -> None:
    """Every bit is set in half of the numbers, whatever the change is: here the same number everywhere."""
    masker, other = Masker(), Masker()
    keys = {0: masker.new_key(), 1: other.new_key()}
    masked = masker.mask({"a": torch.full((20_000,), 0.25)}, 0, keys, fixed)["a"].numpy()
    bits = np.unpackbits(masked.view(np.uint8)).reshape(20_000, fixed.bits)
    share = bits.mean(axis=0)
    assert (np.abs(share - 0.5) < 0.02).all()  # 5.6 standard deviations
    assert len(np.unique(masked)) > 19_990


def test_a_change_that_comes_late_is_not_opened_by_what_was_revealed() -> None:
    round = Round(sites=3)
    seeds = round.seeds([0, 1])
    assert seeds[0].pairs.keys() == seeds[1].pairs.keys() == {2}
    # the server now knows all pairs of site 2, but not its own mask
    pairs = {j: seeds[j].pairs[2] for j in (0, 1)}
    guess = opened({2: round.masked[2]}, {2: Seeds(bytes(32), pairs)}, WIDE)
    assert float((guess["a"] - round.changes[2]["a"]).abs().median()) > 1e6
    own = round.maskers[2]._masked
    assert own is not None
    right = opened({2: round.masked[2]}, {2: Seeds(own[1].own, pairs)}, WIDE)  # so it is this mask that hides
    torch.testing.assert_close(right["a"], round.changes[2]["a"].double(), rtol=0, atol=1e-9)


def test_masks_of_another_round_are_others() -> None:
    maskers = {k: Masker() for k in range(2)}
    changes = {"a": torch.zeros(50)}
    seen = []
    for _ in range(2):
        keys = {k: masker.new_key() for k, masker in maskers.items()}
        seen.append(maskers[0].mask(changes, 0, keys, WIDE)["a"])
    assert not (seen[0] == seen[1]).any()


def test_entries_are_put_in_one_order_whatever_order_they_come_in() -> None:
    round = Round(sites=2)
    backwards = {k: dict(reversed(state.items())) for k, state in round.masked.items()}
    total = opened({0: round.masked[0], 1: backwards[1]}, round.seeds([0, 1]), WIDE)
    torch.testing.assert_close(total["b"], round.sum_of([0, 1])["b"], rtol=0, atol=1e-9)


def test_a_key_masks_once_and_a_sum_is_opened_once() -> None:
    round = Round(sites=3)
    with pytest.raises(Unmaskable, match="has used"):
        round.maskers[0].mask(round.changes[0], 0, round.keys, WIDE)
    round.maskers[0].reveal([0, 1])
    with pytest.raises(Unmaskable, match="has opened it"):
        round.maskers[0].reveal([0, 1, 2])


@pytest.mark.parametrize(
    ("here", "why"),
    [([0], "over 1 of 4"), ([0, 1], "over 2 of 4"), ([1, 2, 3], "not in"), ([0, 1, 2, 9], "not in")],
)
def test_a_site_does_not_open_a_sum_of_few_or_of_others(here: list[int], why: str) -> None:
    with pytest.raises(Unmaskable, match=why):
        Round().maskers[0].reveal(here)


def test_a_site_does_not_mask_for_itself_alone_nor_with_a_stale_or_broken_key() -> None:
    change = {"a": torch.ones(3)}
    masker = Masker()
    with pytest.raises(Unmaskable, match="itself alone"):
        masker.mask(change, 0, {0: masker.new_key()}, WIDE)
    stale = masker.new_key()
    masker.new_key()
    with pytest.raises(Unmaskable, match="has not"):
        masker.mask(change, 0, {0: stale, 1: Masker().new_key()}, WIDE)
    for broken in (b"short", bytes(32)):  # zeros: a point whose secret anybody knows
        with pytest.raises(Unmaskable, match="is none"):
            masker.mask(change, 0, {0: masker.new_key(), 1: broken}, WIDE)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), NARROW.limit / 2])
def test_what_would_wrap_around_is_not_masked(value: float) -> None:
    masker = Masker()
    keys = {0: masker.new_key(), 1: Masker().new_key()}
    with pytest.raises(Unmaskable, match="not below 1024"):
        masker.mask({"a": torch.tensor([0.0, value])}, 0, keys, NARROW)


def test_the_largest_changes_that_are_masked_do_not_wrap_around() -> None:
    most = np.nextafter(np.float32(NARROW.limit / 3), np.float32(0))
    maskers = {k: Masker() for k in range(3)}
    keys = {k: masker.new_key() for k, masker in maskers.items()}
    change = {"a": torch.tensor([most, -most])}
    masked = {k: masker.mask(change, k, keys, NARROW) for k, masker in maskers.items()}
    total = opened(masked, {k: masker.reveal([0, 1, 2]) for k, masker in maskers.items()}, NARROW)
    torch.testing.assert_close(total["a"], 3 * change["a"].double(), rtol=1e-6, atol=0)


def test_a_share_is_by_samples_or_of_the_clipped_change() -> None:
    change = {"a": torch.tensor([3.0, 4.0]), "b": torch.zeros(1)}
    assert share_of(change, samples=6, unit=16.0, clip=None)["a"].tolist() == [18 / 16, 24 / 16]
    assert share_of(change, samples=6, unit=4.0, clip=1.0)["a"].tolist() == pytest.approx([0.15, 0.2])
    assert share_of(change, samples=6, unit=4.0, clip=9.0)["a"].tolist() == [0.75, 1.0]


def test_the_digest_tells_when_one_site_got_another_key() -> None:
    keys = {0: b"a" * 32, 1: b"b" * 32}
    assert digest_of(keys) == digest_of(dict(reversed(keys.items())))
    assert digest_of(keys) != digest_of(keys | {1: b"c" * 32})
