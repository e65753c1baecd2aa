"""FedProx: cross-entropy, and mu/2 times the squared way from the global model."""

from pathlib import Path

import numpy as np
import pytest

from algorithms.by_hand import (
    Weights,
    assert_follows,
    ce_by_hand,
    logits_by_hand,
    small_batch,
    small_net,
    snapshot,
    weights_of,
)
from fedgela.algorithms.fedprox import FedProx
from helpers import assert_same_run, play, same, serve, tiny

BATCH = small_batch([0, 1, 2, 1, 0])


@pytest.mark.parametrize("mu", [0.0, 0.7])
def test_loss_and_step(mu: float) -> None:
    method = FedProx(mu=mu)
    net, far = small_net(method, seed=0), small_net(method, seed=1)

    def reference(w: Weights, _: Weights) -> np.ndarray:
        away = sum(((w[name] - w_t) ** 2).sum() for name, w_t in weights_of(far).items())
        return ce_by_hand(logits_by_hand(w, BATCH[0]), BATCH[1]) + mu / 2 * away

    assert_follows(method, net, BATCH, method.references(snapshot(far), None), reference)


def test_without_mu_it_is_fedavg(npz: Path) -> None:
    changes = {"rounds": 2, "epochs": 2, "sample": 3}
    prox = tiny(npz, algorithm={"name": "fedprox", "mu": 0.0}, **changes)
    assert_same_run(prox, tiny(npz, algorithm="fedavg", **changes))


def test_w_t_is_the_model_that_the_round_began_with(npz: Path) -> None:
    # so strong a pull that any other anchor, the run's first model for one, would show
    server = serve(tiny(npz, algorithm={"name": "fedprox", "mu": 0.5}, rounds=3, sample=2))
    progress = server.begin()
    for _ in range(3):
        began = progress.server.model
        job = server.job(progress, 0)
        anchor = {n.removeprefix("global/"): v for n, v in job.references.items() if n.startswith("global/")}
        assert same(anchor, began)
        server.step(progress)
        assert not same(progress.server.model, began)


def test_mu_holds_clients_together(npz: Path) -> None:
    def moved(mu: float) -> float:
        algorithm = {"name": "fedprox", "mu": mu}
        server = serve(tiny(npz, algorithm=algorithm, rounds=1, epochs=4, momentum=0.0))
        start = server.begin().server.model
        end = play(server)[0].server.model
        return sum((end[name] - start[name]).square().sum().item() for name in start)

    assert moved(5.0) < 0.5 * moved(0.0)


def test_in_bf16_the_way_is_that_of_the_weights_and_not_of_their_copies(npz: Path) -> None:
    # of a model that does not move it is zero, however its copies are rounded
    still = {"lr": 1e-30, "momentum": 0.0, "weight_decay": 0.0, "precision": "bf16", "engine": "lanes"}
    losses = []
    for mu in (0.0, 10.0):
        server = serve(tiny(npz, algorithm={"name": "fedprox", "mu": mu}, lanes=1, width=1, **still))
        losses.append(server.step(server.begin())["train_loss"])
    assert losses[0] == losses[1]
