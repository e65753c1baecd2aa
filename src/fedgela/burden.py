"""What a method costs a client: time of local training, and parameters held, kept and sent."""

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from fedgela.config import Experiment
from fedgela.models import State
from fedgela.resolve import resolve
from fedgela.rounds import Progress
from fedgela.server import Server

WARM_UP_ROUNDS = 2  # by the third round every teacher, prototype and generator is there


@dataclass
class Burden:
    """What a method costs. Parameters are in millions of float entries; time is relative to a reference."""

    method: str
    held: float  # while training: the model, and the models and tensors that its loss compares with
    kept: float  # between rounds, on the client's own disk
    sent: float  # up to the server, in a round
    seconds: float  # of one round's local training and updates, median over repetitions
    ratio: float  # seconds, relative to the reference's, measured right before: median over repetitions
    ratio_low: float  # the quartiles
    ratio_high: float
    reference: str = "fedavg"


def measure(experiments: Mapping[str, Experiment], repetitions: int) -> list[Burden]:
    """What each method costs, relative to FedAvg where that is among them, else to the first."""
    servers, counts = {}, {}
    for name, experiment in experiments.items():
        server = Server(*resolve(experiment))
        progress = server.begin()
        for _ in range(WARM_UP_ROUNDS):
            server.step(progress)
        client = server.select(progress.round)[0]  # one that has trained before
        progress.round += 1
        servers[name] = (server, progress)
        job = server.job(progress, client)
        kept = server.store.get(client)
        outcome = next(iter(server.engine.train(server.plan(progress), [job])))
        update = server.update(outcome)
        counts[name] = (
            _millions(job.start) + _millions(job.references),
            _millions(kept or {}),
            0.0 if server.algorithm.pooled else _millions(update.model) + _millions(update.extra),
        )
    names = list(servers)
    base = next((name for name in names if servers[name][0].algorithm.name == "fedavg"), names[0])
    ratios: dict[str, list[float]] = {name: [] for name in names}
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(repetitions):
        for name in names:  # each is timed right after the reference, since a machine's speed drifts
            before = _train_once(*servers[base])
            seconds[name].append(before if name == base else _train_once(*servers[name]))
            ratios[name].append(seconds[name][-1] / before)
    found = []
    for name in names:
        low, middle, high = (float(q) for q in np.quantile(ratios[name], (0.25, 0.5, 0.75)))
        typical = statistics.median(seconds[name])
        found.append(Burden(name, *counts[name], typical, middle, low, high, reference=base))
    return found


def _train_once(server: Server, progress: Progress) -> float:
    """Seconds of one round's local training and of making the updates, without aggregation or evaluation."""
    jobs = [server.job(progress, client) for client in server.select(progress.round)]
    began = time.perf_counter()
    for outcome in server.engine.train(server.plan(progress), jobs):
        server.update(outcome)  # part of the cost: FedProto computes the features of all samples for it
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - began


def _millions(state: State) -> float:
    return sum(v.numel() for v in state.values() if v.is_floating_point()) / 1e6


def lines(burdens: Sequence[Burden]) -> list[str]:
    """A Markdown table."""
    reference = burdens[0].reference
    (held,) = (b.held for b in burdens if b.method == reference)
    head = (
        f"| method | held while training (M) | of {reference}'s | kept between rounds (M) | sent up (M) "
        f"| time, of {reference}'s | middle half |"
    )
    rows = [
        f"| {b.method} | {b.held:.3f} | {b.held / held:.2f} x | {b.kept:.3f} | {b.sent:.3f} "
        f"| {b.ratio:.2f} x | {b.ratio_low:.2f} to {b.ratio_high:.2f} |"
        for b in burdens
    ]
    return [head, "|---|---|---|---|---|---|---|", *rows]
