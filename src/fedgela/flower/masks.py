"""Masks that hide every single update, and cancel in their sum.

Bonawitz et al., Practical Secure Aggregation for Privacy-Preserving Machine Learning, CCS 2017. To its change
x_k, in whole numbers modulo 2^b, site k adds a mask of its own and one for each other site j of the round:

    y_k = x_k + PRG(b_k) + sum_{j > k} PRG(s_kj) - sum_{j < k} PRG(s_kj)

Only the two sites know s_kj (X25519, with keys that are made for one round), so that y_k tells the server
nothing, and in the sum over all sites the masks of pairs cancel. Then each site whose y_k has come reveals
b_k, and s_kj of every site j whose y_j has not: what remains is the sum over those that have. A y_j that
comes late is still masked by b_j.

Bonawitz et al. also deal out shares of the seeds, so that others can reveal those of a site that ends in the
seconds between y_k and b_k. Here such a round is lost: it is not opened, and the global model stays.

This is against a server that keeps to the protocol and looks at all that it gets. One that tells sites
different things of each other could open an update.
"""

import hashlib
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from fedgela.flower.privacy import clip_factor
from fedgela.flower.wire import Wire
from fedgela.models import State

SEED_BYTES = 32
FEWEST = 2  # sites of a sum; each of two can work out the other's part, but the server cannot

Whole = NDArray[np.unsignedinteger[Any]]


class Unmaskable(Exception):
    """Why a site does not mask, or does not reveal; it names nothing of the site's data."""


@dataclass(frozen=True)
class FixedPoint:
    """Numbers as whole multiples of 2^-fraction, modulo 2^bits."""

    bits: int
    fraction: int

    @property
    def limit(self) -> float:
        """A sum must stay below this, or it wraps around."""
        return float(2 ** (self.bits - 1 - self.fraction))

    @property
    def unsigned(self) -> np.dtype[Any]:
        """The type that wraps around."""
        return np.dtype(f"<u{self.bits // 8}")

    @property
    def dtype(self) -> torch.dtype:
        """Of such numbers in tensors, which are signed."""
        return torch.int64 if self.bits == 64 else torch.int32

    def whole(self, values: NDArray[np.float64]) -> Whole:
        """`values` are finite and below the limit."""
        signed: Whole = np.rint(values * 2.0**self.fraction).astype(f"<i{self.bits // 8}")
        return signed.view(self.unsigned)

    def numbers(self, whole: Whole) -> NDArray[np.float64]:
        return np.ldexp(whole.view(f"<i{self.bits // 8}").astype(np.float64), -self.fraction)


# masked numbers are as random as their masks and cannot be rounded: they take twice the wire's bits
FIXED_POINT: Mapping[Wire, FixedPoint] = {
    "fp32": FixedPoint(bits=64, fraction=32),
    "bf16": FixedPoint(bits=32, fraction=20),
    "fp16": FixedPoint(bits=32, fraction=20),
}


@dataclass(frozen=True)
class Seeds:
    """What a site reveals after a round: of its own mask, and of those that it has with absent sites."""

    own: bytes
    pairs: Mapping[int, bytes]


class Masker:
    """A site's part. A key masks a single round, since two changes under the same mask would tell their
    difference; it lies in memory only, and a site that is started anew is asked for another."""

    def __init__(self) -> None:
        self._key: X25519PrivateKey | None = None
        self._masked: tuple[int, Seeds] | None = None  # of this round, by this site

    def new_key(self) -> bytes:
        """The public half of the key for the next round."""
        self._key = X25519PrivateKey.generate()
        self._masked = None
        return _public(self._key)

    def mask(self, change: State, site: int, keys: Mapping[int, bytes], fixed: FixedPoint) -> State:
        """y_k of x_k; `keys` are the public ones of all sites of the round."""
        key, self._key = self._key, None
        if key is None or keys.get(site) != _public(key):
            raise Unmaskable("was asked to mask with a key that it has not, or has used (was it restarted?)")
        if len(keys) < FEWEST:
            raise Unmaskable("was asked for a sum over itself alone")
        values = _flat(change).astype(np.float64)
        most = fixed.limit / len(keys)  # or the sum could wrap around
        if not (np.abs(values) < most).all():  # nor where it is NaN
            raise Unmaskable(f"its change has values that are not below {most:g}, and cannot be masked")
        pairs = {j: _shared(key, public) for j, public in keys.items() if j != site}
        seeds = Seeds(secrets.token_bytes(SEED_BYTES), pairs)
        masked = fixed.whole(values)
        _add_masks(masked, site, seeds, sign=1)
        self._masked = site, seeds
        return _shaped(masked.view(f"<i{fixed.bits // 8}"), like=change)

    def reveal(self, answered: Collection[int]) -> Seeds:
        """Once, and for one set of sites: with seeds for two sets, one update could be told from the other
        sum."""
        masked, self._masked = self._masked, None
        if masked is None:
            raise Unmaskable("has no masked update to open, or has opened it")
        site, seeds = masked
        everybody = {site, *seeds.pairs}
        if site not in answered or not everybody.issuperset(answered):
            raise Unmaskable("was asked to open a sum that it is not in")
        if len(answered) < FEWEST or 2 * len(answered) <= len(everybody):
            raise Unmaskable(f"does not open a sum over {len(answered)} of {len(everybody)} sites")
        return Seeds(seeds.own, {j: seed for j, seed in seeds.pairs.items() if j not in answered})


