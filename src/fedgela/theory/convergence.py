"""Theorems 1 to 4 on the strongly convex problem: what is measured in a federated run, beside the bounds.

The run is Algorithm 1 with all clients in every round: E local SGD steps on batches of b samples, then
H = sum_k p_k H_k. The step is the theorem's, eta_t = 2 / (mu (gamma + t)), t the steps done so far.
"""

import dataclasses
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedgela.data import build_federation, load_dataset
from fedgela.randomness import generator
from fedgela.theory import bounds
from fedgela.theory.bounds import Constants, Terms
from fedgela.theory.cross_entropy import errors
from fedgela.theory.layer_peeled import etf_head
from fedgela.theory.problem import (
    Problem,
    adapted_heads,
    make_problem,
    minimise,
    minimise_locally,
    random_head,
)


@dataclass(frozen=True)
class Setting:
    """The federated problem and its run."""

    partition: str = "classes:4"
    clients: int = 10  # N
    p: int = 20  # dimensions of the embedded samples
    d: int = 10  # of the features H x
    E_W: float = 4.0
    mu: float = 0.1
    rounds: int = 200
    E: int = 5  # local steps a round
    b: int = 4  # samples a step, drawn with replacement
    repeats: int = 4  # runs that expectations are taken over

    def watched(self) -> list[int]:
        """The rounds whose every local step is looked at for sigma and G: the first ones, then ever fewer."""
        return sorted({min(self.rounds - 1, round(1.25**i) - 1) for i in range(60)})


# -- training --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """The bodies of a run of R rounds, repeated S times."""

    gamma: float
    H: Tensor  # [R + 1, S, d, p], the server's, H[0] the start
    H_k: Tensor  # [R, S, N, d, p], the clients' after local training, before aggregation
    steps: Tensor  # [watched * E, S, N, d, p], the clients' before each local step of a watched round


def eta(gamma: float, mu: float, t: int) -> float:
    return 2 / (mu * (gamma + t))


def train(problem: Problem, setting: Setting, gamma: float, seed: int) -> Run:
    N, (d, p) = len(problem.sizes), problem.shape
    S, E, b = setting.repeats, setting.E, setting.b
    draw = generator(seed, "theory-batches")
    watched = set(setting.watched())
    H = torch.zeros(S, d, p, dtype=torch.float64)
    of_server, of_clients, steps = [H], [], []
    clients = torch.arange(N)[:, None].expand(N, b)
    for r in range(setting.rounds):
        H_k = H[:, None].expand(S, N, d, p)
        for e in range(E):
            if r in watched:
                steps.append(H_k)
            chosen = torch.rand(S, N, b, generator=draw, dtype=torch.float64) * problem.sizes[:, None]
            rows = chosen.long()
            X, y = problem.X[clients, rows], problem.y[clients, rows]  # [S, N, b, p], [S, N, b]
            error = errors((X @ H_k.mT) @ problem.heads.mT, y)
            slope = (error @ problem.heads).mT @ X / b + problem.mu * H_k
            H_k = H_k - eta(gamma, problem.mu, r * E + e) * slope
        H = (problem.p_k[:, None, None] * H_k).sum(dim=1)
        of_server.append(H)
        of_clients.append(H_k)
    return Run(gamma, torch.stack(of_server), torch.stack(of_clients), torch.stack(steps))


# -- one method ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Method:
    """A method's two objectives with their exact minima.

    `plain` has the global head for everybody: the global model's loss F, W* its minimum. `trained` has
    every client's own head Phi_k W: what clients minimise. They are the same unless the head is adapted.
    """

    name: str
    plain: Problem
    trained: Problem
    H_star: Tensor  # [d, p], of `plain`
    H_trained: Tensor  # [d, p], of `trained`
    H_k_star: Tensor  # [N, d, p], of every client's own objective

    @property
    def F_star(self) -> float:
        return float(self.plain.loss(self.H_star))

    @property
    def F_trained(self) -> float:
        return float(self.trained.loss(self.H_trained))

    @property
    def floor(self) -> float:
        """F at the minimum of what is trained, minus F*: what no number of rounds takes away."""
        return float(self.plain.loss(self.H_trained)) - self.F_star

    @property
    def adaptation(self) -> Tensor:
        """|Phi_k W - W|, [N]."""
        moved: Tensor = (self.trained.heads - self.plain.heads).flatten(1).norm(dim=1)
        return moved


