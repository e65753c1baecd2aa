"""Choosing training samples to hold out as validation data, in the place of the test sets."""

import numpy as np
import numpy.typing as npt

from fedgela.data.dataset import Dataset
from fedgela.data.partition import Owners
from fedgela.data.split import places
from fedgela.errors import UserError

Mask = npt.NDArray[np.bool_]


def hold_out(
    data: Dataset, owner: Owners, clients: int, share: float, rng: np.random.Generator
) -> tuple[Mask, Mask]:
    """Two masks: the samples that are kept for training, and those that are held out.

    Of every client a random `share` is held out, rounded down; groups as a whole or not at all. Of text it is
    the last share of a client's windows, and windows that overlap with held-out ones are in neither mask.
    """
    text, group = data.kind == "tokens", data.group_train
    if group is not None:
        held_out = _whole_groups(owner, group, clients, share, rng)
    else:
        rank = -np.arange(len(owner)) if text else rng.random(len(owner))
        held_out = _first_share(owner, rank, clients, share)
    if not held_out.any():
        what = "sample" if group is None else "group"
        raise UserError(f"validation: {share:g} of a client's training samples is not one {what}")
    kept = ~held_out & ~_overlapping(data, held_out) if text else ~held_out
    if not kept.any():
        raise UserError(f"validation: {share:g} leaves no window of text that overlaps none held out")
    return kept, held_out


def _first_share(owner: Owners, rank: npt.NDArray[np.generic], clients: int, share: float) -> Mask:
    """The first `share` of every client's samples by their rank."""
    sizes = np.bincount(owner, minlength=clients)
    order = np.lexsort((rank, owner))
    wanted = np.floor(share * sizes + 1e-9).astype(np.int64)  # 0.29 * 100 is just below 29 in floats
    mask = np.zeros(len(owner), dtype=bool)
    mask[order] = places(sizes) < np.repeat(wanted, sizes)
    return mask


def _whole_groups(
    owner: Owners, group: npt.NDArray[np.integer], clients: int, share: float, rng: np.random.Generator
) -> Mask:
    """Random groups of every client, as many as come nearest to `share` of its samples, but never all of
    them. A group that several clients have samples of counts for the owner of its first sample."""
    _, first, place, size = np.unique(group, return_index=True, return_inverse=True, return_counts=True)
    home = owner[first]
    order = np.lexsort((rng.random(len(first)), home))
    home, size = home[order], size[order]
    total = np.bincount(home, weights=size, minlength=clients)
    end = np.cumsum(size) - (np.cumsum(total) - total)[home]
    held_out = np.zeros(len(first), dtype=bool)
    held_out[order] = (end - size / 2 <= np.floor(share * total + 1e-9)[home]) & (end < total[home])
    return held_out[place]


def _overlapping(data: Dataset, held_out: Mask) -> Mask:
    """The windows of text that share characters with a held-out one. Consecutive windows of a passage are
    shifted by one character, and the character to be predicted is part of its window."""
    x, length = data.x_train, data.x_train.shape[1]
    goes_on = (x[1:, :-1] == x[:-1, 1:]).all(dim=1) & (x[1:, -1] == data.y_train[:-1])
    passage = np.concatenate([[0], np.cumsum(~goes_on.numpy())])
    place = np.arange(len(held_out))
    before = np.maximum.accumulate(np.where(held_out, place, 0))
    after = np.minimum.accumulate(np.where(held_out, place, place[-1])[::-1])[::-1]
    near = np.zeros(len(held_out), dtype=bool)
    for other in (before, after):
        near |= held_out[other] & (passage[other] == passage) & (np.abs(other - place) <= length)
    return near
