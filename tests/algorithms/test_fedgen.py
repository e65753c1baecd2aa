"""FedGen: a generator of features, taught by the clients' heads, teaches the clients."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from algorithms.by_hand import (
    SMALL_C,
    SMALL_D,
    Weights,
    assert_follows,
    ce_by_hand,
    features_by_hand,
    linear,
    slope,
    small_batch,
    small_net,
    softmax_by_hand,
)
from fedgela import runs
from fedgela.algorithms import Moment, ServerState, Update, fedgen
from fedgela.algorithms.fedgen import FedGen, diversity
from fedgela.files import read_tensors
from fedgela.models import State
from fedgela.randomness import generator, uniform
from helpers import Notes, assert_same_run, play, run_cut, serve, tiny

SMALL = {"noise": 2, "hidden": 3, "generated": 8}
LABELS = [0, 1, 0, 0, 1]


def generator_of(extra: State) -> Weights:
    return {n.removeprefix("G/"): v.double().numpy() for n, v in extra.items() if n.startswith("G/")}


def generate_by_hand(G: Weights, eps: np.ndarray, y: list[int], training: bool) -> np.ndarray:
    """Linear, BatchNorm, ReLU, Linear on noise and one-hot label."""
    one_hot = np.eye(SMALL_C)[y]
    a = linear(G, "layers.0", np.concatenate([eps, one_hot], axis=1))
    mean, variance = G["layers.1.running_mean"], G["layers.1.running_var"]
    if training:
        mean, variance = a.mean(axis=0), ((a - a.mean(axis=0)) ** 2).mean(axis=0)
    a = (a - mean) / np.sqrt(variance + 1e-5) * G["layers.1.weight"] + G["layers.1.bias"]
    return linear(G, "layers.3", np.maximum(a, 0))


# -- the client ------------------------------------------------------------------------------------


@pytest.mark.parametrize("strength", [(0.0, 0.0), (2.0, 0.0), (0.0, 3.0), (2.0, 3.0)])
def test_loss_and_step(strength: tuple[float, float]) -> None:
    method = FedGen(**SMALL)
    net = small_net(method).float()  # a step's draws are float32
    x, y = small_batch(LABELS)
    extra = method.initial_extra(SMALL_D, SMALL_C, 0)
    extra["G/layers.1.running_mean"] += 0.2  # clients do not train G: these count, not their batch's
    draw = torch.tensor(1234)
    client = {**extra, "strength": torch.tensor(strength), "draw": draw}
    y_any = (uniform(draw, 0, (8,)) * SMALL_C).long()
    eps_any, eps = (uniform(draw, s, (n, 2)).double().numpy() for s, n in ((1, 8), (2, len(y))))
    G = generator_of(extra)
    alpha, beta = strength

    def reference(w: Weights, fixed: Weights) -> np.ndarray:
        logits = linear(w, "head", features_by_hand(w, x))
        z_any = generate_by_hand(G, eps_any, y_any.tolist(), training=False)
        ce_generated = ce_by_hand(linear(w, "head", z_any), y_any).mean()
        # KL(softmax h(G(y)) || softmax f(x)), its target without gradient
        targets = linear(fixed, "head", generate_by_hand(G, eps, y.tolist(), training=False))
        kl = []
        for mine, target in zip(logits, targets, strict=True):
            q, p = softmax_by_hand(mine), softmax_by_hand(target)
            kl.append(sum(p[c] * math.log(p[c] / q[c]) for c in range(SMALL_C)))
        return ce_by_hand(logits, y) + 8 / len(y) * alpha * ce_generated + beta * np.array(kl)

    assert_follows(method, net, (x.float(), y), client, reference, rtol=1e-5, atol=1e-6)


def test_labels_are_drawn_over_all_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    # also over those that the client lacks
    method = FedGen(**SMALL)
    net = small_net(method).float()
    x, y = small_batch([0, 0])
    extra = method.initial_extra(SMALL_D, SMALL_C, 0)
    labels: list[Tensor] = []
    generate = fedgen.generate

    def watched(state: State, eps: Tensor, y: Tensor, C: int) -> Tensor:
        labels.append(y[:8])
        assert y[8:].tolist() == [0, 0]  # the batch's own labels for the KL
        return generate(state, eps, y, C)

    monkeypatch.setattr(fedgen, "generate", watched)
    for draw in range(150):
        method.loss(net, x.float(), y, extra | {"draw": torch.tensor(draw)})
    share = torch.bincount(torch.cat(labels), minlength=SMALL_C) / 1200
    torch.testing.assert_close(share, torch.full((3,), 1 / 3), rtol=0, atol=0.05)


def test_the_generator_gets_nothing_from_a_client() -> None:
    method = FedGen(**SMALL)
    net = small_net(method).float()
    x, y = small_batch(LABELS)
    extra = method.initial_extra(SMALL_D, SMALL_C, 0) | {"strength": torch.ones(2)}
    before = {name: value.clone() for name, value in extra.items()}
    for value in extra.values():
        if value.is_floating_point():
            value.requires_grad_(True)
    strength = extra.pop("strength").detach()
    client = {**extra, "strength": strength, "draw": torch.tensor(0)}
    method.loss(net, x.float(), y, client).mean().backward()
    assert all(value.grad is None for value in extra.values())
    assert all(torch.equal(value, before[name]) for name, value in extra.items())  # statistics too


# -- the generator ---------------------------------------------------------------------------------


def test_diversity_against_a_double_loop() -> None:
    eps, z = torch.rand(5, 2, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64)
    total = 0.0
    for i in range(5):
        for j in range(5):
            noise = sum((eps[i, a] - eps[j, a]).item() ** 2 for a in range(2)) / 2
            total += noise * sum(abs((z[i, a] - z[j, a]).item()) for a in range(3)) / 3
    assert diversity(eps, z).item() == pytest.approx(math.exp(-total / 25))


COUNTS = torch.tensor([[3, 0, 1], [1, 2, 0]])


def updates_of(counts: Tensor = COUNTS, shift: tuple[float, float] = (0.0, 0.0)) -> list[Update]:
    """Two clients with heads of their own; `shift` turns a client's head into another."""
    sent = []
    for k in range(2):
        draws = torch.Generator().manual_seed(k)
        weight = torch.randn(SMALL_C, SMALL_D, generator=draws) * (1 + shift[k])
        model = {"head.weight": weight, "head.bias": torch.randn(SMALL_C, generator=draws)}
        sent.append(Update(k, int(counts[k].sum()), model, FedGen().sends(counts[k], lambda: None)))  # type: ignore[arg-type, return-value]
    return sent


