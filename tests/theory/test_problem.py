"""The strongly convex problem: every formula against autograd or a loop over samples."""

import dataclasses

import pytest
import torch
from torch import Tensor

from fedgela.theory.convergence import Check
from fedgela.theory.layer_peeled import etf_head
from fedgela.theory.problem import Problem, adapted_heads, embed, minimise, minimise_locally


def sample_loss(problem: Problem, k: int, i: int, H: Tensor) -> Tensor:
    """CE((Phi_k W)^T H x_i, y_i) + mu/2 |H|^2, by torch's own cross-entropy."""
    logits = problem.heads[k] @ (H @ problem.X[k, i])
    return torch.nn.functional.cross_entropy(logits, problem.y[k, i]) + problem.mu / 2 * (H**2).sum()


def client_loss(problem: Problem, k: int, H: Tensor) -> Tensor:
    n = int(problem.sizes[k])
    return torch.stack([sample_loss(problem, k, i, H) for i in range(n)]).mean()


def random_H(problem: Problem, seed: int = 1, scale: float = 1.0) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return scale * torch.randn(2, *problem.shape, generator=draw, dtype=torch.float64)


def test_losses_and_gradients(tiny_problem: Problem) -> None:
    H = random_H(tiny_problem).requires_grad_()
    direct = torch.stack([client_loss(tiny_problem, k, H[k]) for k in range(2)])
    (slope,) = torch.autograd.grad(direct.sum(), H)
    assert torch.allclose(tiny_problem.losses(H), direct)
    assert torch.allclose(tiny_problem.gradients(H), slope)


def test_the_global_loss_weighs_clients_by_samples(tiny_problem: Problem) -> None:
    H = random_H(tiny_problem)[0].requires_grad_()
    direct = 0.6 * client_loss(tiny_problem, 0, H) + 0.4 * client_loss(tiny_problem, 1, H)
    (slope,) = torch.autograd.grad(direct, H)
    assert torch.allclose(tiny_problem.loss(H), direct)
    assert torch.allclose(tiny_problem.gradient(H), slope)


def test_hessians(tiny_problem: Problem) -> None:
    H = random_H(tiny_problem)
    for k, found in enumerate(tiny_problem.hessians(H)):
        direct = torch.autograd.functional.hessian(lambda h, k=k: client_loss(tiny_problem, k, h), H[k])
        assert torch.allclose(found, direct.reshape(8, 8))


def test_second_moments_and_variances_enumerate_all_samples(tiny_problem: Problem) -> None:
    H = random_H(tiny_problem)
    moments, variances = tiny_problem.second_moments(H), tiny_problem.variances(H)
    for k in range(2):
        slopes = []
        for i in range(int(tiny_problem.sizes[k])):
            h = H[k].clone().requires_grad_()
            slopes.append(torch.autograd.grad(sample_loss(tiny_problem, k, i, h), h)[0].flatten())
        each = torch.stack(slopes)
        assert float(moments[k]) == pytest.approx(float((each**2).sum(dim=1).mean()))
        assert float(variances[k]) == pytest.approx(float(each.var(dim=0, correction=0).sum()))


@pytest.mark.parametrize("scale", [0.0, 0.1, 1.0, 10.0])
def test_L_and_mu_bound_the_curvature_everywhere(tiny_problem: Problem, scale: float) -> None:
    values = torch.linalg.eigvalsh(tiny_problem.hessians(random_H(tiny_problem, 3, scale)))
    assert (values[:, -1] <= tiny_problem.L_k + 1e-12).all() and tiny_problem.L_k.max() == tiny_problem.L
    assert (values[:, 0] >= tiny_problem.mu - 1e-12).all()
    assert tiny_problem.sample_L >= tiny_problem.L


def test_L_is_reached_by_two_opposite_classes_at_even_odds() -> None:
    """One sample x, w_1 = -w_2: the Hessian at H = 0 is 1/4 (w_1 - w_2)(w_1 - w_2)^T (x) x x^T, by hand."""
    X = torch.tensor([[[2.0]]], dtype=torch.float64)
    heads = torch.tensor([[[1.5], [-1.5]]], dtype=torch.float64)
    one = torch.ones(1, 1, dtype=torch.float64)
    problem = Problem(X, torch.zeros(1, 1, dtype=torch.int64), one, one[0], heads, mu=0.5)
    by_hand = 0.25 * 3.0**2 * 2.0**2 + 0.5
    assert float(problem.hessians(torch.zeros(1, 1, 1).double())) == pytest.approx(by_hand)
    assert pytest.approx(by_hand) == problem.L  # 1/2 |W|^2 x^2 + mu = 1/2 * 4.5 * 4 + 0.5


def test_newton_finds_the_minima(tiny_problem: Problem) -> None:
    H, H_k = minimise(tiny_problem), minimise_locally(tiny_problem)
    assert tiny_problem.gradient(H).norm() < 1e-8
    assert tiny_problem.gradients(H_k).flatten(1).norm(dim=1).max() < 1e-8
    assert (tiny_problem.losses(H_k) <= tiny_problem.losses(H[None])).all()


def test_newton_finds_the_minima_of_digits(small_checks: list[Check]) -> None:
    for found in small_checks:
        assert found.method.plain.gradient(found.method.H_star).norm() < 1e-8
        assert found.method.trained.gradient(found.method.H_trained).norm() < 1e-8
        assert found.method.trained.gradients(found.method.H_k_star).flatten(1).norm(dim=1).max() < 1e-8


def test_newton_survives_a_steep_problem(tiny_problem: Problem) -> None:
    steep = dataclasses.replace(tiny_problem, heads=30 * tiny_problem.heads, mu=0.01)
    assert steep.gradient(minimise(steep)).norm() < 1e-8


def test_adapted_heads_scale_the_rows_by_C_times_the_share() -> None:
    W = etf_head(4, 5, 9.0, seed=0)
    heads = adapted_heads(W, torch.tensor([[3, 1, 0, 0]]))
    assert torch.allclose(heads[0].norm(dim=1), torch.tensor([9.0, 3.0, 0.0, 0.0], dtype=torch.float64))


def test_the_embedding_is_linear_and_of_mean_square_1() -> None:
    x = torch.rand(30, 3, 2, generator=torch.Generator().manual_seed(0))
    z = embed(x, 6)
    assert float((z**2).sum(dim=1).mean()) == pytest.approx(1)
    # all six dimensions are kept: inner products change by one factor alone
    flat = x.double().flatten(1)
    ratio = (z @ z.T) / (flat @ flat.T)
    assert torch.allclose(ratio, ratio[0, 0].expand_as(ratio))
