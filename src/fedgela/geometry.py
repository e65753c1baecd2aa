"""Simplex ETF, Phi and angles: pure functions on tensors, in the paper's symbols.

C is the number of classes, d the dimension of the features, M (d x C) the ETF with one column a class.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedgela.errors import UserError
from fedgela.randomness import generator


def simplex_etf(d: int, C: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """M = sqrt(C / (C-1)) U (I - 11^T / C), [d, C]: unit columns, every pairwise cosine -1/(C-1).

    U (d x C, U^T U = I) is the Q of a normal matrix drawn from the ETF's own seed.
    """
    if C < 2:
        raise UserError(f"a simplex ETF needs at least 2 classes, not {C}")
    if d < C:
        raise UserError(
            f"a simplex ETF of {C} classes needs a projection of at least {C} dimensions, not {d}"
        )
    normal = torch.randn(d, C, generator=generator(seed, "etf"), dtype=torch.float64)
    U, _ = torch.linalg.qr(normal)
    # centring U's columns is U (I - 11^T / C), without the C x C matrix
    M: Tensor = (C / (C - 1)) ** 0.5 * (U - U.mean(dim=1, keepdim=True))
    return M.to(dtype)


# Q of the paper's normalised forms of Phi
NORMALISED: dict[str, Callable[[Tensor], Tensor]] = {
    "paper-linear": lambda x: x,
    "paper-sqrt": torch.sqrt,
    "paper-exp": torch.exp,
}


@dataclass(frozen=True)
class PhiForm:
    """How long a client's vector of class c is, from the class's share x = n_kc / n_k on it.

    `power:p` is (C x)^p: p = 1 the paper's Phi, p = 0 FedGE. `exp` is e^x. `even` is C / |C_k| for each of
    the |C_k| classes that the client has, however much of each: the paper's Phi where these are balanced.
    All are computed on the client, and nothing is shared. The `paper-` forms are the paper's normalised ones,
    Q(x) / sum_k p_k Q(x_k), so that sum_k p_k Phi_k = 1; they need every client's Q(x_k) on the server.
    `paper-linear`, Q(x) = x, is (n_kc / n_k) / (n_c / n), which is `power:1` where all clients together have
    as much of every class.
    """

    kind: str
    power: float = 1.0

    @classmethod
    def parse(cls, text: str) -> "PhiForm":
        if text in ("exp", "even", *NORMALISED):
            return cls(text)
        kind, _, value = text.partition(":")
        try:
            power = float(value)
        except ValueError:
            power = -1.0
        if kind != "power" or not 0 <= power <= 10:
            raise ValueError(
                "phi is 'power:p' with p from 0 to 10, 'exp', 'even', 'paper-linear', 'paper-sqrt' or "
                f"'paper-exp', not {text!r}"
            )
        return cls("power", power)

    @property
    def shares(self) -> bool:
        """Whether the server must know the clients' Q(x_k)."""
        return self.kind in NORMALISED

    def Q(self, counts: Tensor) -> Tensor:
        """Q(x), [..., C], from class counts [..., C]. A client without samples counts as one that has equally
        many of all classes."""
        C, n = counts.shape[-1], counts.sum(dim=-1, keepdim=True)
        x = torch.where(n > 0, counts.double() / n.clamp(min=1), 1 / C)
        if self.kind in NORMALISED:
            return NORMALISED[self.kind](x)
        if self.kind == "exp":
            return x.exp()
        if self.kind == "even":
            x = (x > 0).double() / (x > 0).sum(dim=-1, keepdim=True)
        return (C * x) ** self.power


def phi(
    counts: Tensor, form: str = "power:1", floor: float = 0.0, normaliser: Tensor | None = None
) -> Tensor:
    """Phi_k, [..., C], of clients with these class counts [..., C].

    `normaliser` is sum_k p_k Q(x_k), [C], for the `paper-` forms. `floor` is the least length of a vector;
    above 0 a class that a client lacks stays predictable.
    """
    parsed = PhiForm.parse(form)
    lengths = parsed.Q(counts)
    if parsed.shares:
        if normaliser is None:
            raise ValueError(f"phi {form!r} needs the normaliser sum_k p_k Q(x_k)")
        # a class that nobody has may get Q = 0 everywhere: its length is 0, not 0/0
        lengths = torch.where(
            normaliser > 0, lengths / normaliser.clamp(min=1e-300), torch.zeros_like(lengths)
        )
    return lengths.clamp(min=floor).float()


def angle_matrix(vectors: Tensor) -> Tensor:
    """Pairwise angles in degrees, [..., C, C], of vectors [..., C, d]; NaN where one has no length."""
    v = vectors.double()
    length = v.norm(dim=-1, keepdim=True)
    unit = torch.where(length > 0, v / length, torch.full_like(v, torch.nan))
    return torch.rad2deg(torch.acos((unit @ unit.mT).clamp(-1.0, 1.0)))


def mean_angle(angles: Tensor, members: Tensor) -> Tensor:
    """Mean angle, [...], over the pairs of distinct classes that are both members.

    `angles` is [..., C, C], `members` a mask [..., C]. Pairs without an angle are left out; NaN where
    no pair is left.
    """
    C = angles.shape[-1]
    distinct = ~torch.eye(C, dtype=torch.bool, device=angles.device)
    pairs = members[..., :, None] & members[..., None, :] & distinct & ~angles.isnan()
    total = torch.where(pairs, angles, torch.zeros_like(angles)).sum(dim=(-2, -1))
    return total / pairs.sum(dim=(-2, -1))  # 0 / 0 is NaN: no pair, no angle


def class_angles(vectors: Tensor, present: Tensor) -> dict[str, Tensor]:
    """Mean angles of classifier vectors or class means [..., C, d], each [...]:

    `existing` among the classes present on a client (mask [..., C]), `missing` among those it lacks,
    `all` among all classes.
    """
    angles = angle_matrix(vectors)
    return {
        "existing": mean_angle(angles, present),
        "missing": mean_angle(angles, ~present),
        "all": mean_angle(angles, torch.ones_like(present)),
    }


def class_means(features: Tensor, labels: Tensor, C: int) -> Tensor:
    """Mean feature of every class, [C, d], of features [n, d]; zero for a class without samples."""
    sums = features.new_zeros(C, features.shape[1]).index_add_(0, labels, features)
    counts = torch.bincount(labels, minlength=C).to(features.dtype)
    return sums / counts.clamp(min=1)[:, None]
