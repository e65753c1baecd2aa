"""Features and classifier vectors in the plane: PCA, or t-SNE."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedgela.heat_maps import Floats

Kind = Literal["pca", "tsne"]
DRAWN = 500  # points of a picture


@dataclass(frozen=True)
class Plane:
    places: Floats  # [n, 2]
    labels: np.ndarray[Any, np.dtype[np.int64]]  # [n]
    directions: Floats  # [C, 2]; NaN for a vector without length
    explained: float | None = None  # share of the features' variance; None in t-SNE's plane

    @property
    def is_pca(self) -> bool:
        return self.explained is not None

    @property
    def axes(self) -> str:
        return "PCA" if self.is_pca else "t-SNE"


def embed(h: Tensor, y: Tensor, W: Tensor, kind: Kind) -> Plane:
    """Features h [n, d] with labels y [n], and classifier vectors W [C, d]."""
    if len(h) > DRAWN:
        kept = torch.linspace(0, len(h) - 1, DRAWN).round().long()
        h, y = h[kept], y[kept]
    h, W = h.double(), W.double()
    return _pca(h, y, W) if kind == "pca" or len(h) < 10 else _tsne(h, y, W)


def _pca(h: Tensor, y: Tensor, W: Tensor) -> Plane:
    """The two directions in which the features vary most. Of every classifier vector only the direction is
    shown, from the features' mean: the longer an arrow, the more of its direction lies in the plane."""
    centred = h - h.mean(dim=0)
    _, s, V = torch.linalg.svd(centred, full_matrices=False)
    axes = V[:2].T
    # a sign has no meaning: fix it, so that the same features give the same picture
    axes = axes * axes[axes.abs().argmax(dim=0), torch.arange(axes.shape[1])].sign()
    places = centred @ axes
    if places.shape[1] < 2:
        places = torch.nn.functional.pad(places, (0, 2 - places.shape[1]))
        axes = torch.nn.functional.pad(axes, (0, 2 - axes.shape[1]))
    length = W.norm(dim=1, keepdim=True)
    tips = torch.where(length > 0, (W / length) @ axes, torch.nan)
    longest = tips.norm(dim=1).nan_to_num(0).max()
    reach = places.norm(dim=1).quantile(0.98)
    tips = tips * (reach / longest if longest > 0 else 1.0)
    total = s.square().sum()
    explained = float(s[:2].square().sum() / total) if total > 0 else 1.0  # of nothing, nothing is lost
    return Plane(places.numpy(), y.numpy(), tips.numpy(), explained)


def _tsne(h: Tensor, y: Tensor, W: Tensor) -> Plane:
    """Features at small angles to each other lie close together. The classifier's vectors are placed as if
    they were features."""
    from sklearn.manifold import TSNE

    has_length = W.norm(dim=1) > 0
    together = torch.cat([h, W[has_length]]).numpy()
    perplexity = min(30.0, (len(together) - 1) / 3)
    tsne = TSNE(metric="cosine", init="random", random_state=0, perplexity=perplexity)
    placed = np.asarray(tsne.fit_transform(together), dtype=np.float64)
    directions = np.full((len(W), 2), np.nan)
    directions[has_length.numpy()] = placed[len(h) :]
    return Plane(placed[: len(h)], y.numpy(), directions)
