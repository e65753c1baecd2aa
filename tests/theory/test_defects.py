"""Each defect by its numbers, which are computed here a second time, or by a case that has it not."""

import math

import pytest
import torch
from theory_setting import SMALL

from fedgela.theory import defects
from fedgela.theory.convergence import Check


def test_all_are_shown_but_the_one_that_cannot_be(small_checks: list[Check]) -> None:
    findings = defects.all_findings(small_checks, SMALL)
    hidden = [f.place for f in findings if not f.shown]
    # so few rounds do not come near enough to W* for Theorem 4 to fail
    assert hidden == ["Theorem 4 as printed, FedGE (Phi = 1)", "Assumption 5, its proof"]
    assert all(f.values and f.numbers and math.isfinite(sum(f.values.values())) for f in findings)


def test_without_adaptation_nothing_is_lost(small_checks: list[Check]) -> None:
    ge = small_checks[1]
    assert not defects.lost_square(ge).shown
    assert not defects.lost_step_size(ge, SMALL).shown
    assert not defects.biased_limit(ge).shown
    assert not defects.stray_E_w(ge, SMALL).shown
    assert not defects.triangle_as_equation(ge).shown
    assert not defects.average_of_phi(ge).shown


def test_lemma_7_with_E_1(small_checks: list[Check]) -> None:
    gela = small_checks[2]
    by_hand = (gela.method.trained.heads - gela.method.plain.heads).square().sum(dim=(1, 2))
    values = defects.lost_square(gela).values
    assert values["left"] == pytest.approx(float((gela.method.trained.p_k * by_hand).sum()))
    assert values["right"] == pytest.approx(float((gela.method.trained.p_k * by_hand.sqrt()).sum()))


def test_the_lost_step_size_grows_as_t_squared(small_checks: list[Check]) -> None:
    gela = small_checks[2]
    values = defects.lost_step_size(gela, SMALL).values
    gamma, steps = gela.run.gamma, SMALL.rounds * SMALL.E
    assert values["last_step"] / values["first_step"] == pytest.approx(((gamma + steps) / gamma) ** 2)


def test_far_out_the_gradient_is_above_G(small_checks: list[Check]) -> None:
    values = defects.unbounded_gradient(small_checks[1]).values
    # strong convexity alone: |grad|^2 >= mu^2 (2 G / mu)^2 = 4 G^2
    assert values["gradient_squared"] >= 4 * values["G_squared"]


def test_the_promised_loss_is_below_the_minimum(small_checks: list[Check]) -> None:
    values = defects.descent_below_the_minimum(small_checks[1], SMALL).values
    assert values["claimed"] < values["minimum"] <= values["measured"]


def test_the_middle_of_two_mirrored_models_is_a_coin_toss(small_checks: list[Check]) -> None:
    values = defects.not_convex_as_a_whole(small_checks[1]).values
    assert values["middle"] == pytest.approx(math.log(10))
    assert values["ends"] == pytest.approx(small_checks[1].method.F_star)


def test_smoothness_is_no_lipschitz_bound(small_checks: list[Check]) -> None:
    values = defects.smooth_is_not_lipschitz(*small_checks[1:]).values
    # strong convexity alone: mu/2 (4 L / mu)^2 = 2 * L * 4 L / mu
    assert values["rise"] >= 2 * values["L_times_distance"]


def test_logits_that_are_not_positive_have_no_logarithm(small_checks: list[Check]) -> None:
    ge = small_checks[1]
    method = ge.method
    undefined = n = 0
    for k in range(10):
        for i in range(int(method.plain.sizes[k])):
            logit = method.plain.heads[k, method.plain.y[k, i]] @ (method.H_star @ method.plain.X[k, i])
            undefined += int(logit <= 0)
            n += 1
    assert defects.not_cross_entropy(ge, SMALL).values["undefined_share"] == pytest.approx(undefined / n)


def test_the_printed_condition_is_met_where_no_step_helps(small_checks: list[Check]) -> None:
    values = defects.condition_of_theorem_2(small_checks[2], SMALL).values
    assert values["A_at_0"] <= values["limit"] and values["best_decrease"] < 0


def test_the_average_of_phi_is_C_times_the_share_of_a_class(small_checks: list[Check]) -> None:
    gela = small_checks[2]
    y = gela.method.plain.y[gela.method.plain.a > 0]
    share = 10 * torch.bincount(y).double() / len(y)
    found = defects.average_of_phi(gela).values["largest_difference"]
    assert found == pytest.approx(float((share - 1).abs().max()), abs=1e-6)
