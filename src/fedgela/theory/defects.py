"""Where the paper's statements and proofs do not hold, each with the numbers that show it.

Lemmas are counted as the paper prints them: 1 and 2 the ETF, 3 and 4 one SGD step, 5 Stich's, 6 the variance,
7 the divergence of the clients. `shown` is computed from the numbers: a defect that does not show on this
problem says so.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedgela.theory import bounds
from fedgela.theory.convergence import Check, Setting, eta, rounds_until_false
from fedgela.theory.cross_entropy import cross_entropies, own_logits
from fedgela.theory.layer_peeled import etf_loss
from fedgela.theory.problem import Problem


@dataclass(frozen=True)
class Finding:
    place: str  # where in the paper
    claim: str  # what is wrong there
    numbers: str  # what was measured, in words
    shown: bool  # whether the numbers contradict the paper
    values: dict[str, float] = field(default_factory=dict)


def all_findings(checks: Sequence[Check], setting: Setting) -> list[Finding]:
    avg, ge, gela = checks
    return [
        unbounded_gradient(ge),
        not_convex_as_a_whole(ge),
        lost_square(gela),
        lost_step_size(gela, setting),
        biased_limit(gela),
        upper_bound_as_lower(ge, setting),
        descent_below_the_minimum(ge, setting),
        condition_of_theorem_2(gela, setting),
        smooth_is_not_lipschitz(ge, gela),
        not_cross_entropy(ge, setting),
        own_logit_above_optimum(ge),
        stray_E_w(gela, setting),
        triangle_as_equation(gela),
        swapped_heterogeneity(ge),
        theorem_4_violated(ge),
        other_constants_differ(checks),
        smaller_G(avg, ge, gela),
        squared_twice(gela, setting),
        gamma_of_theorem_3(gela, setting),
        assumption_5(gela, setting),
        average_of_phi(gela),
    ]


# -- Assumption 3 ----------------------------------------------------------------------------------


def unbounded_gradient(ge: Check) -> Finding:
    """|grad F_k(W)| >= mu |W - W_k*|: farther than G / mu no G bounds it."""
    trained, c = ge.method.trained, ge.theorem_1.constants
    G = math.sqrt(c.G_squared)
    far = ge.method.H_k_star + _direction(trained) * 2 * G / c.mu
    square = float(trained.gradients(far).square().sum(dim=(-2, -1)).min())
    return Finding(
        "Assumption 3 with Assumption 2",
        "a bounded gradient contradicts strong convexity (the appendix says so itself)",
        f"G^2 = {c.G_squared:.3g} on the run's steps; at |W - W_k*| = 2 G/mu = {2 * G / c.mu:.3g} every "
        f"client has |grad F_k|^2 >= {square:.3g}. Asked of the iterates alone, as printed, it can hold",
        square > c.G_squared,
        {"G_squared": c.G_squared, "distance": 2 * G / c.mu, "gradient_squared": square},
    )


def not_convex_as_a_whole(ge: Check) -> Finding:
    """W is body and head: (H, W^L) and (-H, -W^L) have the same logits, their middle has none."""
    method = ge.method
    mirrored = method.plain.with_heads(-method.plain.heads)
    ends = (method.F_star + float(mirrored.loss(-method.H_star))) / 2
    middle = float(method.plain.with_heads(0 * method.plain.heads).loss(0 * method.H_star))
    return Finding(
        "Assumption 2, for W the total model (Table of notations)",
        "cross-entropy is convex in the body for a fixed head, not in both, which FedAvg trains",
        f"F at (H*, W) and at (-H*, -W) is {ends:.4g} on average, at the middle between them {middle:.4g}",
        middle > ends,
        {"ends": ends, "middle": middle},
    )


def _direction(problem: Problem) -> Tensor:
    d, p = problem.shape
    return torch.ones(d, p, dtype=torch.float64) / math.sqrt(d * p)


# -- Lemma 7 and Theorem 1 -------------------------------------------------------------------------


def lost_square(gela: Check) -> Finding:
    """With E = 1 the bodies do not diverge, and Lemma 7's left side is sum_k p_k |Phi_k W - W|^2 exactly."""
    c = gela.theorem_1.constants
    left = _mean(c, [a**2 for a in c.adaptation])
    right = _mean(c, c.adaptation)
    return Finding(
        "Lemma 7, last line of its proof",
        "|Phi_k W - W| loses its square",
        f"with E = 1 the left side is sum_k p_k |Phi_k W - W|^2 = {left:.4g}, the right side "
        f"sum_k p_k |Phi_k W - W| = {right:.4g}",
        left > right,
        {"left": left, "right": right},
    )


