"""The theorems' right sides against numbers computed by hand."""

import dataclasses

import pytest

from fedgela.theory import bounds
from fedgela.theory.bounds import Constants

C = Constants(
    L=2.0,
    mu=0.5,
    sigma_squared=3.0,
    G_squared=4.0,
    Gamma=0.1,
    Gamma_1=0.25,
    Gamma_2=0.2,
    loss_jump=0.3,
    loss_offset=0.4,
    G_at_optima=1.5,
    p_k=[0.25, 0.75],
    adaptation=[2.0, 4.0],
    distance_squared=7.0,
    own_distance_squared=8.0,
)


def test_B_of_theorem_1() -> None:
    b = bounds.B_of_theorem_1(C, E=3)
    assert b.noise == pytest.approx((0.0625 + 0.5625) * 3)
    assert b.adaptation == pytest.approx(0.5 + 3)
    assert b.heterogeneity == pytest.approx(3)
    assert b.drift == pytest.approx(8 * 4 * 4)
    assert b.total == pytest.approx(1.875 + 3.5 + 3 + 128)


def test_B_of_theorem_3_and_of_li() -> None:
    assert bounds.B_of_theorem_3(C, E=3).drift == pytest.approx(8 * 4 * 2.25)
    li = bounds.B_of_li(C, E=3)
    assert (li.adaptation, li.heterogeneity) == pytest.approx((0, 6 * 2 * 0.1))


def test_gammas() -> None:
    assert bounds.gamma_of_theorem_1(C.kappa, E=3) == 32  # 8 kappa
    assert bounds.gamma_of_theorem_1(C.kappa, E=50) == 50
    assert bounds.gamma_of_theorem_3(C, E=3) == pytest.approx(32 * 4 * 4 * 4 / 0.0625 - 1)
    assert bounds.gamma_of_theorem_3(C, E=1) == -1


def test_global_bound() -> None:
    assert bounds.global_bound(C, gamma=32, T=9, B=5.0, distance_squared=7.0) == pytest.approx(
        4 / 40 * (20 + 0.25 * 32 * 7)
    )
    # at the start it is smoothness: F - F* <= L/2 |W^1 - W*|^2, and what B adds
    assert bounds.global_bound(C, 32, 1, 0.0, 7.0) == pytest.approx(2.0 / 2 * 7)


def test_theorem_2() -> None:
    # A = (0.1 - 0.01) * 3 * 4 - 2 * 2
    assert bounds.A_of_theorem_2(C, eta=0.1, E=3, adaptation=2.0) == pytest.approx(1.08 - 4)
    right = bounds.local_bound(C, before=1.0, eta=0.1, E=3, adaptation=2.0, jump=0.25)
    assert right == pytest.approx(1 + 2 * 3 * 0.01 / 2 * 3 + 0.25 - (1.08 - 4))


def test_the_best_decrease_is_the_best_of_all_steps() -> None:
    best = bounds.best_decrease_of_theorem_2(C, E=3, adaptation=0.1)
    falls = [
        1 - bounds.local_bound(C, 1.0, eta, 3, 0.1, C.Gamma_1) for eta in (i / 1000 for i in range(1, 1000))
    ]
    assert max(falls) == pytest.approx(best, abs=1e-4) and max(falls) <= best


def test_theorem_4() -> None:
    assert bounds.D_of_theorem_4(C, E_W=9.0, adaptation=2.0) == pytest.approx(0.2 + 18)


def test_constants_hold_kappa() -> None:
    assert dataclasses.replace(C, L=3.0).kappa == 6
