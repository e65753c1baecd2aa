"""Features in the plane."""

import numpy as np
import torch

from fedgela.geometry import simplex_etf
from fedgela.report.embedding import DRAWN, embed


def test_pca_keeps_what_lies_in_a_plane() -> None:
    """Three classes on an ETF span a plane: nothing is lost, and arrows point to their own classes."""
    M = simplex_etf(6, 3, seed=0, dtype=torch.float64).T
    y = torch.arange(30) % 3
    plane = embed(M[y], y, 5 * M, "pca")
    assert plane.explained is not None and abs(plane.explained - 1) < 1e-9
    for c in range(3):
        mine = plane.places[plane.labels == c].mean(axis=0)
        cosine = mine @ plane.directions[c] / np.linalg.norm(mine) / np.linalg.norm(plane.directions[c])
        assert cosine > 1 - 1e-9
    gaps = np.linalg.norm(plane.places[:3, None] - plane.places[None, :3], axis=2)
    np.testing.assert_allclose(gaps, torch.cdist(M, M).numpy(), atol=1e-9)


def test_a_vector_without_length_has_no_direction() -> None:
    W = torch.eye(3, 4)
    W[1] = 0
    h = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))
    for kind in ("pca", "tsne"):
        plane = embed(h, torch.arange(12) % 3, W, kind)  # type: ignore[arg-type]
        assert np.isnan(plane.directions[1]).all() and np.isfinite(plane.directions[[0, 2]]).all()


def test_one_dimension_and_one_point_are_no_error() -> None:
    assert embed(torch.arange(4.0)[:, None], torch.arange(4), torch.ones(4, 1), "pca").places.shape == (4, 2)
    assert embed(torch.ones(1, 3), torch.zeros(1, dtype=torch.int64), torch.eye(3), "tsne").places.shape == (
        1,
        2,
    )


def test_points_that_are_all_one_have_a_plane_of_pca_too() -> None:
    assert embed(torch.ones(4, 3), torch.arange(4), torch.eye(4, 3), "pca").axes == "PCA"


def test_many_points_are_thinned_out() -> None:
    h = torch.randn(3000, 5, generator=torch.Generator().manual_seed(0))
    assert len(embed(h, torch.arange(3000) % 5, torch.eye(5), "pca").places) == DRAWN
