"""A small federation of digits, and a problem small enough to check by hand."""

import pytest
import torch
from theory_setting import SMALL

from fedgela.theory.convergence import Check, check, make_methods
from fedgela.theory.problem import Problem


@pytest.fixture(scope="session")
def small_checks() -> list[Check]:
    """FedAvg, FedGE and FedGELA on digits in six dimensions, a few rounds."""
    return [check(method, SMALL, 0) for method in make_methods(SMALL, 0)]


@pytest.fixture
def tiny_problem() -> Problem:
    """Two clients of 3 and 2 samples, 3 classes, H of shape (2, 4); client 1 has a row of padding."""
    draw = torch.Generator().manual_seed(0)
    X = torch.randn(2, 3, 4, generator=draw, dtype=torch.float64)
    X[1, 2] = 0
    heads = torch.randn(2, 3, 2, generator=draw, dtype=torch.float64)
    a = torch.tensor([[1 / 3, 1 / 3, 1 / 3], [1 / 2, 1 / 2, 0]], dtype=torch.float64)
    sizes = torch.tensor([3.0, 2.0], dtype=torch.float64)
    return Problem(X, torch.tensor([[0, 1, 2], [2, 1, 0]]), a, sizes, heads, mu=0.3)