def begin(method: FedGen) -> ServerState:
    return ServerState({}, method.initial_extra(SMALL_D, SMALL_C, 0))


def aggregated(
    method: FedGen, updates: list[Update], round: int = 1, before: ServerState | None = None
) -> ServerState:
    return method.aggregate(before or begin(method), updates, Moment(0, round))


@pytest.mark.parametrize("eta", [0.0, 1.0])
@pytest.mark.parametrize("counts", [COUNTS, torch.tensor([[3, 2, 1], [0, 0, 0]])])
def test_the_generators_gradient(eta: float, counts: Tensor) -> None:
    method = FedGen(**SMALL, eta=eta, generator_steps=1, generator_weight_decay=0.05)
    extra = method.initial_extra(SMALL_D, SMALL_C, 0)
    updates = updates_of(counts)
    after = aggregated(method, updates)
    draws = generator(0, "generator", 1)
    y = torch.randint(SMALL_C, (8,), generator=draws)
    eps = torch.rand(8, 2, generator=draws).double().numpy()
    heads = [{n: v.double().numpy() for n, v in update.model.items()} for update in updates]
    G = generator_of(extra)

    def objective() -> float:
        z = generate_by_hand(G, eps, y.tolist(), training=True)
        total = 0.0
        for k, head in enumerate(heads):
            ce = ce_by_hand(linear(head, "head", z), y)
            share = [counts[k, c].item() / max(counts[:, c].sum().item(), 1) for c in y.tolist()]  # w_{k,y}
            total += sum(share[i] * ce[i] for i in range(8)) / 8
        apart = [
            ((eps[i] - eps[j]) ** 2).mean() * abs(z[i] - z[j]).mean() for i in range(8) for j in range(8)
        ]
        return total + eta * math.exp(-sum(apart) / 64)

    names = [f"layers.{i}.{part}" for i in (0, 1, 3) for part in ("weight", "bias")]
    for i, name in enumerate(names):
        gradient = slope(objective, G[name]) + 0.05 * G[name]
        mean = after.private[f"adam/{i}/exp_avg"]  # after one step a tenth of the gradient
        np.testing.assert_allclose(mean.double().numpy() / 0.1, gradient, rtol=1e-3, atol=2e-6, err_msg=name)
    # and its first step is lr, down every slope
    moved = after.extra["G/layers.3.weight"] - extra["G/layers.3.weight"]
    sign = after.private["adam/4/exp_avg"].sign()
    torch.testing.assert_close(moved, -3e-4 * sign, rtol=0, atol=3e-6)


