"""The layer-peeled model with Phi_k: the structure that a client's features take (the paper's Figure 3c).

A client has the classes C_k, m of C, and its classifier is Phi_k W with W = sqrt(E_W) M. Its loss sums
over the classes present (Eq. 5), or over all classes, of which the missing ones have logit 0 (Phi_kc = 0).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedgela.geometry import angle_matrix, mean_angle, phi, simplex_etf
from fedgela.measures import etf_angle
from fedgela.theory.layer_peeled import best_features

DIRECTIONS = 3600  # on the circle, to measure shares of it


def local_features(
    counts: Sequence[int],
    d: int,
    E_W: float,
    E_H: float,
    seed: int,
    only_present: bool,
    form: str = "power:1",
) -> tuple[Tensor, float]:
    """The features [m, d] of a client's classes that minimise its loss, and the solver's residual.

    `form` is Phi's: "power:1" FedGELA, "power:0" FedGE. `only_present` sums over C_k alone (Eq. 5).
    """
    M = simplex_etf(d, len(counts), seed, torch.float64).T
    return _features(counts, _adapted(counts, M, E_W, form), E_H, seed, only_present)


def _adapted(counts: Sequence[int], M: Tensor, E_W: float, form: str) -> Tensor:
    """Phi_k W of the ETF M, [C, d]."""
    lengths = phi(torch.tensor(counts), form).double()
    return lengths[:, None] * math.sqrt(E_W) * M


def _features(
    counts: Sequence[int], W: Tensor, E_H: float, seed: int, only_present: bool
) -> tuple[Tensor, float]:
    present = [c for c, n in enumerate(counts) if n > 0]
    if only_present:
        return best_features(torch.arange(len(present)), W[present], E_H, seed)
    return best_features(torch.tensor(present), W, E_H, seed)


def predicted_cosine(C: int, m: int, E_W: float, E_H: float, only_present: bool) -> float:
    """cos between the features of two of the m classes that a client has in equal shares (Phi_kc = C / m).

    At the minimum h_c is parallel to the negative gradient, which by symmetry is m_c - q S_c: S_c is the sum
    of the other present classes' m, q = p_other / (1 - p_own). Over the classes present q = 1/(m-1), so that
    the features are a simplex ETF of their own, with cosine -1/(m-1). Where missing classes count with logit
    0, 1 - p_own = (m-1) p_other + (C-m) p_missing, so that q = 1 / (m-1 + (C-m) e^-z) with z = w_c'^T h_c,
    the logit of another present class: one equation for q, solved by bisection.
    """
    if m < 2:
        raise ValueError(f"an angle takes two classes, not {m}")
    if only_present:
        return -1 / (m - 1)
    r = -1 / (C - 1)  # m_c^T m_c'
    scale = C / m * math.sqrt(E_W * E_H)

    def products(q: float) -> tuple[float, float, float]:
        """v^T m_c, v^T m_c' and |v|^2 of v = m_c - q S_c."""
        own, other = 1 - q * (m - 1) * r, r - q * (1 + (m - 2) * r)
        return own, other, own - q * (m - 1) * other

    low, high = 0.0, 1 / (m - 1)
    for _ in range(100):
        q = (low + high) / 2
        _, other, square = products(q)
        z = scale * other / math.sqrt(square)
        if q < 1 / (m - 1 + (C - m) * math.exp(min(-z, 700.0))):
            low = q
        else:
            high = q
    own, other, square = products(q)
    # v_c^T v_c' = v_c^T m_c' - q v_c^T S_c', where S_c' holds m_c and the m-2 others
    return (other - q * (own + (m - 2) * other)) / square


@dataclass(frozen=True)
class Spread:
    """Mean angle in degrees between the features of a client's m classes, equal shares."""

    classes: int  # m
    global_etf: float  # what FedGE gives: all C classes in the loss, Phi = 1
    measured_ge: float
    measured_eq5: float
    predicted_eq5: float
    measured_all: float
    predicted_all: float
    residual: float


def spread(C: int, m: int, d: int, E_W: float, E_H: float, seed: int) -> Spread:
    counts = [1] * m + [0] * (C - m)
    angle, residuals = [], []
    for form, only_present in (("power:0", False), ("power:1", True), ("power:1", False)):
        H, residual = local_features(counts, d, E_W, E_H, seed, only_present, form)
        angle.append(float(mean_angle(angle_matrix(H), torch.ones(m, dtype=torch.bool))))
        residuals.append(residual)
    predicted = [_degrees(predicted_cosine(C, m, E_W, E_H, only)) for only in (True, False)]
    return Spread(m, etf_angle(C), angle[0], angle[1], predicted[0], angle[2], predicted[1], max(residuals))


def _degrees(cosine: float) -> float:
    return math.degrees(math.acos(max(-1.0, min(1.0, cosine))))


# -- three classes, which can be drawn -------------------------------------------------------------


@dataclass(frozen=True)
class Plane:
    """A client of three classes in the plane of their ETF: vectors [3, 2], features of its classes [m, 2]."""

    title: str
    counts: list[int]
    Phi_W: Tensor  # Phi_k W, [3, 2]; a missing class's has no length
    H: Tensor  # [m, 2]
    share: list[float]  # of all directions, those whose largest logit is the class's, missing ones left out


def plane(title: str, counts: Sequence[int], E_W: float, E_H: float, form: str, only_present: bool) -> Plane:
    angles = torch.tensor([90.0, 210.0, 330.0], dtype=torch.float64).deg2rad()
    M = torch.stack([angles.cos(), angles.sin()], dim=1)  # the simplex ETF of 3 classes lies in a plane
    W = _adapted(counts, M, E_W, form)
    H, _ = _features(counts, W, E_H, 0, only_present)
    turn = (torch.arange(DIRECTIONS, dtype=torch.float64) + 0.5) * 2 * math.pi / DIRECTIONS
    logits = torch.stack([turn.cos(), turn.sin()], dim=1) @ W.T
    absent = torch.tensor([n == 0 for n in counts]) & only_present
    winner = logits.masked_fill(absent, -math.inf).argmax(dim=1)
    share = (torch.bincount(winner, minlength=3).double() / DIRECTIONS).tolist()
    return Plane(title, list(counts), W, H, share)


def planes(E_W: float, E_H: float) -> list[Plane]:
    """The global ETF; a client without the third class under FedGE and FedGELA; one of unequal shares."""
    return [
        plane("Global: ETF, all classes", [1, 1, 1], E_W, E_H, "power:0", False),
        plane("Local, FedGE: class 3 missing", [1, 1, 0], E_W, E_H, "power:0", False),
        plane("Local, FedGELA: class 3 missing, Eq. 5", [1, 1, 0], E_W, E_H, "power:1", True),
        plane("Local, FedGELA: class 3 missing, all classes", [1, 1, 0], E_W, E_H, "power:1", False),
        plane("Local, FedGELA: shares 60/30/10%", [6, 3, 1], E_W, E_H, "power:1", True),
    ]
