"""Randomness that is addressed, not consumed.

Every draw comes from a generator that is seeded by the draw's address, (seed, purpose, round, client, epoch).
So a resumed run, another engine or another number of lanes draws the same clients, batches and noise.
"""

import hashlib

import numpy as np
import torch
from torch import Tensor


def seed_of(*address: int | str) -> int:
    """A 63-bit seed for an address such as (seed, "batches", round, client, epoch)."""
    plain = tuple(part if isinstance(part, str) else int(part) for part in address)  # numpy's ints too
    digest = hashlib.blake2b(repr(plain).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator(*address: int | str) -> torch.Generator:
    return torch.Generator().manual_seed(seed_of(*address))


def numpy_generator(*address: int | str) -> np.random.Generator:
    return np.random.default_rng(seed_of(*address))


def seed_torch(seed: int) -> None:
    """As torch.manual_seed, but quicker on a machine without accelerators. There torch.manual_seed keeps a
    stack trace for every kind of accelerator, which takes longer than a small client's training step."""
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


def uniform(draw: Tensor, stream: int, shape: tuple[int, ...]) -> Tensor:
    """Numbers in [0, 1), float32 of this shape, from a counter-based hash of the draw's number.

    For draws inside a training step: tensor operations only, the same on CPU and GPU, and `draw` (an
    int64 scalar) may change between the replays of a captured step. `stream` tells apart the draws of
    one step.
    """
    count = torch.Size(shape).numel()
    counter = torch.arange(count, device=draw.device)
    bits = _mix(_mix(draw + _signed(stream * _GOLDEN % 2**64)) ^ (counter * _signed(_GOLDEN)))
    return ((bits >> 40) & 0xFFFFFF).float().mul_(2.0**-24).view(shape)  # 24 bits fill a float32


def _signed(constant: int) -> int:
    return constant - (1 << 64) if constant >> 63 else constant


_GOLDEN = 0x9E3779B97F4A7C15


def _mix(x: Tensor) -> Tensor:
    """splitmix64's finaliser. int64 products wrap; >> is arithmetic: the masks clear copies of the sign."""
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * _signed(0x94D049BB133111EB)
    return x ^ ((x >> 31) & 0x1FFFFFFFF)
