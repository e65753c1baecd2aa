"""Drift and the cost of adaptation, against numbers worked out by hand."""

import math

import pytest
import torch

from fedgela.geometry import phi, simplex_etf
from fedgela.measures import adaptation_cost, distance, drift, state_norm

SERVER = {"a": torch.tensor([3.0, 0.0]), "head": torch.tensor([4.0]), "steps": torch.tensor(5)}
LOCAL = {"a": torch.tensor([3.0, 2.0]), "head": torch.tensor([8.0]), "steps": torch.tensor(9)}


def test_norms_count_float_entries_only() -> None:
    assert float(state_norm(SERVER)) == 5
    assert float(state_norm({})) == 0


def test_distance_is_over_float_entries() -> None:
    assert float(distance(LOCAL, SERVER)) == pytest.approx(math.sqrt(4 + 16))
    assert float(distance(LOCAL, {"a": SERVER["a"]})) == 2


def test_drift_is_relative_to_the_global_model() -> None:
    assert float(drift(LOCAL, SERVER)) == pytest.approx(math.sqrt(20) / 5)
    assert float(drift(LOCAL, SERVER, lambda name: name == "a")) == pytest.approx(2 / 3)


def test_cost_is_the_norm_of_the_difference() -> None:
    counts = torch.tensor([[30, 10, 0], [0, 0, 7]])
    W = math.sqrt(10.0) * simplex_etf(6, 3, seed=0).T
    lengths = phi(counts)
    expected = [float((lengths[k][:, None] * W - W).double().norm()) for k in range(2)]
    assert adaptation_cost(lengths, W.norm(dim=1)).tolist() == pytest.approx(expected, rel=1e-5)
    # the form of `fedgela inspect`, which knows the length of W's vectors only
    assert (math.sqrt(10.0) * adaptation_cost(lengths)).tolist() == pytest.approx(expected, rel=1e-5)
