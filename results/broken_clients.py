"""GA under the rules of `aggregation`, with all clients honest and with two of ten broken.

    python results/broken_clients.py results/sweeps/broken-clients.json

Validation data, the last round; the settings are those of prior.py, and nothing is chosen here. Broken
clients train as the others do, and what they send is made in their update's place. `absent` is the mean of
the eight others: the two take no part, as if a rule had found them out.
"""

import itertools
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import prior
import torch
from sweep import Sweep, note_of
from torch import Tensor

from fedgela.config import Experiment, parse_experiment
from fedgela.data import Federation
from fedgela.models import State
from fedgela.randomness import generator
from fedgela.resolve import resolve
from fedgela.rounds import Progress, Visit
from fedgela.server import Server
from fedgela.training import Plan

SETTINGS = prior.DIGITS | {"clients": 10, "validation": 0.2}
SPLITS = ("classes:2", "dirichlet:0.1", "iid")
METHODS = ("fedavg", "fedgela, power:1, E_W 3")  # of prior.py
RULES = ("mean", "clipped", "trimmed:0.2", "median", "krum:2")
SEEDS = range(106, 109)
BROKEN = 2


def opposite(before: State, sent: State, draws: torch.Generator) -> State:
    """The opposite of what was learned, ten times as long."""
    return {name: before[name] - 10 * (value - before[name]) for name, value in sent.items()}


def noise(before: State, sent: State, draws: torch.Generator) -> State:
    """Of each entry's own scale, and nothing of what was learned."""

    def like(value: Tensor) -> Tensor:
        return torch.randn(value.shape, generator=draws) * value.square().mean().sqrt()

    return {name: like(value) for name, value in before.items() if name in sent}


WAYS = {"opposite": opposite, "noise": noise}


class Visited(Server):
    """A server with some clients that send something else than their update, or are absent."""

    def __init__(self, experiment: Experiment, federation: Federation, clients: str) -> None:
        super().__init__(experiment, federation)
        self.way = clients
        order = torch.randperm(federation.clients, generator=generator(experiment.seed, "broken"))
        self.broken = order[:BROKEN].tolist()

    def able(self) -> list[int]:
        absent = self.broken if self.way == "absent" else []
        return [client for client in super().able() if client not in absent]

    def visits(self, progress: Progress, plan: Plan, clients: Sequence[int]) -> list[Visit]:
        visits = super().visits(progress, plan, clients)
        if self.way not in WAYS:
            return visits

        def altered(visit: Visit) -> Visit:
            update = visit.update
            draws = generator(self.experiment.seed, "noise", plan.round, update.client)
            model = WAYS[self.way](progress.server.model, update.model, draws)
            return replace(visit, update=replace(update, model=model))

        return [altered(visit) if visit.update.client in self.broken else visit for visit in visits]


def measure(table: dict[str, Any], clients: str) -> dict[str, Any]:
    """GA of the last round, and each class's share of right answers."""
    experiment, federation = resolve(parse_experiment(table))
    server = Visited(experiment, federation, clients)
    scorer, progress = server.scorer, server.begin()
    try:
        for _ in range(experiment.rounds):
            record = server.step(progress)
        right = scorer.right(scorer.by_global(progress.global_model, scorer.union), scorer.union)
    finally:
        server.close()
    by_class = 100 * right / federation.test_counts.sum(dim=0)
    return {"GA": round(record["GA"], 2), "by_class": [round(share, 1) for share in by_class.tolist()]}


def main() -> None:
    torch.set_num_threads(1)
    sweep = Sweep(sys.argv[1], note=note_of(__doc__))
    asked = itertools.product(SEEDS, SPLITS, METHODS, ("honest", "absent", *WAYS), RULES)
    for seed, partition, label, clients, rule in asked:
        row = {"partition": partition, "method": label, "clients": clients, "rule": rule, "seed": seed}
        if sweep.has(row) or (clients == "absent" and rule != "mean"):
            continue
        table = SETTINGS | {"partition": partition, "seed": seed, "aggregation": rule}
        table |= {"device": "cpu", "lanes": 1, "width": 10, "threads": 1, "eval_every": SETTINGS["rounds"]}
        sweep.add(row | measure(table | {"algorithm": prior.METHODS[label]}, clients))


if __name__ == "__main__":
    main()
