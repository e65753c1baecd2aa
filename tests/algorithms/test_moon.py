"""MOON: features near the global model's and away from the client's own last model's."""

import copy
import math
from pathlib import Path

import numpy as np
import torch

from algorithms.by_hand import (
    Weights,
    assert_follows,
    ce_by_hand,
    features_by_hand,
    gradients,
    logits_by_hand,
    small_batch,
    small_net,
    snapshot,
    weights_of,
)
from fedgela.algorithms.fedavg import FedAvg
from fedgela.algorithms.moon import MOON
from fedgela.resolve import resolve
from fedgela.server import Server
from helpers import Recording, assert_same_run, play, same, serve, tiny

BATCH = small_batch([0, 1, 2, 1, 0])
ROUND_OFF = 1e-15


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return sum(a * b) / math.sqrt(sum(a * a) * sum(b * b))


def test_loss_and_step() -> None:
    method = MOON(mu=3.0, tau=0.4)
    net, server, last = (small_net(method, seed) for seed in range(3))

    def reference(w: Weights, _: Weights) -> np.ndarray:
        z, z_g, z_p = (features_by_hand(of, BATCH[0]) for of in (w, weights_of(server), weights_of(last)))
        terms = []
        for i in range(len(z)):
            near, away = (math.exp(cosine(z[i], other[i]) / 0.4) for other in (z_g, z_p))
            terms.append(-math.log(near / (near + away)))
        return ce_by_hand(logits_by_hand(w, BATCH[0]), BATCH[1]) + 3.0 * np.array(terms)

    assert_follows(method, net, BATCH, method.references(snapshot(server), snapshot(last)), reference)


def test_on_a_first_visit_the_term_is_ln_2_without_gradient() -> None:
    method = MOON()
    net, server = small_net(method, 0), small_net(method, 1)
    first = method.references(snapshot(server), None)
    term = method.loss(net, *BATCH, first) - FedAvg().loss(net, *BATCH, {})
    torch.testing.assert_close(term, torch.full_like(term, 5.0 * math.log(2)), rtol=0, atol=1e-14)
    plain = gradients(FedAvg(), net, BATCH, {})
    for name, gradient in gradients(method, net, BATCH, first).items():
        torch.testing.assert_close(gradient, plain[name], rtol=0, atol=ROUND_OFF)
    # a client with a last model of its own does feel it
    last = method.references(snapshot(server), snapshot(small_net(method, 2)))
    felt = gradients(method, net, BATCH, last)["projection.weight"] - plain["projection.weight"]
    assert felt.abs().max() > 1e-3


LOSS = ("train_loss", "train_loss_by_class")


def test_a_first_round_is_fedavgs_but_for_the_loss(npz: Path) -> None:
    changes = {"rounds": 1, "epochs": 2, "sample": 3}
    moon, plain = (tiny(npz, algorithm=name, **changes) for name in ("moon", "fedavg"))
    assert_same_run(moon, plain, but=LOSS)


def test_it_parts_from_fedavg_in_the_second_round(npz: Path) -> None:
    def apart(rounds: int) -> float:
        ends = [
            play(serve(tiny(npz, algorithm=name, rounds=rounds, epochs=2)))[0].server.model
            for name in ("moon", "fedavg")
        ]
        return (ends[0]["projection.weight"] - ends[1]["projection.weight"]).abs().max().item()

    assert apart(1) < 1e-6
    assert apart(2) > 1e-4


def test_the_last_model_teaches_and_the_servers_is_where_training_starts(npz: Path) -> None:
    store = Recording()
    server = Server(*resolve(tiny(npz, algorithm="moon", sample=2, rounds=6)), store)
    progress, again = server.begin(), 0
    for _ in range(6):
        before = dict(store.models)
        for client in server.select(progress.round + 1):
            job = server.job(progress, client)
            taught = {n[9:]: v for n, v in job.references.items() if n.startswith("previous/")}
            # its own last local model, however long ago, and on a first visit the global one
            assert same(taught, before.get(client, progress.server.model))
            assert same(job.start, progress.server.model)
            again += client in before
        server.step(progress)
    assert again


def test_teachers_run_in_evaluation_mode_and_leave_no_trace() -> None:
    method = MOON()
    net, server, last = (small_net(method, seed, norm=True) for seed in range(3))
    with torch.no_grad():
        for teacher in (server, last):  # statistics that no batch has
            teacher.backbone.norm.running_mean.fill_(0.3)
    client = method.references(snapshot(server), snapshot(last))
    for value in client.values():
        if value.is_floating_point():
            value.requires_grad_(True)
    kept = copy.deepcopy(client)
    alone = copy.deepcopy(net)
    FedAvg().loss(alone, *BATCH, {})
    loss = method.loss(net, *BATCH, client)
    loss.mean().backward()
    # the training net's statistics moved by its own one pass only
    for name, value in snapshot(net).items():
        assert torch.equal(value, snapshot(alone)[name]), name
    assert all(module.training for module in net.modules())
    assert all(value.grad is None for value in client.values())
    assert all(torch.equal(value, kept[name]) for name, value in client.items())
    # evaluation mode: a sample's teacher feature does not depend on its batch
    x = BATCH[0]
    z = net.features_of(snapshot(server), x)
    torch.testing.assert_close(net.features_of(snapshot(server), x[:1]), z[:1])
    net.eval()
    net.features_of(snapshot(server), x)
    assert not any(module.training for module in net.modules())