def make_method(name: str, plain: Problem, trained: Problem) -> Method:
    H_star = minimise(plain)
    H_trained = H_star if trained is plain else minimise(trained)
    return Method(name, plain, trained, H_star, H_trained, minimise_locally(trained))


def make_methods(setting: Setting, seed: int) -> list[Method]:
    """FedAvg with a fixed random head, FedGE and FedGELA, on digits dealt by the project's own partition."""
    data = load_dataset("digits")
    federation = build_federation(data, setting.partition, setting.clients, setting.b, seed)
    W = etf_head(data.classes, setting.d, setting.E_W, seed)
    etf = make_problem(federation, W, setting.p, setting.mu)
    other = etf.with_heads(random_head(data.classes, setting.d, setting.E_W, seed))
    adapted = etf.with_heads(adapted_heads(W, federation.train_counts))
    return [
        make_method("FedAvg", other, other),
        make_method("FedGE", etf, etf),
        make_method("FedGELA", etf, adapted),
    ]


def constants_of(method: Method, run: Run, setting: Setting) -> Constants:
    trained, plain = method.trained, method.plain
    variance = torch.stack([trained.variances(H) for H in run.steps]) / setting.b
    square = torch.stack([trained.gradients(H) for H in run.steps]).square().sum(dim=(-2, -1))
    jump_slope, jump_loss = 0.0, 0.0
    for before, after in zip(run.H_k, run.H[1:], strict=True):
        # what was aggregated has the global head until it is adapted
        slopes = trained.gradients(before) - plain.gradients(after[:, None])
        jump_slope = max(jump_slope, float(slopes.flatten(-2).norm(dim=-1).max()))
        losses = trained.losses(before) - plain.losses(after[:, None])
        jump_loss = max(jump_loss, float(losses.abs().max()))
    apart = (method.H_k_star - method.H_star).square().sum(dim=(-2, -1)) + method.adaptation**2
    local_minima = trained.losses(method.H_k_star)
    offset = plain.losses(method.H_star[None]) - local_minima  # W* has the global head
    at_optima = trained.variances(method.H_k_star) / setting.b  # the gradient itself is 0 there
    start = run.H[0, 0]
    return Constants(
        L=trained.L,
        mu=trained.mu,
        sigma_squared=float(variance.max()),
        G_squared=float((square + variance).max()),
        Gamma=method.F_trained - float((trained.p_k * local_minima).sum()),
        Gamma_1=float(apart.max().sqrt()),
        Gamma_2=jump_slope,
        loss_jump=jump_loss,
        loss_offset=float(offset.abs().max()),
        G_at_optima=float(2 * (trained.p_k * at_optima).sum()),
        p_k=trained.p_k.tolist(),
        adaptation=method.adaptation.tolist(),
        distance_squared=float((start - method.H_star).square().sum()),
        own_distance_squared=float((start - method.H_trained).square().sum()),
    )


# -- measured against bound ------------------------------------------------------------------------


@dataclass(frozen=True)
class Global:
    """Theorem 1 or 3 at every round; entry r is after r rounds."""

    constants: Constants
    gamma: float
    B: Terms
    B_li: Terms
    gap: list[float]  # E F(W_g) - F(W*), the global head
    bound: list[float]  # as printed, T in rounds
    own_gap: list[float]  # of the objective that is trained, from its own minimum
    bound_li: list[float]  # Li et al.'s bound on own_gap, T in steps


@dataclass(frozen=True)
class Local:
    """Theorem 2 or 4 over all (round, client) pairs."""

    pairs: int
    held: int  # pairs in which measured <= bound
    held_by_proof: int  # the same with the quantity that the proof bounds, see `Constants`
    slack: list[float]  # bound - measured, the least over clients, of every round
    measured: list[float]  # mean over clients
    bound: list[float]  # mean over clients


