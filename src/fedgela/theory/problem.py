"""A federated problem that meets the theorems' assumptions, with known L, mu, sigma and optimum.

    F_k(H) = 1/n_k sum_i CE((Phi_k W)^T H x_i, y_i) + mu/2 |H|^2,     F = sum_k p_k F_k

The body H [d, p] is linear, so that every F_k is smooth and strongly convex in it; the head Phi_k W is
fixed. All classes are in the loss, those that a client lacks with Phi_kc = 0. Everything is exact: means
and variances run over all samples of a client.
"""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fedgela.data import Federation
from fedgela.geometry import phi
from fedgela.randomness import generator
from fedgela.theory.cross_entropy import cross_entropies, errors

NEWTON_STEPS = 100


@dataclass(frozen=True)
class Problem:
    """N clients. Samples are padded to the largest client's number n; padding has no weight."""

    X: Tensor  # [N, n, p]
    y: Tensor  # [N, n]
    a: Tensor  # [N, n], 1 / n_k for a sample, 0 for padding
    sizes: Tensor  # [N], n_k
    heads: Tensor  # [N, C, d], Phi_k W, a row for every class
    mu: float

    @property
    def p_k(self) -> Tensor:
        return self.sizes / self.sizes.sum()

    @property
    def shape(self) -> tuple[int, int]:
        """(d, p) of H."""
        return self.heads.shape[2], self.X.shape[2]

    def with_heads(self, heads: Tensor) -> "Problem":
        return dataclasses.replace(self, heads=heads.expand(len(self.sizes), -1, -1))

    # -- losses, gradients, Hessians, by client: H is [..., N, d, p], or [..., 1, d, p] for a common one

    def losses(self, H: Tensor) -> Tensor:
        """F_k(H), [..., N]."""
        return (cross_entropies(self.logits(H), self.y) * self.a).sum(dim=-1) + self.mu / 2 * _square(H)

    def loss(self, H: Tensor) -> Tensor:
        """F(H) = sum_k p_k F_k(H), [...], of a common H [..., d, p]."""
        return (self.losses(H[..., None, :, :]) * self.p_k).sum(dim=-1)

    def gradients(self, H: Tensor) -> Tensor:
        """dF_k / dH = 1/n_k sum_i (Phi_k W)(softmax - e_y) x_i^T + mu H, [..., N, d, p]."""
        return (self._errors(H) * self.a[..., None]).mT @ self.X + self.mu * H

    def gradient(self, H: Tensor) -> Tensor:
        return (self.gradients(H[..., None, :, :]) * self.p_k[:, None, None]).sum(dim=-3)

    def hessians(self, H: Tensor) -> Tensor:
        """1/n_k sum_i W_k (diag(s) - ss^T) W_k^T (x) x_i x_i^T + mu I, [N, dp, dp], with W_k = Phi_k W."""
        s = self.logits(H).softmax(dim=-1)  # [N, n, C]
        mean = s @ self.heads  # [N, n, d]
        inner = torch.einsum("knc,kcd,kce->knde", s, self.heads, self.heads)
        inner = (inner - mean[..., :, None] * mean[..., None, :]) * self.a[..., None, None]
        outer = self.X[..., :, None] * self.X[..., None, :]  # [N, n, p, p]
        N, n = self.a.shape
        d, p = self.shape
        full = inner.reshape(N, n, d * d).mT @ outer.reshape(N, n, p * p)
        full = full.view(N, d, d, p, p).transpose(2, 3).reshape(N, d * p, d * p)
        return full + self.mu * torch.eye(d * p, dtype=full.dtype)

    def second_moments(self, H: Tensor) -> Tensor:
        """E |gradient of one random sample|^2 on every client, [..., N]."""
        errors = self._errors(H)
        lengths = ((errors**2).sum(dim=-1) * (self.X**2).sum(dim=-1) * self.a).sum(dim=-1)
        mean = (errors * self.a[..., None]).mT @ self.X
        return lengths + 2 * self.mu * (mean * H).sum(dim=(-2, -1)) + self.mu**2 * _square(H)

    def variances(self, H: Tensor) -> Tensor:
        """E |gradient of one random sample - gradient of F_k|^2, [..., N]."""
        return self.second_moments(H) - _square(self.gradients(H))

    def logits(self, H: Tensor) -> Tensor:
        """(Phi_k W)^T H x of every sample, padding included, [..., N, n, C]."""
        return (self.X @ H.mT) @ self.heads.mT

    def _errors(self, H: Tensor) -> Tensor:
        """Phi_k W (softmax - e_y) of every sample, [..., N, n, d]."""
        return errors(self.logits(H), self.y) @ self.heads

    # -- known constants ---------------------------------------------------------------------------

    @cached_property
    def L_k(self) -> Tensor:
        """[N]: F_k is L_k-smooth, L_k = 1/2 |Phi_k W|_2^2 lambda_max(1/n_k sum_i x_i x_i^T) + mu.

        diag(s) - ss^T <= 1/2 for every softmax s. It holds for all H.
        """
        spread = (self.X * self.a[..., None]).mT @ self.X
        longest = torch.linalg.eigvalsh(spread)[..., -1]
        L_k: Tensor = self._head_curvature() * longest + self.mu
        return L_k

    @property
    def L(self) -> float:
        return float(self.L_k.max())

    @property
    def sample_L(self) -> float:
        """The same for the loss of any one sample: 1/2 |Phi_k W|_2^2 max |x|^2 + mu."""
        longest = ((self.X**2).sum(dim=-1) * (self.a > 0)).amax(dim=1)
        return float((self._head_curvature() * longest).max()) + self.mu

    def _head_curvature(self) -> Tensor:
        """1/2 |Phi_k W|_2^2, [N]."""
        curvature: Tensor = torch.linalg.matrix_norm(self.heads, ord=2) ** 2 / 2
        return curvature