def lost_step_size(gela: Check, setting: Setting) -> Finding:
    """Lemma 4 has 2 sum_k p_k |W - W_k|^2; to stand in B, behind eta_t^2, it must be divided by eta_t^2."""
    c = gela.theorem_1.constants
    printed = gela.theorem_1.B.adaptation
    first, last = (eta(gela.run.gamma, c.mu, t) for t in (0, setting.rounds * setting.E))
    needed = [2 * _mean(c, [a**2 for a in c.adaptation]) / step**2 for step in (first, last)]
    return Finding(
        "Theorem 1, B (from Lemmas 4 and 7)",
        "the adaptation's term has no eta_t^2 in Lemma 7, yet stands in B as if it had",
        f"B has {printed:.4g}; the lemmas give 2 sum_k p_k |Phi_k W - W|^2 / eta_t^2 = {needed[0]:.3g} at "
        f"the first step and {needed[1]:.3g} at the last: it grows as t^2, and the bound does not go to 0",
        needed[0] > printed,
        {"printed": printed, "first_step": needed[0], "last_step": needed[1]},
    )


def biased_limit(gela: Check) -> Finding:
    """Clients minimise sum_k p_k F_k(H; Phi_k W), whose minimum is not that of F(H; W)."""
    floor, T = gela.method.floor, rounds_until_false(gela.theorem_1, gela.method.floor)
    apart = float((gela.method.H_trained - gela.method.H_star).norm())
    gap = gela.theorem_1.gap
    return Finding(
        "Theorem 1, 'h will converge to h*' in FedGELA",
        "sum_k p_k Phi_k = 1 makes the average head the ETF, not the minimum that of the ETF",
        f"FedGELA's limit is |H - H*| = {apart:.3g} from the optimum (|H*| = "
        f"{gela.method.H_star.norm():.3g}), with F - F* = {floor:.4g} there; in the run the gap sinks to "
        f"{min(gap):.3g}, then rises to {gap[-1]:.3g}. The bound is below the limit's from T = {T:.3g} "
        "rounds on",
        floor > 1e-9,
        {"floor": floor, "rounds_until_false": T, "distance": apart},
    )


# -- Theorem 2 -------------------------------------------------------------------------------------


def upper_bound_as_lower(ge: Check, setting: Setting) -> Finding:
    """Theorem 2 replaces -sum_e |grad F_k|^2 by -E G^2, which needs the sum to be at least E G^2."""
    c, trained = ge.theorem_1.constants, ge.method.trained
    squares = torch.stack([trained.gradients(H).square().sum(dim=(-2, -1)) for H in ge.run.steps])
    sums = squares.view(-1, setting.E, *squares.shape[1:]).sum(dim=1)  # [watched, S, N]
    enough = int((sums >= setting.E * c.G_squared).sum())
    ratio = setting.E * c.G_squared / float(sums.mean())
    failed = ge.theorem_2.pairs - ge.theorem_2.held_by_proof
    return Finding(
        "Theorem 2, last line of its proof",
        "G^2, an upper bound of |grad F_k|^2, is used as a lower one",
        f"E G^2 = {setting.E * c.G_squared:.3g}; sum_e |grad F_k|^2 reaches it in {enough} of {sums.numel()} "
        f"local rounds and is {ratio:.3g} times smaller on average. With |F_k before - after aggregation| "
        f"for Gamma_1, as in the proof, the theorem fails in {failed} of {ge.theorem_2.pairs} (round, "
        "client) pairs; as printed a large Gamma_1 hides it",
        enough < sums.numel(),
        {"E_G_squared": setting.E * c.G_squared, "mean_sum": float(sums.mean()), "reached": enough},
    )


