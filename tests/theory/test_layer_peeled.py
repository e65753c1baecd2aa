"""Lemmas 1 and 2: the layer-peeled model ends in the ETF, or in minority collapse where W is learnt."""

import math

import pytest
import torch

from fedgela.geometry import angle_matrix, simplex_etf
from fedgela.theory.layer_peeled import (
    best_features,
    class_weights,
    cross_entropy,
    etf_loss,
    gradients,
    imbalanced,
    into_ball,
    lemma_1,
    lemma_2,
    minority_collapse,
    solve,
)


def test_gradients_are_the_slopes_of_the_loss() -> None:
    draw = torch.Generator().manual_seed(0)
    labels = torch.tensor([0, 2, 1, 2])
    weights = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    H = torch.randn(4, 5, generator=draw, dtype=torch.float64)
    W = torch.randn(3, 5, generator=draw, dtype=torch.float64)
    to_H, to_W = gradients(H, W, labels, weights)
    for tensor, slope in ((H, to_H * weights[:, None]), (W, to_W)):
        for place in ((0, 0), (2, 3), (1, 4)):
            kept, losses = float(tensor[place]), []
            for shift in (1e-6, -1e-6):
                tensor[place] = kept + shift
                losses.append(float(cross_entropy(H, W, labels, weights)))
            tensor[place] = kept
            assert (losses[0] - losses[1]) / 2e-6 == pytest.approx(float(slope[place]), abs=1e-8)


def test_cross_entropy_is_torchs() -> None:
    draw = torch.Generator().manual_seed(1)
    H, W = (torch.randn(6, 4, generator=draw, dtype=torch.float64) for _ in range(2))
    labels = torch.arange(6)
    mine = cross_entropy(H, W, labels, torch.full((6,), 1 / 6, dtype=torch.float64))
    assert float(mine) == pytest.approx(float(torch.nn.functional.cross_entropy(H @ W.T, labels)))


def test_into_ball_shortens_what_is_too_long_and_nothing_else() -> None:
    v = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    assert torch.allclose(into_ball(v, 1.0), torch.tensor([[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]]))


def test_the_loss_of_the_etf_in_closed_form() -> None:
    M = simplex_etf(7, 5, 0, torch.float64).T
    labels, weights = torch.arange(5), class_weights([1] * 5)
    direct = cross_entropy(math.sqrt(2) * M, math.sqrt(3) * M, labels, weights)
    assert etf_loss(5, E_W=3.0, E_H=2.0) == pytest.approx(float(direct))


@pytest.mark.parametrize(("C", "E_W", "seed"), [(3, 4.0, 0), (4, 1.0, 1), (10, 10.0, 2)])
def test_lemma_1_balanced_data_end_in_the_etf(C: int, E_W: float, seed: int) -> None:
    found, structure = lemma_1(C, per_class=3, d=C + 2, E_W=E_W, E_H=1.5, seed=seed)
    assert found.residual < 1e-8
    assert structure.W_cosine_error < 1e-3 and structure.H_cosine_error < 1e-3
    assert structure.length_error < 1e-6 and structure.duality_error < 1e-3 and structure.variability < 1e-6
    assert structure.loss == pytest.approx(etf_loss(C, E_W, 1.5), abs=1e-9)


COUNTS = [1000, 300, 100, 10, 3, 1]


def test_lemma_2_a_fixed_etf_does_the_same_on_imbalanced_data() -> None:
    found, structure = lemma_2(COUNTS, d=8, E_W=5.0, E_H=1.0, seed=0)
    W = math.sqrt(5) * simplex_etf(8, 6, 0, torch.float64).T
    assert torch.equal(found.W, W)
    assert structure.H_cosine_error < 1e-3 and structure.duality_error < 1e-3
    assert torch.allclose(found.H, W / math.sqrt(5), atol=1e-6)


def test_a_learnt_classifier_leaves_the_etf_on_imbalanced_data() -> None:
    _, structure = imbalanced(COUNTS, d=8, E_W=5.0, E_H=1.0, seed=0)
    assert structure.W_cosine_error > 0.3
    assert structure.loss < etf_loss(6, 5.0, 1.0)  # it pays


def test_one_weighted_feature_stands_for_all_samples_of_a_class() -> None:
    counts = [4, 2, 1]
    labels = torch.repeat_interleave(torch.arange(3), torch.tensor(counts))
    each = solve(labels, torch.full((7,), 1 / 7, dtype=torch.float64), 4, 3.0, 1.0, seed=0)
    together, _ = imbalanced(counts, 4, 3.0, 1.0, seed=0)
    assert float(each.loss) == pytest.approx(float(together.loss), abs=1e-10)
    assert torch.allclose(angle_matrix(each.W), angle_matrix(together.W), atol=1e-3)


def test_minority_angles_collapse_as_the_imbalance_grows() -> None:
    found = minority_collapse([1, 5, 20, 100], 3, 3, d=8, E_W=2.0, E_H=1.0, seed=0)
    etf = math.degrees(math.acos(-1 / 5))
    assert found.minority[0] == pytest.approx(etf, abs=0.01)
    assert found.minority == sorted(found.minority, reverse=True)
    assert found.minority[-1] < 0.1
    assert min(found.majority) > etf - 0.01
    assert found.minority_fixed == pytest.approx([etf] * 4, abs=0.01)


def test_best_features_are_those_of_projected_gradient() -> None:
    W = torch.tensor([[1.5, 0.2, 0.0], [-0.4, 1.0, 0.3], [0.1, -0.8, 0.9]], dtype=torch.float64)
    labels = torch.arange(3)
    H, residual = best_features(labels, W, 2.0, seed=0)
    slow = solve(labels, class_weights([1, 1, 1]), 3, 4.0, 2.0, seed=0, W=W)
    assert residual < 1e-8 and slow.residual < 1e-8
    assert torch.allclose(H, slow.H, atol=1e-6)
