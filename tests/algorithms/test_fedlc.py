"""FedLC: a margin of tau n_c^(-1/4) on every logit."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from algorithms.by_hand import (
    Weights,
    assert_follows,
    ce_by_hand,
    doubled,
    logits_by_hand,
    small_batch,
    small_net,
)
from fedgela.algorithms.fedavg import FedAvg
from fedgela.algorithms.fedlc import FedLC

BATCH = small_batch([0, 1, 0, 0, 1])


@pytest.mark.parametrize("counts", [[16, 2, 1], [16, 2, 0]])
def test_loss_and_step(counts: list[int]) -> None:
    method = FedLC(tau=0.6)
    margin = np.array([0.6 * (n if n else 1e-8) ** -0.25 for n in counts])

    def reference(w: Weights, _: Weights) -> np.ndarray:
        return ce_by_hand(logits_by_hand(w, BATCH[0]) - margin, BATCH[1])

    client = doubled(method.client_vectors(torch.tensor(counts), {}))
    assert_follows(method, small_net(method), BATCH, client, reference)


def test_a_rarer_class_has_the_larger_margin_and_a_missing_one_a_hundred() -> None:
    margin = FedLC(tau=2.0).client_vectors(torch.tensor([81, 16, 1, 0]), {})["margin"]
    torch.testing.assert_close(margin, torch.tensor([2 / 3, 1.0, 2.0, 200.0]))


def test_equal_counts_are_fedavgs_loss() -> None:
    # softmax does not see what is taken from every logit
    net = small_net(FedLC())
    client = FedLC().client_vectors(torch.tensor([7, 7, 7]), {})
    torch.testing.assert_close(FedLC().loss(net, *BATCH, doubled(client)), FedAvg().loss(net, *BATCH, {}))


@pytest.mark.parametrize("scale", [1.0, 1e4, 1e30])
def test_missing_classes_and_large_logits_stay_finite(scale: float) -> None:
    method = FedLC()
    client = method.client_vectors(torch.tensor([5, 0, 0, 3]), {})
    logits = (scale * torch.randn(8, 4, generator=torch.Generator().manual_seed(0))).requires_grad_()
    y = torch.tensor([0, 3, 0, 3, 0, 3, 0, 0])

    loss = method.loss(lambda x: x, logits, y, client)  # type: ignore[arg-type]  # a net that only passes on
    loss.mean().backward()
    assert loss.isfinite().all()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
    assert loss.max() > 0


def test_a_missing_class_takes_no_part_at_ordinary_logits() -> None:
    # e^-100: the class is as good as masked, whatever (but for scales of 100) its logit is
    method = FedLC()
    client = method.client_vectors(torch.tensor([5, 0, 3]), {})
    logits = torch.tensor([[0.3, 9.0, -0.7]])
    loss = method.loss(lambda x: x, logits, torch.tensor([0]), client)  # type: ignore[arg-type]
    without = F.cross_entropy((logits - client["margin"])[:, [0, 2]], torch.tensor([0]))
    torch.testing.assert_close(loss[0], without)


def test_prediction_is_by_the_plain_logits() -> None:
    method = FedLC()
    net = small_net(method)
    client = method.client_vectors(torch.tensor([5, 0, 3]), {})
    assert torch.equal(method.predict_personal(net, BATCH[0], client), net(BATCH[0]))