def descent_below_the_minimum(ge: Check, setting: Setting) -> Finding:
    """One client alone with full gradients: sigma = 0, nothing to aggregate, Phi = 1. Theorem 2 then promises
    a fall of (eta - L/2 eta^2) E G^2 in every round."""
    trained = ge.method.trained
    L, step, k = trained.L, 1 / trained.L, 0
    H = torch.zeros(len(trained.sizes), *trained.shape, dtype=torch.float64)
    G_squared = float(trained.gradients(H)[k].square().sum())  # largest at the start of plain descent
    promised = (step - L / 2 * step**2) * setting.E * G_squared
    start = float(trained.losses(H)[k])
    minimum = float(trained.losses(ge.method.H_k_star)[k])
    rounds = math.floor((start - minimum) / promised) + 1
    for _ in range(rounds * setting.E):
        slope = trained.gradients(H)
        G_squared = max(G_squared, float(slope[k].square().sum()))
        H = H - step * slope
    measured = float(trained.losses(H)[k])
    claimed = start - rounds * (step - L / 2 * step**2) * setting.E * G_squared
    return Finding(
        "Theorem 2, one client with full gradients (sigma = Gamma_1 = 0, Phi = 1)",
        "with G^2 as a lower bound the loss would fall by the same amount for ever",
        f"from F_k = {start:.4g}, after {rounds} rounds the theorem has F_k <= {claimed:.4g}, below the "
        f"minimum {minimum:.4g}; measured {measured:.4g}",
        claimed < minimum and measured > claimed,
        {"rounds": rounds, "claimed": claimed, "minimum": minimum, "measured": measured},
    )


def condition_of_theorem_2(gela: Check, setting: Setting) -> Finding:
    """The printed condition for a decrease, A <= G^4 / (L E (G^2 + sigma^2)), holds for eta -> 0 always."""
    c, E = gela.theorem_1.constants, setting.E
    worst = max(c.adaptation)
    A_0 = bounds.A_of_theorem_2(c, 0.0, E, worst)
    limit = c.G_squared**2 / (c.L * E * (c.G_squared + c.sigma_squared))
    best = bounds.best_decrease_of_theorem_2(c, E, worst)
    return Finding(
        "Theorem 2, the condition on A",
        "it bounds A from above where a decrease needs A large; E stands in the wrong place, Gamma_1 is "
        "left out",
        f"A = {A_0:.3g} <= {limit:.3g} holds at eta = 0, so some eta should decrease the bound; the most it "
        f"can fall at any eta is E G^4 / (2L (G^2 + sigma^2)) - L |Phi_k W - W| - Gamma_1 = {best:.3g}",
        limit >= A_0 and best < 0,
        {"A_at_0": A_0, "limit": limit, "best_decrease": best},
    )


# -- Theorems 2 and 4: smoothness ------------------------------------------------------------------