def measure_global(method: Method, run: Run, setting: Setting, theorem: int) -> Global:
    c, E = constants_of(method, run, setting), setting.E
    b = bounds.B_of_theorem_1(c, E) if theorem == 1 else bounds.B_of_theorem_3(c, E)
    li = bounds.B_of_li(c, E)
    gap = [float(method.plain.loss(H).mean()) - method.F_star for H in run.H]
    own = [float(method.trained.loss(H).mean()) - method.F_trained for H in run.H]
    rounds = range(len(run.H))
    return Global(
        constants=c,
        gamma=run.gamma,
        B=b,
        B_li=li,
        gap=gap,
        bound=[bounds.global_bound(c, run.gamma, r + 1, b.total, c.distance_squared) for r in rounds],
        own_gap=own,
        bound_li=[
            bounds.global_bound(c, run.gamma, r * E + 1, li.total, c.own_distance_squared) for r in rounds
        ],
    )


def measure_theorem_2(method: Method, run: Run, c: Constants, setting: Setting) -> Local:
    """E F_k^{(t+1)E} against its bound from F_k^{tE}, with Gamma_1 as printed and as the proof needs it."""
    after_training = torch.stack([method.trained.losses(H).mean(dim=0) for H in run.H_k])  # [R, N]
    measured = after_training[1:]
    by_jump = []
    for jump in (c.Gamma_1, c.loss_jump):
        right = torch.empty_like(measured)
        for r, before in enumerate(after_training[:-1].tolist()):
            step = eta(run.gamma, c.mu, (r + 1) * setting.E)
            for k, F_k in enumerate(before):
                right[r, k] = bounds.local_bound(c, F_k, step, setting.E, c.adaptation[k], jump)
        by_jump.append(right)
    return _local(measured, *by_jump)


def measure_theorem_4(method: Method, run: Run, c: Constants, setting: Setting) -> Local:
    """F_k(W^{tE + 1/2 Phi}) - F_k* against L |W^{tE + 1/2} - W*| + D.

    The proof's D has F_k(W*) - F_k* for Gamma_2 and, after the triangle inequality, L |Phi_k W - W|.
    """
    minima = method.trained.losses(method.H_k_star)
    measured = torch.stack([method.trained.losses(H[:, None]).mean(dim=0) - minima for H in run.H[1:]])
    apart = (run.H[1:] - method.H_star).flatten(-2).norm(dim=-1).mean(dim=1)  # [R]
    adaptation = method.adaptation
    D = torch.tensor([bounds.D_of_theorem_4(c, setting.E_W, a) for a in c.adaptation], dtype=torch.float64)
    D_proof = c.loss_offset + c.L * adaptation
    return _local(measured, c.L * apart[:, None] + D, c.L * apart[:, None] + D_proof)


def _local(measured: Tensor, bound: Tensor, bound_of_proof: Tensor) -> Local:
    return Local(
        pairs=measured.numel(),
        held=int((measured <= bound).sum()),
        held_by_proof=int((measured <= bound_of_proof).sum()),
        slack=(bound - measured).amin(dim=1).tolist(),
        measured=measured.mean(dim=1).tolist(),
        bound=bound.mean(dim=1).tolist(),
    )


@dataclass(frozen=True)
class Check:
    """Everything measured of one method."""

    method: Method
    run: Run
    theorem_1: Global
    theorem_2: Local
    theorem_3: Global
    theorem_4: Local


def check(method: Method, setting: Setting, seed: int) -> Check:
    L, mu, E = method.trained.L, method.trained.mu, setting.E
    run = train(method.trained, setting, bounds.gamma_of_theorem_1(L / mu, E), seed)
    first = measure_global(method, run, setting, 1)
    c = first.constants
    # Theorem 3 has another gamma, and steps so small that one repeat is as good as many
    once = dataclasses.replace(setting, repeats=1)
    slow = train(method.trained, once, bounds.gamma_of_theorem_3(c, E), seed)
    return Check(
        method=method,
        run=run,
        theorem_1=first,
        theorem_2=measure_theorem_2(method, run, c, setting),
        theorem_3=measure_global(method, slow, once, 3),
        theorem_4=measure_theorem_4(method, run, c, setting),
    )


def rounds_until_false(found: Global, floor: float) -> float:
    """The T at which the printed bound sinks below a gap that never closes; infinite without one."""
    if floor <= 0:
        return math.inf
    c = found.constants
    total = c.kappa * (2 * found.B.total / c.mu + c.mu * found.gamma / 2 * c.distance_squared)
    return total / floor - found.gamma + 1
