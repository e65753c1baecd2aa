"""NC1 to NC4 as the paper's appendix A states them, each as a number that is 0 at the collapse.

    NC1  Sigma = Avg_{i,c} (h_c^i - h_c)(h_c^i - h_c)^T -> 0              its trace
    NC2  class means and classifier vectors become a simplex ETF          distance of their Gram matrices
    NC3  (h_c - mean h) / |h_c - mean h|  =  W_c / |W_c|                  mean distance of the two
    NC4  argmax_c <h, W_c>  =  argmin_c |h - h_c|                         share of samples where they differ

h is the last-layer feature, what the classifier W [C, d] is multiplied with (for FedGELA after its
normalisation); h_c is the mean over class c, and mean h the mean of the h_c, so that an ETF stays one
whatever the classes' sizes.
"""

import math
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from fedgela.evaluation import finite
from fedgela.geometry import class_angles, class_means


@dataclass(frozen=True)
class Collapse:
    """NaN where a measure has nothing to go by: one class only, or a classifier without a direction."""

    nc1: float  # tr Sigma
    nc1_relative: float  # tr Sigma over the trace of the class means' covariance: free of the scale
    nc2_means: float  # |G / |G| - G_ETF / |G_ETF||, of the centred class means' Gram matrix G; 0 to 2
    nc2_classifier: float  # the same of the classifier vectors
    nc3: float  # 0 to 2
    nc4: float  # 0 to 1

    def record(self, where: str) -> dict[str, float | None]:
        """For metrics.jsonl: `nc1_server`, ...; None where there is no number."""
        return {f"{k}_{where}": finite(v) for k, v in asdict(self).items()}


def etf_angle(C: int) -> float:
    """The angle in degrees between any two vectors of a simplex ETF, arccos(-1 / (C-1))."""
    return math.degrees(math.acos(-1 / (C - 1)))


def neural_collapse(h: Tensor, y: Tensor, W: Tensor, members: Tensor | None = None) -> Collapse:
    """NC1 to NC4 of features h [n, d] with labels y [n] under a classifier W [C, d].

    Only classes with samples are counted, and of those only the `members` (mask [C], by default all): for a
    client its own classes. Classes whose row of W has no length (Phi_kc = 0), and so no direction, are left
    out too. Sums are in float64, and the results are copied from the device once, at the end.
    """
    C = len(W)
    h, W = h.double(), W.double()
    counts = torch.bincount(y, minlength=C)
    taking_part = (counts > 0) & (W.norm(dim=1) > 0)
    if members is not None:
        taking_part = taking_part & members.to(y.device)
    kept = taking_part[y]
    # the classes that are left are renumbered: 0 .. C'-1
    h, W = h[kept], W[taking_part]
    y = (taking_part.cumsum(0) - 1)[y[kept]]
    n = counts[taking_part].double()
    if len(n) == 0:
        return Collapse(*[math.nan] * 6)

    means = torch.zeros_like(W).index_add_(0, y, h) / n[:, None]  # h_c, [C', d]
    centred = means - means.mean(dim=0)
    # tr Sigma from differences: as a difference of sums of squares it would lose its digits near 0
    within = (h - means[y]).square().sum() / len(h)
    between = centred.square().sum() / len(n)

    directions = centred / centred.norm(dim=1, keepdim=True)
    distance = (directions - W / W.norm(dim=1, keepdim=True)).norm(dim=1)
    nc3 = distance.mean() if len(n) > 1 else torch.full_like(within, math.nan)

    by_classifier = (h @ W.T).argmax(dim=1)
    # |h - h_c|^2 = |h|^2 - 2 (<h, h_c> - |h_c|^2 / 2): the nearest mean is the largest bracket
    by_nearest = (h @ means.T - means.square().sum(dim=1) / 2).argmax(dim=1)
    nc4 = (by_classifier != by_nearest).double().mean()

    numbers = [within, within / between, from_etf(centred), from_etf(W), nc3, nc4]
    values = torch.stack(numbers).tolist()
    return Collapse(*(v if math.isfinite(v) else math.nan for v in values))


def from_etf(vectors: Tensor) -> Tensor:
    """How far vectors [C, d] are from a simplex ETF of any size and rotation: the Frobenius distance of
    their Gram matrix to the ETF's, I - 11^T / C, both scaled to norm 1. NaN for a single vector."""
    C = len(vectors)
    gram = vectors @ vectors.T
    etf = torch.eye(C, dtype=gram.dtype, device=gram.device) - 1 / C
    distance: Tensor = (gram / gram.norm() - etf / etf.norm()).norm()
    return distance


def class_mean_angles(h: Tensor, y: Tensor, present: Tensor) -> dict[str, Tensor]:
    """Mean angles between class means of features h [n, d], in degrees: among the classes of `present`
    (mask [C], or several, [K, C]), among the others, and among all. Classes without samples have none.

    Means are not centred: those of a client's two classes would always point opposite ways. At the collapse
    the angles on the server are `etf_angle(C)`.
    """
    # a class without samples has a mean of zero, which has no direction: its pairs are left out
    return class_angles(class_means(h.double(), y, present.shape[-1]), present.to(h.device))