def _square(H: Tensor) -> Tensor:
    return (H**2).sum(dim=(-2, -1))


# -- the optimum -----------------------------------------------------------------------------------


def minimise(problem: Problem) -> Tensor:
    """H* [d, p] of F, by damped Newton steps to the limit of float64."""

    def hessian(H: Tensor) -> Tensor:
        all_of_them = problem.hessians(H.expand(len(problem.sizes), -1, -1))
        return (all_of_them * problem.p_k[:, None, None]).sum(dim=0, keepdim=True)

    return _newton(problem.loss, problem.gradient, hessian, torch.zeros(1, *problem.shape).double())[0]


def minimise_locally(problem: Problem) -> Tensor:
    """H_k* [N, d, p] of every F_k, all at once."""
    start = torch.zeros(len(problem.sizes), *problem.shape).double()
    return _newton(problem.losses, problem.gradients, problem.hessians, start)


def _newton(
    loss: Callable[[Tensor], Tensor],
    gradient: Callable[[Tensor], Tensor],
    hessian: Callable[[Tensor], Tensor],
    H: Tensor,
) -> Tensor:
    """Minimise B strongly convex functions of H [B, d, p], each with steps that it halves until it sinks."""
    for _ in range(NEWTON_STEPS):
        slope = gradient(H)
        if float(_square(slope).max().sqrt()) < 1e-12:
            break
        step = torch.linalg.solve(hessian(H), slope.flatten(1)).view_as(H)
        before, falls = loss(H), (slope * step).sum(dim=(-2, -1))
        scale = torch.ones(len(H), 1, 1, dtype=H.dtype)
        for _ in range(40):
            # the slack is what rounding makes of a loss near the minimum
            fails = loss(H - scale * step) > before - 0.25 * scale[:, 0, 0] * falls + 1e-14
            if not fails.any():
                break
            scale[fails] /= 2
        H = H - scale * step
    return H


# -- heads and data --------------------------------------------------------------------------------


def random_head(C: int, d: int, E_W: float, seed: int) -> Tensor:
    """A fixed head that is no ETF: random directions of the same lengths sqrt(E_W), [C, d]."""
    W = torch.randn(C, d, generator=generator(seed, "theory-head"), dtype=torch.float64)
    return math.sqrt(E_W) * torch.nn.functional.normalize(W, dim=1)


def adapted_heads(W: Tensor, counts: Tensor) -> Tensor:
    """Phi_k W of every client, [N, C, d], from class counts [N, C]."""
    return phi(counts).double()[..., None] * W


def embed(x: Tensor, p: int) -> Tensor:
    """Samples [n, ...] in p dimensions, linearly: along their first singular vectors, mean |x|^2 = 1."""
    flat = x.double().flatten(1)
    _, _, V = torch.linalg.svd(flat, full_matrices=False)
    z: Tensor = flat @ V[:p].T
    z /= (z**2).sum(dim=1).mean().sqrt()
    return z


def make_problem(federation: Federation, head: Tensor, p: int, mu: float) -> Problem:
    """The training samples of a federation's clients, all with the same head [C, d]."""
    z = embed(federation.data.x_train, p)
    sizes = torch.tensor([len(federation.train[k]) for k in range(federation.clients)])
    N, n = len(sizes), int(sizes.max())
    X, y = torch.zeros(N, n, p, dtype=torch.float64), torch.zeros(N, n, dtype=torch.int64)
    a = torch.zeros(N, n, dtype=torch.float64)
    for k in range(N):
        mine = federation.train[k]
        X[k, : len(mine)], y[k, : len(mine)] = z[mine], federation.data.y_train[mine]
        a[k, : len(mine)] = 1 / len(mine)
    return Problem(X, y, a, sizes.double(), head.expand(N, -1, -1), mu)