def share_of(change: State, samples: int, unit: float, clip: float | None) -> State:
    """A site's part of the sum, x_k: its change by its number of samples, or its clipped change."""
    factor = (samples if clip is None else clip_factor(change, clip)) / unit
    return {name: value.double() * factor for name, value in change.items()}


def digest_of(keys: Mapping[int, bytes]) -> str:
    """Of the keys of a round. Where it is the same in all sites' logs, the server gave all the same keys."""
    digest = hashlib.sha256(b"".join(site.to_bytes(8, "big") + keys[site] for site in sorted(keys)))
    return f"keys {digest.hexdigest()[:16]}"


def opened(masked: Mapping[int, State], seeds: Mapping[int, Seeds], fixed: FixedPoint) -> State:
    """sum_k x_k over the sites whose y_k is here, from the seeds that all of them revealed; float64."""
    total = np.sum([_flat(y).view(fixed.unsigned) for y in masked.values()], axis=0, dtype=fixed.unsigned)
    for site in masked:
        _add_masks(total, site, seeds[site], sign=-1)
    return _shaped(fixed.numbers(total), like=next(iter(masked.values())))


def _add_masks(vector: Whole, site: int, seeds: Seeds, sign: int) -> None:
    """The site's own mask and those of its pairs, added in place or, with sign -1, taken away."""
    _add(vector, seeds.own, sign)
    for j, seed in seeds.pairs.items():
        _add(vector, seed, sign if j > site else -sign)


def _add(vector: Whole, seed: bytes, sign: int) -> None:
    """Unsigned numbers wrap around, as they should."""
    zeros = bytes(vector.nbytes)
    stream = Cipher(algorithms.AES256(seed), modes.CTR(bytes(16))).encryptor().update(zeros)
    mask = np.frombuffer(stream, dtype=vector.dtype)
    (np.add if sign > 0 else np.subtract)(vector, mask, out=vector)


def is_public_key(half: bytes) -> bool:
    """Whether a site can mask with it: some points give every site a secret that anybody knows."""
    try:
        _shared(X25519PrivateKey.generate(), half)
    except Unmaskable:
        return False
    return True


def _shared(key: X25519PrivateKey, public: bytes) -> bytes:
    """s_kj, which both sites make of their own key and the other's public one."""
    try:
        secret = key.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise Unmaskable("was given another site's key that is none") from None
    seed: bytes = HKDF(hashes.SHA256(), SEED_BYTES, salt=None, info=b"fedgela mask of a pair").derive(secret)
    return seed


def _public(key: X25519PrivateKey) -> bytes:
    half: bytes = key.public_key().public_bytes_raw()
    return half


def _flat(state: State) -> NDArray[Any]:
    """In the order of the names, which is the same on all sites and on the server."""
    parts = [state[name].detach().cpu().flatten().numpy() for name in sorted(state)]
    return np.concatenate(parts) if parts else np.zeros(0)


def _shaped(vector: NDArray[Any], like: State) -> State:
    result, at = {}, 0
    for name in sorted(like):
        size = like[name].numel()
        result[name] = torch.from_numpy(vector[at : at + size]).view(like[name].shape)
        at += size
    return result