def smooth_is_not_lipschitz(ge: Check, gela: Check) -> Finding:
    """|F_k(u) - F_k(v)| <= L |u - v| fails far out, where F_k grows as mu/2 |u - v|^2."""
    trained, c = ge.method.trained, ge.theorem_1.constants
    away = 4 * c.L / c.mu
    far = ge.method.H_k_star + away * _direction(trained)
    rise = float((trained.losses(far) - trained.losses(ge.method.H_k_star)).min())
    # the step that both proofs make with it: from W to Phi_k W, at the server's bodies
    jumps = [
        gela.method.trained.losses(H[:, None]) - gela.method.plain.losses(H[:, None]) for H in gela.run.H
    ]
    slope = float((torch.stack(jumps).abs() / gela.method.adaptation).max())
    return Finding(
        "Theorems 2 and 4, 'derived from L-smooth'",
        "smoothness bounds gradients' differences; it is used as a Lipschitz bound of the loss",
        f"at |u - W_k*| = 4 L/mu = {away:.3g}: F_k(u) - F_k* >= {rise:.3g}, L |u - W_k*| = {c.L * away:.3g}. "
        f"On the run itself gradients are at most G = {math.sqrt(c.G_squared):.3g} (L = "
        f"{c.L:.3g}), and |F_k(Phi_k W) - F_k(W)| / |Phi_k W - W| at most {slope:.3g} "
        f"(FedGELA's L = {gela.theorem_1.constants.L:.3g})",
        rise > c.L * away,
        {"rise": rise, "L_times_distance": c.L * away, "G": math.sqrt(c.G_squared), "slope_of_head": slope},
    )


# -- cross-entropy ---------------------------------------------------------------------------------


def not_cross_entropy(ge: Check, setting: Setting) -> Finding:
    """The proof of Theorem 1 sets F = -log(w_c^T h); cross-entropy is -log softmax(W^T h)_c."""
    method = ge.method
    plain = method.plain
    own = _own_logits(plain, method.H_star)
    entropy = cross_entropies(plain.logits(method.H_star), plain.y)[plain.a > 0]
    last = torch.stack([_own_logits(plain, H) for H in ge.run.H[-1]])  # [S, n]
    negative = float((own <= 0).double().mean())
    both = (own > 0) & (last > 0)
    left = float((own / last)[both].log().mean())
    gap = ge.theorem_1.gap[-1]
    at_etf = math.sqrt(setting.E_W)  # E_H = 1
    C = plain.heads.shape[1]
    return Finding(
        "Theorem 1, proof: F(W) = -log((W^L)^T h)",
        "-log(w^T h) is not cross-entropy",
        f"at W* it does not exist for {negative:.1%} of samples (w^T h <= 0), and on the others has mean "
        f"{float(-own[own > 0].log().mean()):.3g} where cross-entropy has "
        f"{float(entropy[own > 0].mean()):.3g}; at the ETF itself {-math.log(at_etf):.3g} against "
        f"{etf_loss(C, setting.E_W, 1.0):.3g}. At the run's end the theorem's left side is {left:.3g}, F - "
        f"F* is {gap:.3g}",
        negative > 0 or abs(left - gap) > 1e-6,
        {"undefined_share": negative, "left_side": left, "gap": gap},
    )


def own_logit_above_optimum(ge: Check) -> Finding:
    """Theorem 1 asserts (W*)^T h* >= E[W^T h] for every sample."""
    method = ge.method
    best = _own_logits(method.plain, method.H_star)
    reached = torch.stack([_own_logits(method.plain, H) for H in ge.run.H[-1]]).mean(dim=0)
    share = float((reached > best).double().mean())
    return Finding(
        "Theorem 1, '(W*)^T h* >= E[W^T h]'",
        "the optimum of the mean loss does not have the largest logit of every sample",
        f"at the run's end {share:.1%} of samples have a larger w^T h than at W*",
        share > 0,
        {"share": share},
    )


def _own_logits(problem: Problem, H: Tensor) -> Tensor:
    """w_y^T H x of all samples, [n]."""
    return own_logits(problem.logits(H), problem.y)[problem.a > 0]


# -- Theorem 4 -------------------------------------------------------------------------------------


def stray_E_w(gela: Check, setting: Setting) -> Finding:
    c = gela.theorem_1.constants
    a = max(c.adaptation)
    return Finding(
        "Theorem 4, D against its proof",
        "D has |Phi_k W - W| E_w, the proof's last line |Phi_k W - W|, and the line before it times L",
        f"with |Phi_k W - W| = {a:.4g}: E_w version {a * setting.E_W:.4g}, proof's last line {a:.4g}, what "
        f"its own step gives, L |Phi_k W - W|, {c.L * a:.4g}",
        a > 0 and not (math.isclose(setting.E_W, 1) and math.isclose(c.L, 1)),
        {"with_E_w": a * setting.E_W, "proof": a, "with_L": c.L * a},
    )


