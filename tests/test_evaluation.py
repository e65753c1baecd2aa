import json
import math
import statistics

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from fedgela.evaluation import accuracy, client_accuracies, mean_accuracy, mean_angles, train_loss


def random_counts(seed: int, clients: int, C: int) -> tuple[np.ndarray, np.ndarray]:
    """Right answers and test samples [N, C]; many classes and some whole clients are not tested."""
    rng = np.random.default_rng(seed)
    total = rng.integers(0, 6, (clients, C)) * (rng.random((clients, C)) < 0.6)
    total[rng.random(clients) < 0.3] = 0
    return rng.integers(0, total + 1), total


def mean(values: list[float]) -> float | None:
    return statistics.fmean(values) if values else None


def approx(value: float | None) -> object:
    return None if value is None else pytest.approx(value, abs=1e-9)


@given(st.integers(0, 10**6), st.integers(1, 7), st.integers(1, 5))
def test_mean_accuracy_equals_loops(seed: int, N: int, C: int) -> None:
    right, total = random_counts(seed, N, C)
    assume(total.sum() > 0)
    record = mean_accuracy("PA", torch.from_numpy(right), torch.from_numpy(total))

    tested = [k for k in range(N) if total[k].sum() > 0]
    by_client = [100 * right[k].sum() / total[k].sum() for k in tested]
    balanced = [
        statistics.fmean(100 * right[k, c] / total[k, c] for c in range(C) if total[k, c]) for k in tested
    ]
    by_class = [mean([100 * right[k, c] / total[k, c] for k in tested if total[k, c]]) for c in range(C)]
    assert record == {
        "PA": approx(mean(by_client)),
        "PA_worst": approx(min(by_client)),
        "PA_p10": approx(float(np.percentile(by_client, 10))),
        "PA_weighted": approx(100 * right.sum() / total.sum()),
        "PA_balanced": approx(mean(balanced)),
        "PA_by_class": [approx(value) for value in by_class],
        "PA_clients_left_out": N - len(tested),
    }


@given(st.integers(0, 10**6), st.integers(1, 6))
def test_accuracy_equals_loops(seed: int, C: int) -> None:
    right, total = (counts[0] for counts in random_counts(seed, 1, C))
    record = accuracy("GA", torch.from_numpy(right), torch.from_numpy(total))
    by_class = [100 * right[c] / total[c] if total[c] else None for c in range(C)]
    assert record == {
        "GA": approx(100 * right.sum() / total.sum() if total.sum() else None),
        "GA_balanced": approx(mean([value for value in by_class if value is not None])),
        "GA_by_class": [approx(value) for value in by_class],
    }


def test_mean_accuracy_weighs_clients_alike_whatever_their_size() -> None:
    right, total = torch.tensor([[90, 0], [0, 0], [0, 1]]), torch.tensor([[100, 0], [0, 0], [0, 2]])
    record = mean_accuracy("PA", right, total)
    assert record["PA"] == pytest.approx((90 + 50) / 2)
    assert record["PA_weighted"] == pytest.approx(100 * 91 / 102)
    assert record["PA_clients_left_out"] == 1


def test_client_accuracies_have_a_place_for_everybody() -> None:
    right, total = torch.tensor([[1, 2], [0, 0], [0, 0]]), torch.tensor([[2, 2], [0, 0], [0, 3]])
    assert client_accuracies(right, total) == [75.0, None, 0.0]


@given(st.integers(0, 10**6), st.integers(1, 7), st.integers(1, 5))
def test_client_accuracies_equal_a_loop(seed: int, N: int, C: int) -> None:
    right, total = random_counts(seed, N, C)
    got = client_accuracies(torch.from_numpy(right), torch.from_numpy(total))
    assert got == [
        approx(100 * right[k].sum() / total[k].sum() if total[k].sum() else None) for k in range(N)
    ]


def test_records_are_json_without_nan() -> None:
    right, total = torch.zeros(3, dtype=torch.int64), torch.tensor([0, 0, 4])
    one = torch.eye(2)[None]
    record = accuracy("GA", right, total) | mean_accuracy("PA", right[None], total[None])
    record |= mean_angles("local", one, torch.tensor([[True, False]]))
    record |= train_loss(torch.zeros(2), torch.zeros(2))
    json.dumps(record, allow_nan=False)


def test_mean_angles_leave_out_clients_without_a_pair() -> None:
    # client 0 has two classes at a right angle; client 1 has one class only, so no pair
    vectors = torch.tensor([[[1.0, 0], [0, 1], [-1, 0]]] * 2)
    record = mean_angles("local", vectors, torch.tensor([[True, True, False], [True, False, False]]))
    assert record["angle_existing_local"] == pytest.approx(90)
    assert record["angle_missing_local"] == pytest.approx(90)
    assert record["angle_all_local"] == pytest.approx((90 + 180 + 90) / 3)


def test_an_angle_nobody_has_is_none() -> None:
    record = mean_angles("global", torch.eye(2), torch.ones(3, 2, dtype=torch.bool))
    assert record["angle_missing_global"] is None
    assert record["angle_existing_global"] == pytest.approx(90)


def test_train_loss_is_the_mean_over_samples() -> None:
    record = train_loss(torch.tensor([6.0, 0.0, 2.0]), torch.tensor([3, 0, 1]))
    assert record["train_loss"] == pytest.approx(2.0)
    assert record["train_loss_by_class"] == [2.0, None, 2.0]


def test_a_loss_that_is_not_finite_is_none() -> None:
    record = train_loss(torch.tensor([math.inf, 4.0, math.nan]), torch.tensor([1, 2, 1]))
    assert record["train_loss"] is None
    assert record["train_loss_by_class"] == [None, 2.0, None]
