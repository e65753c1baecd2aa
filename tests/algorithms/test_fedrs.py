"""FedRS: logits of classes that a client lacks are scaled down."""

from pathlib import Path

import numpy as np
import pytest
import torch

from algorithms.by_hand import (
    Weights,
    assert_follows,
    ce_by_hand,
    doubled,
    logits_by_hand,
    small_batch,
    small_net,
)
from fedgela.algorithms.fedrs import FedRS
from helpers import assert_same_run, tiny

COUNTS = torch.tensor([6, 2, 0])
BATCH = small_batch([0, 1, 0, 0, 1])


@pytest.mark.parametrize(
    ("soft", "a"),
    [
        (False, [1.0, 1.0, 0.3]),
        (True, [0.3 + 0.7 * 6 / 6, 0.3 + 0.7 * 2 / 6, 0.3 + 0.7 * 0 / 6]),
    ],
)
def test_loss_and_step(soft: bool, a: list[float]) -> None:
    method = FedRS(alpha=0.3, soft=soft)

    def reference(w: Weights, _: Weights) -> np.ndarray:
        return ce_by_hand(np.array(a) * logits_by_hand(w, BATCH[0]), BATCH[1])

    client = doubled(method.client_vectors(COUNTS, {}))
    assert_follows(method, small_net(method), BATCH, client, reference)


@pytest.mark.parametrize("soft", [False, True])
def test_alpha_of_one_is_fedavg(npz: Path, soft: bool) -> None:
    changes = {"rounds": 2, "epochs": 2, "sample": 3}
    plain = tiny(npz, algorithm="fedavg", **changes)
    assert_same_run(tiny(npz, algorithm={"name": "fedrs", "alpha": 1.0, "soft": soft}, **changes), plain)


def test_alpha_of_zero_takes_a_missing_class_out_of_the_gradient_of_its_vector() -> None:
    method = FedRS(alpha=0.0)
    net = small_net(method)
    method.loss(net, *BATCH, doubled(method.client_vectors(COUNTS, {}))).mean().backward()
    gradient = net.head.weight.grad
    assert gradient is not None
    assert (gradient[2] == 0).all()
    assert (gradient[:2] != 0).all()


def test_prediction_is_by_the_plain_logits() -> None:
    method = FedRS(alpha=0.1)
    net, client = small_net(method), method.client_vectors(COUNTS, {})
    assert torch.equal(method.predict_personal(net, BATCH[0], client), net(BATCH[0]))


def test_vectors_of_many_clients_at_once() -> None:
    # a client without samples divides by nothing
    counts = torch.stack([COUNTS, torch.zeros(3, dtype=torch.int64)])
    for soft in (False, True):
        a = FedRS(soft=soft).client_vectors(counts, {})["a"]
        assert torch.equal(a[0], FedRS(soft=soft).client_vectors(COUNTS, {})["a"])
        assert torch.equal(a[1], torch.full((3,), 0.5))
