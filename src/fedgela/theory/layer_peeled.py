"""The layer-peeled model (appendix A): features and classifier vectors are free but for their lengths.

    min over H, W of  sum_i a_i CE(h_i, W),   |w_c|^2 <= E_W,  |h_i|^2 <= E_H,   CE = -log softmax(W^T h)_y

a_i is sample i's weight, 1/n in the paper. For a given W all samples of a class face the same convex
problem, so that one feature with weight n_c / n stands for the n_c samples of an imbalanced class.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedgela.geometry import angle_matrix, mean_angle, simplex_etf
from fedgela.randomness import generator
from fedgela.theory.cross_entropy import cross_entropies, errors

STEPS = 6000
TOLERANCE = 1e-10  # of a step, relative to the lengths sqrt(E_H) and sqrt(E_W)


@dataclass(frozen=True)
class Solution:
    """Features H [..., n, d] and classifier vectors W [..., C, d] of one problem or of several at once."""

    H: Tensor
    W: Tensor
    loss: Tensor  # [...]
    residual: float  # the longest step that projected gradient would still make, relative to the lengths


def cross_entropy(H: Tensor, W: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """sum_i a_i (-log softmax(W h_i)_y), [...], with the labels [n] and the weights a [..., n]."""
    return (cross_entropies(H @ W.mT, labels) * weights).sum(dim=-1)


def gradients(H: Tensor, W: Tensor, labels: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """dloss/dh_i / a_i = W^T (softmax - e_y) of every feature, and dloss/dW."""
    error = errors(H @ W.mT, labels)
    return error @ W, (error * weights[..., None]).mT @ H


def into_ball(vectors: Tensor, radius: float) -> Tensor:
    length = vectors.norm(dim=-1, keepdim=True)
    inside: Tensor = vectors * (radius / length.clamp(min=radius))
    return inside


def solve(
    labels: Tensor,
    weights: Tensor,
    d: int,
    E_W: float,
    E_H: float,
    seed: int,
    W: Tensor | None = None,
) -> Solution:
    """Minimise by accelerated projected gradient, which starts anew whenever it overshoots.

    `weights` [..., n] may describe several problems with the same labels. A given `W` [C, d] stays
    fixed. A feature's step is divided by its weight, so that minority samples go as fast as the others.
    """
    C = int(labels.max()) + 1 if W is None else W.shape[-2]
    draw = generator(seed, "layer-peeled")
    batch = weights.shape[:-1]
    # one start for all problems: what differs between them is then the weights alone
    H = into_ball(torch.randn(len(labels), d, generator=draw, dtype=torch.float64), math.sqrt(E_H))
    H = H.expand(*batch, -1, -1).clone()
    learns_W = W is None
    if W is None:
        W = into_ball(torch.randn(C, d, generator=draw, dtype=torch.float64), math.sqrt(E_W))
    W = W.expand(*batch, -1, -1).clone()
    # diag(p) - pp^T <= 1/2: curvature at most |W|^2 / 2 for a feature, E_H / 2 for W; twice for both at once
    step_H, step_W = 1 / (E_W * C / (C - 1)), 1 / E_H
    look_H, look_W, momentum = H, W, torch.ones(*batch, 1, 1, dtype=torch.float64)
    residual = math.inf
    for step in range(1, STEPS + 1):
        to_H, to_W = gradients(look_H, look_W, labels, weights)
        new_H = into_ball(look_H - step_H * to_H, math.sqrt(E_H))
        new_W = into_ball(look_W - step_W * to_W, math.sqrt(E_W)) if learns_W else W
        uphill = _dot(look_H - new_H, new_H - H) + _dot(look_W - new_W, new_W - W) > 0
        momentum, push = _accelerated(momentum, uphill)
        look_H, look_W = new_H + push * (new_H - H), new_W + push * (new_W - W)
        H, W = new_H, new_W
        if step % 50 == 0 or step == STEPS:
            to_H, to_W = gradients(H, W, labels, weights)
            moved = (into_ball(H - step_H * to_H, math.sqrt(E_H)) - H).norm(dim=-1).max() / math.sqrt(E_H)
            if learns_W:
                moved_W = (into_ball(W - step_W * to_W, math.sqrt(E_W)) - W).norm(dim=-1).max()
                moved = torch.maximum(moved, moved_W / math.sqrt(E_W))
            residual = float(moved)
            if residual < TOLERANCE:
                break
    return Solution(H, W, cross_entropy(H, W, labels, weights), residual)


def best_features(labels: Tensor, W: Tensor, E_H: float, seed: int) -> tuple[Tensor, float]:
    """Features H [n, d] that minimise CE(h_i, W) with W [C, d] fixed, and the residual of `solve`.

    Every feature has a problem of its own, and log CE has CE's minimiser. Its gradient,
    (1 - p_y) / CE (sum_{c != y} p_c / (1 - p_y) w_c - w_y), does not vanish where long classifier vectors
    make the loss tiny, which is where CE's own would stop moving long before the minimum.
    """
    n, d = len(labels), W.shape[1]
    own = torch.nn.functional.one_hot(labels, len(W)).bool()
    H = torch.randn(n, d, generator=generator(seed, "layer-peeled"), dtype=torch.float64)
    H = into_ball(H, math.sqrt(E_H))
    step = 1 / (2 * float((W**2).sum(dim=1).max()))
    residual = math.inf
    look, momentum = H, torch.ones(n, 1, dtype=torch.float64)
    for _ in range(STEPS):
        new = into_ball(look - step * _log_loss_gradient(look, W, own), math.sqrt(E_H))
        uphill = ((look - new) * (new - H)).sum(dim=1, keepdim=True) > 0
        momentum, push = _accelerated(momentum, uphill)
        look = new + push * (new - H)
        H = new
        moved = into_ball(H - step * _log_loss_gradient(H, W, own), math.sqrt(E_H)) - H
        residual = float(moved.norm(dim=1).max()) / math.sqrt(E_H)
        if residual < TOLERANCE:
            break
    return H, residual


def _log_loss_gradient(H: Tensor, W: Tensor, own: Tensor) -> Tensor:
    logits = H @ W.T
    others = logits.masked_fill(own, -math.inf)
    margin = others.logsumexp(dim=1, keepdim=True) - logits[own][:, None]  # CE = log(1 + e^margin)
    rate = torch.where(margin < -30, 1.0, margin.sigmoid() / torch.nn.functional.softplus(margin))
    return rate * (others.softmax(dim=1) @ W - own.double() @ W)


def _accelerated(momentum: Tensor, uphill: Tensor) -> tuple[Tensor, Tensor]:
    """Nesterov's next momentum, and by how much of the last step the next gradient is taken ahead; both start
    anew where the last step went uphill."""
    following = torch.where(uphill, 1.0, (1 + (1 + 4 * momentum**2).sqrt()) / 2)
    return following, torch.where(uphill, 0.0, (momentum - 1) / following)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(dim=(-2, -1), keepdim=True)


# -- Lemmas 1 and 2 --------------------------------------------------------------------------------


def etf_head(C: int, d: int, E_W: float, seed: int) -> Tensor:
    """W = sqrt(E_W) M, [C, d]."""
    return math.sqrt(E_W) * simplex_etf(d, C, seed, torch.float64).T


def etf_loss(C: int, E_W: float, E_H: float) -> float:
    """Cross-entropy at the ETF: log(1 + (C-1) exp(-C/(C-1) sqrt(E_W E_H))), the least on balanced data."""
    return math.log1p((C - 1) * math.exp(-C / (C - 1) * math.sqrt(E_W * E_H)))


@dataclass(frozen=True)
class Structure:
    """How far a solution is from h_c / sqrt(E_H) = w_c / sqrt(E_W) = m_c; all but `loss` is 0 there."""

    W_cosine_error: float  # largest |cos(w_c, w_c') + 1/(C-1)|
    H_cosine_error: float  # largest |cos(h_c, h_c') + 1/(C-1)| of the class means
    length_error: float  # largest |1 - |h| / sqrt(E_H)| or |1 - |w| / sqrt(E_W)|
    duality_error: float  # NC3: largest |h_c / |h_c| - w_c / |w_c||
    variability: float  # NC1: largest distance of a feature from its class mean, over sqrt(E_H)
    loss: float


def structure_of(found: Solution, labels: Tensor, E_W: float, E_H: float) -> Structure:
    """Of a solution of one problem, in which every class has the same number of features."""
    C = found.W.shape[-2]
    means = torch.stack([found.H[labels == c].mean(dim=0) for c in range(C)])
    lengths = torch.cat([found.H.norm(dim=-1) / math.sqrt(E_H), found.W.norm(dim=-1) / math.sqrt(E_W)])
    duality = torch.nn.functional.normalize(means, dim=-1) - torch.nn.functional.normalize(found.W, dim=-1)
    return Structure(
        W_cosine_error=cosine_error(found.W),
        H_cosine_error=cosine_error(means),
        length_error=float((lengths - 1).abs().max()),
        duality_error=float(duality.norm(dim=-1).max()),
        variability=float((found.H - means[labels]).norm(dim=-1).max() / math.sqrt(E_H)),
        loss=float(found.loss),
    )


def cosine_error(vectors: Tensor) -> float:
    """Largest |cos + 1/(C-1)| over pairs of different vectors [C, d]."""
    unit = torch.nn.functional.normalize(vectors, dim=-1)
    C = len(unit)
    error = (unit @ unit.T + 1 / (C - 1)).abs()
    return float(error[~torch.eye(C, dtype=torch.bool)].max())


def class_weights(counts: Sequence[float]) -> Tensor:
    """a_c = n_c / n for one feature a class."""
    n = torch.tensor(counts, dtype=torch.float64)
    return n / n.sum()


def lemma_1(C: int, per_class: int, d: int, E_W: float, E_H: float, seed: int) -> tuple[Solution, Structure]:
    """Balanced data, every sample with its own free feature, W learnt."""
    labels = torch.arange(C).repeat_interleave(per_class)
    weights = torch.full((len(labels),), 1 / len(labels), dtype=torch.float64)
    found = solve(labels, weights, d, E_W, E_H, seed)
    return found, structure_of(found, labels, E_W, E_H)


def lemma_2(counts: Sequence[float], d: int, E_W: float, E_H: float, seed: int) -> tuple[Solution, Structure]:
    """Imbalanced data, W fixed as the ETF: one feature a class, weighted by its count."""
    return imbalanced(counts, d, E_W, E_H, seed, etf_head(len(counts), d, E_W, seed))


def imbalanced(
    counts: Sequence[float], d: int, E_W: float, E_H: float, seed: int, W: Tensor | None = None
) -> tuple[Solution, Structure]:
    """Imbalanced data with a given W, or one that is learnt."""
    labels = torch.arange(len(counts))
    found = solve(labels, class_weights(counts), d, E_W, E_H, seed, W=W)
    return found, structure_of(found, labels, E_W, E_H)


@dataclass(frozen=True)
class MinorityCollapse:
    """Mean angles in degrees between learnt classifier vectors, by imbalance ratio."""

    E_W: float
    ratios: list[float]
    minority: list[float]  # between classifier vectors of minority classes
    majority: list[float]
    minority_fixed: list[float]  # between minority features where W is fixed as the ETF
    residual: float


def minority_collapse(
    ratios: Sequence[float], majority: int, minority: int, d: int, E_W: float, E_H: float, seed: int
) -> MinorityCollapse:
    """`majority` classes with R samples for every one of `minority` classes: what W learns, for every R."""
    C = majority + minority
    labels = torch.arange(C)
    weights = torch.stack([class_weights([R] * majority + [1] * minority) for R in ratios])
    learnt = solve(labels, weights, d, E_W, E_H, seed)
    fixed = solve(labels, weights, d, E_W, E_H, seed, W=etf_head(C, d, E_W, seed))
    small = (labels >= majority).expand(len(ratios), C)
    angles = angle_matrix(learnt.W)
    return MinorityCollapse(
        E_W=E_W,
        ratios=[float(R) for R in ratios],
        minority=mean_angle(angles, small).tolist(),
        majority=mean_angle(angles, ~small).tolist(),
        minority_fixed=mean_angle(angle_matrix(fixed.H), small).tolist(),
        residual=max(learnt.residual, fixed.residual),
    )
