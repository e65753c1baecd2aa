"""Randomness that is addressed, not consumed.

Every draw comes from a generator seeded by its address, (seed, purpose, round, client, epoch), so a
resumed run, another engine or another number of lanes sees the same clients, batches and noise.
"""

import hashlib

import numpy as np
import torch


def seed_of(*address: int | str) -> int:
    """A 63-bit seed for an address such as (seed, "batches", round, client, epoch)."""
    plain = tuple(part if isinstance(part, str) else int(part) for part in address)  # numpy's ints too
    digest = hashlib.blake2b(repr(plain).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator(*address: int | str) -> torch.Generator:
    return torch.Generator().manual_seed(seed_of(*address))


def numpy_generator(*address: int | str) -> np.random.Generator:
    return np.random.default_rng(seed_of(*address))
