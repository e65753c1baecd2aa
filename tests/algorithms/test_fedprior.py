"""FedPrior: the fixed ETF, with a client's class shares beside its logits."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedgela.algorithms import FedGE, FedPrior
from fedgela.geometry import phi


def vectors_of(method: FedPrior, *counts: list[int]) -> list[dict[str, torch.Tensor]]:
    of_all = method.client_vectors(torch.tensor(counts), {})
    return [{name: value[k] for name, value in of_all.items()} for k in range(len(counts))]


def test_a_clients_vector_is_the_logarithm_of_its_shares_and_the_floor() -> None:
    skewed, even, empty = vectors_of(FedPrior(floor=0.25), [3, 1, 0], [2, 2, 2], [0, 0, 0])
    assert skewed["prior"].exp().tolist() == pytest.approx([1.0, 0.5, 0.25])
    assert even["prior"].exp().tolist() == pytest.approx([7 / 12] * 3)
    assert empty["prior"].unique().numel() == 1  # a client without samples prefers no class


def test_the_loss_is_a_softmax_over_the_logits_and_the_prior() -> None:
    method, x, y = FedPrior(floor=0.25), torch.randn(4, 3), torch.tensor([0, 1, 1, 0])
    skewed, even = vectors_of(method, [3, 1, 0], [2, 2, 2])
    expected = torch.logsumexp(x + skewed["prior"], dim=1) - (x + skewed["prior"])[range(4), y]
    assert torch.allclose(method.loss(nn.Identity(), x, y, skewed), expected)
    plain = F.cross_entropy(x, y, reduction="none")
    assert torch.allclose(method.loss(nn.Identity(), x, y, even), plain)  # of even shares it is FedGE


def test_the_shares_are_the_clients_and_not_the_global_models() -> None:
    method, x = FedPrior(floor=0.25), torch.zeros(1, 3)
    (skewed,) = vectors_of(method, [3, 1, 0])
    assert torch.equal(method.predict_global(nn.Identity(), x), x)
    personal = method.predict_personal(nn.Identity(), x, skewed)
    assert personal.argmax() == 0
    assert math.isclose(personal[0, 0] - personal[0, 2], math.log(4), rel_tol=1e-6)


def test_only_the_body_travels_and_no_count_is_shared() -> None:
    method = FedPrior()
    assert not method.travels("head.classifier.weight") and method.travels("backbone.conv1.weight")
    assert method.shares() is None and method.statistics(torch.tensor([[3, 1, 0]])) == {}
    assert torch.equal(method.head(8, 3, 0).classifier.weight, FedGE().head(8, 3, 0).classifier.weight)


def test_its_ablations_have_lengths_beside_the_shares_or_a_learnable_head() -> None:
    x, counts = torch.randn(2, 3), [3, 1, 0]
    (both,) = vectors_of(FedPrior(adapt=True, phi="even"), counts)
    adapted = FedPrior().predict_personal(nn.Identity(), x, both)
    assert torch.allclose(adapted, phi(torch.tensor(counts), "even") * x + both["prior"])
    assert isinstance(FedPrior(etf=False).head(8, 3, 0).classifier, nn.Linear)
    present = FedPrior(personal_prediction="present").predict_personal(nn.Identity(), x, both)
    assert present[:, 2].tolist() == [-math.inf, -math.inf]