def triangle_as_equation(gela: Check) -> Finding:
    """|W^{1/2 Phi} - W*| = |W^{1/2} - W*| + |Phi_k W - W| in the last line; body and head are orthogonal."""
    a = max(gela.theorem_1.constants.adaptation)
    body = float((gela.run.H[-1, 0] - gela.method.H_star).norm())
    return Finding(
        "Theorem 4, last line of its proof",
        "a triangle inequality is written as an equation",
        f"at the run's end |W^(1/2 Phi) - W*| = {math.hypot(body, a):.4g}, the sum is {body + a:.4g}",
        not math.isclose(math.hypot(body, a), body + a, rel_tol=1e-6),
        {"norm": math.hypot(body, a), "sum": body + a},
    )


def swapped_heterogeneity(ge: Check) -> Finding:
    c = ge.theorem_1.constants
    return Finding(
        "Assumption 4 in Theorems 1, 2 and 4",
        "Gamma_1 and Gamma_2 are one thing where defined and another where used",
        f"defined: Gamma_1 = |W_k* - W*| = {c.Gamma_1:.3g}, Gamma_2 = |grad F_k before - after| = "
        f"{c.Gamma_2:.3g}; needed: Gamma = F* - sum p_k F_k* = {c.Gamma:.3g} in B, |F_k before - after| = "
        f"{c.loss_jump:.3g} in Theorem 2, F_k(W*) - F_k* = {c.loss_offset:.3g} in Theorem 4",
        c.loss_offset > c.Gamma_2 or c.loss_jump > c.Gamma_1,
        {"Gamma": c.Gamma, "Gamma_1": c.Gamma_1, "Gamma_2": c.Gamma_2, "jump": c.loss_jump},
    )


def theorem_4_violated(ge: Check) -> Finding:
    found = ge.theorem_4
    worst = min(found.slack)
    return Finding(
        "Theorem 4 as printed, FedGE (Phi = 1)",
        "Gamma_2, a difference of gradients, is too small for a difference of losses",
        f"F_k - F_k* is above L |W - W*| + D in {found.pairs - found.held} of {found.pairs} (round, client) "
        f"pairs, by {max(0.0, -worst):.3g} at most; with the proof's F_k(W*) - F_k* in "
        f"{found.pairs - found.held_by_proof}",
        found.held < found.pairs,
        {"pairs": found.pairs, "held": found.held, "worst": worst},
    )


# -- what the methods differ in --------------------------------------------------------------------


def other_constants_differ(checks: Sequence[Check]) -> Finding:
    L = {c.method.name: c.theorem_1.constants.L for c in checks}
    shown = ", ".join(f"{name} {value:.3g}" for name, value in L.items())
    return Finding(
        "below Theorem 1: 'the only difference ... lies in the value of B'",
        "L, and with it kappa, gamma and the step, depends on the head and on Phi_k",
        f"L: {shown}; kappa = L/mu likewise",
        max(L.values()) > 1.01 * min(L.values()),
        {f"L_{name}": value for name, value in L.items()},
    )


def smaller_G(avg: Check, ge: Check, gela: Check) -> Finding:
    G = [x.theorem_1.constants.G_squared for x in (avg, ge, gela)]
    return Finding(
        "below Theorem 1: 'FedGE and FedGELA have a smaller G'",
        "FedGELA's longer head makes larger gradients",
        f"G^2 on the run: FedAvg with a random head {G[0]:.3g}, FedGE {G[1]:.3g}, FedGELA {G[2]:.3g}",
        max(G[1:]) > G[0],
        {"FedAvg": G[0], "FedGE": G[1], "FedGELA": G[2]},
    )


