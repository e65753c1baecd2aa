"""The adapted structure: what the layer-peeled model with Phi_k does to a client's features."""

import math

import pytest
import torch

from fedgela.geometry import simplex_etf
from fedgela.theory.structure import local_features, planes, predicted_cosine, spread


@pytest.mark.parametrize(("C", "m", "E_W"), [(10, 2, 10.0), (10, 5, 1.0), (6, 3, 30.0), (4, 3, 0.5)])
def test_measured_angles_are_the_predicted_ones(C: int, m: int, E_W: float) -> None:
    found = spread(C, m, d=C, E_W=E_W, E_H=1.0, seed=0)
    assert found.residual < 1e-8
    assert found.measured_ge == pytest.approx(found.global_etf, abs=1e-4)
    assert found.measured_eq5 == pytest.approx(math.degrees(math.acos(-1 / (m - 1))), abs=1e-4)
    assert found.measured_all == pytest.approx(found.predicted_all, abs=1e-4)
    assert found.global_etf < found.measured_all < found.measured_eq5


def test_with_all_classes_nothing_is_adapted() -> None:
    for only_present in (True, False):
        assert predicted_cosine(7, 7, 3.0, 1.0, only_present) == pytest.approx(-1 / 6)


def test_missing_classes_at_logit_0_hold_the_others_back_the_more_the_longer_w_is() -> None:
    cosines = [predicted_cosine(10, 2, E_W, 1.0, False) for E_W in (0.01, 1.0, 10.0, 1e6)]
    assert cosines == sorted(cosines)
    assert cosines[-1] == pytest.approx(-1 / 9)  # the ETF's again: no spread is left


def test_an_angle_takes_two_classes() -> None:
    with pytest.raises(ValueError, match="two classes"):
        predicted_cosine(10, 1, 1.0, 1.0, True)


def test_a_class_alone_keeps_its_direction_where_missing_ones_count() -> None:
    H, _ = local_features([0, 4, 0], d=3, E_W=2.0, E_H=1.0, seed=5, only_present=False)
    assert torch.allclose(H[0], simplex_etf(3, 3, 5, torch.float64)[:, 1], atol=1e-6)


def test_the_drawn_clients() -> None:
    everybody, ge, eq5, all_classes, unequal = planes(10.0, 1.0)
    for p in (everybody, ge, eq5, all_classes, unequal):
        assert sum(p.share) == pytest.approx(1)
    assert everybody.share == pytest.approx([1 / 3] * 3, abs=1e-3) and ge.share == everybody.share
    assert eq5.share == pytest.approx([0.5, 0.5, 0], abs=1e-3)
    # a missing class wins where both others are negative: 60 of 360 degrees
    assert all_classes.share[2] == pytest.approx(60 / 360, abs=1e-3)
    assert torch.allclose(eq5.H[0], -eq5.H[1], atol=1e-6)  # 180 degrees apart
    assert unequal.share == sorted(unequal.share, reverse=True)