def test_it_is_taught_by_the_clients_own_heads() -> None:
    method = FedGen(**SMALL, generator_steps=2)
    plain, other = (aggregated(method, updates_of(shift=(0.0, s))).extra for s in (0.0, 0.5))
    assert not torch.equal(plain["G/layers.3.weight"], other["G/layers.3.weight"])
    # a head whose client has no samples of any class has nothing to say
    mute = torch.tensor([[3, 2, 1], [0, 0, 0]])
    quiet = [aggregated(method, updates_of(mute, (0.0, s))).extra for s in (0.0, 0.5)]
    assert all(torch.equal(quiet[0][name], quiet[1][name]) for name in quiet[0])


def test_strength_starts_at_zero_and_decays_to_the_floor() -> None:
    method = FedGen(**SMALL, alpha=10.0, beta=0.0, generator_steps=0)
    extra = method.initial_extra(SMALL_D, SMALL_C, 0)
    assert extra["strength"].tolist() == [0, 0]
    for round in (1, 2, 3, 2000):
        strength = aggregated(method, updates_of(), round).extra["strength"]
        # of the coming round; a term that is off stays off
        assert strength.tolist() == pytest.approx([max(10 * 0.98**round, 1e-4), 0.0])


def test_the_generators_rate_decays() -> None:
    moved = []
    for round in (1, 11):
        method = FedGen(**SMALL, generator_steps=1)
        extra = method.initial_extra(SMALL_D, SMALL_C, 0)
        after = aggregated(method, updates_of(), round).extra
        moved.append((after["G/layers.3.bias"] - extra["G/layers.3.bias"]).abs().max().item())
    assert moved[1] / moved[0] == pytest.approx(0.98**10, rel=1e-3)  # Adam's first step is its rate


def test_adams_moments_last_over_rounds() -> None:
    method = FedGen(**SMALL, generator_steps=2)
    first = aggregated(method, updates_of())
    second = aggregated(method, updates_of(), 2, first)
    assert first.private["adam/0/step"].item() == 2
    assert second.private["adam/0/step"].item() == 4
    fresh = aggregated(method, updates_of(), 2, ServerState(first.model, first.extra))
    assert not torch.equal(second.extra["G/layers.3.weight"], fresh.extra["G/layers.3.weight"])
    # and never leave the server
    assert not any(name.startswith("adam/") for name in second.extra)


# -- whole runs ------------------------------------------------------------------------------------

TINY: dict[str, Any] = {"name": "fedgen", "hidden": 16, "noise": 4, "generator_steps": 3}


def test_the_first_round_is_fedavgs(npz: Path) -> None:
    changes = {"rounds": 1, "epochs": 2, "sample": 3}
    assert_same_run(tiny(npz, algorithm=TINY, **changes), tiny(npz, algorithm="fedavg", **changes))


def test_it_parts_from_fedavg_in_the_second_round(npz: Path) -> None:
    ends = [
        play(serve(tiny(npz, algorithm=algorithm, rounds=2)))[0].server.model["projection.weight"]
        for algorithm in (TINY, "fedavg")
    ]
    assert (ends[0] - ends[1]).abs().max() > 1e-3


def test_moments_survive_an_interruption_and_the_run_says_what_it_shares(npz: Path, tmp_path: Path) -> None:
    experiment = tiny(npz, algorithm=TINY, rounds=4, sample=2)
    listener = Notes()
    runs.run(experiment, tmp_path / "whole", listener)
    run_cut(experiment, tmp_path / "cut", at=2)
    runs.resume(tmp_path / "cut")
    states = []
    for folder in ("whole", "cut"):
        last = max((tmp_path / folder / "checkpoints").iterdir())
        states.append(
            {k: v for k, v in read_tensors(last)[0].items() if k.startswith(("extra/", "private/"))}
        )
    assert "private/adam/0/exp_avg_sq" in states[0]
    assert states[0]["private/adam/0/step"].item() == 4 * 3
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())

    shares = json.loads((tmp_path / "whole/result.json").read_text())["shares"]
    assert "label counts" in shares
    assert listener.notes == [f"FedGen shares more than weights: {shares}"]