# -- Theorem 3 -------------------------------------------------------------------------------------


def squared_twice(gela: Check, setting: Setting) -> Finding:
    c, E = gela.theorem_3.constants, setting.E
    once, twice = 8 * (E - 1) ** 2 * c.G_at_optima, 8 * (E - 1) ** 2 * c.G_at_optima**2
    return Finding(
        "Theorem 3, G in B",
        "G = sum p_k G_k is a squared norm already, and is squared again",
        f"8 (E-1)^2 G = {once:.4g}, printed 8 (E-1)^2 G^2 = {twice:.4g}",
        not math.isclose(once, twice, rel_tol=1e-3),
        {"once": once, "twice": twice},
    )


def gamma_of_theorem_3(gela: Check, setting: Setting) -> Finding:
    c = gela.theorem_3.constants
    best, alone = bounds.gamma_of_theorem_3(c, setting.E), bounds.gamma_of_theorem_3(c, 1)
    gap = gela.theorem_3.gap
    return Finding(
        "Theorem 3, gamma = 32 L^2 kappa (E-1)^2 / (k (mu - k)) - 1",
        "k is not defined; gamma is beyond use for E > 1 and no step size at all for E = 1",
        f"the best k, mu/2, gives gamma = {best:.3g}: after {setting.rounds} rounds the gap has gone from "
        f"{gap[0]:.6g} to {gap[-1]:.6g}; with E = 1 gamma = {alone:.3g}, so that gamma + T - 1 is "
        f"{alone:.0f} at T = 1 and {alone + 1:.0f} at T = 2",
        alone <= 0,
        {"gamma": best, "gamma_E_1": alone},
    )


def assumption_5(gela: Check, setting: Setting) -> Finding:
    """E |grad F_k(W, xi)|^2 <= 4 L kappa (F_k - F_k*) + G_k; its proof needs every sample's loss L-smooth."""
    method, c = gela.method, gela.theorem_1.constants
    minima = method.trained.losses(method.H_k_star)
    G_k = 2 * method.trained.variances(method.H_k_star) / setting.b
    worst = 0.0
    for H in gela.run.steps:
        square = method.trained.gradients(H).square().sum(dim=(-2, -1))
        left = square + method.trained.variances(H) / setting.b
        right = 4 * c.L * c.kappa * (method.trained.losses(H) - minima) + G_k
        worst = max(worst, float((left / right).max()))
    sample_L = method.trained.sample_L
    return Finding(
        "Assumption 5, its proof",
        "L-smoothness of F_k is used for the loss of one sample, whose L is larger",
        f"L of every F_k is {c.L:.3g}, of one sample's loss up to {sample_L:.3g}; the inequality itself is "
        f"met on all steps of the run (left side at most {worst:.2g} of the right)"
        if worst <= 1
        else f"left side up to {worst:.3g} times the right",
        worst > 1,
        {"L": c.L, "sample_L": sample_L, "worst_ratio": worst},
    )


def average_of_phi(gela: Check) -> Finding:
    method = gela.method
    average = (method.trained.p_k[:, None, None] * method.trained.heads).sum(dim=0)
    W = method.plain.heads[0]
    share = (average * W).sum(dim=1) / (W**2).sum(dim=1)  # sum_k p_k Phi_kc
    off = float((share - 1).abs().max())
    return Finding(
        "Sec. 5.3, other types of Phi: sum_k p_k Phi_k = 1",
        "it is C n_c / n, which is 1 for globally balanced classes alone, as Sec. 3.3 does say",
        f"digits is nearly balanced: sum_k p_k Phi_kc differs from 1 by at most {off:.3g}",
        off > 1e-3,
        {"largest_difference": off},
    )


def _mean(c: bounds.Constants, values: Sequence[float]) -> float:
    """sum_k p_k v_k."""
    return sum(p * v for p, v in zip(c.p_k, values, strict=True))
