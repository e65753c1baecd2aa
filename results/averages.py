"""GA of the average of the global models over the rounds (server_average), beside that of each round's own.

    python results/averages.py results/sweeps/averages.json [digits mnist-by-writer cifar10]

Validation data. Clients begin with each round's own global model whatever is averaged, so that one run
measures all averages. Seeds are others than those that the idea was tried with.
"""

import statistics
import sys
from dataclasses import replace
from math import ceil
from typing import Any

import torch
from sweep import Sweep

from fedgela.config import parse_experiment
from fedgela.evaluation import accuracy
from fedgela.resolve import resolve
from fedgela.server import Server

DIGITS = {"dataset": "digits", "rounds": 40, "epochs": 5, "batch_size": 20, "lr": 0.03, "validation": 0.2}
SOME = {**DIGITS, "clients": 20, "sample": 4, "min_samples": 10}
WRITERS = {
    "dataset": "mnist-by-writer",
    "model": "simple-cnn",
    "rounds": 40,
    "epochs": 5,
    "clients": 50,
    "sample": 10,
    "validation": 0.2,
}
CIFAR = {**WRITERS, "dataset": "cifar10", "rounds": 50, "validation": 0.1}
PLACES: list[tuple[dict[str, Any], str, float, range]] = [  # base, partition, E_W, seeds
    (SOME, "classes:2", 3.0, range(106, 111)),
    (SOME, "dirichlet:0.1", 3.0, range(106, 111)),
    (DIGITS, "classes:2", 3.0, range(106, 111)),
    (DIGITS, "dirichlet:0.1", 3.0, range(106, 111)),
    (WRITERS, "natural", 10.0, range(106, 109)),
    (CIFAR, "classes:2", 10.0, range(106, 107)),
]
METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {"name": "fedavg"},
    "fedge": {"name": "fedge"},
    "fedgela, power:1": {"name": "fedgela"},
    "fedgela, even": {"name": "fedgela", "phi": "even"},
}
EARLIER = (0.0, 0.5, 0.8, 0.9)  # values of server_average


def measure(table: dict[str, Any]) -> list[dict[str, float]]:
    """A row for each average: GA of the last round, over the last tenth of the rounds, and at best."""
    experiment, federation = resolve(parse_experiment(table))
    server = Server(experiment, federation)
    scorer, totals = server.scorer, federation.test_counts.sum(dim=0)
    progress = server.begin()
    averages = {earlier: replace(progress) for earlier in EARLIER}
    GA: dict[float, list[float]] = {earlier: [] for earlier in EARLIER}
    try:
        for _ in range(experiment.rounds):
            server.step(progress)
            for earlier, of_it in averages.items():
                of_it.server, of_it.round = progress.server, progress.round
                if earlier:
                    of_it.average(earlier)
                right = scorer.right(scorer.by_global(of_it.global_model, scorer.union), scorer.union)
                GA[earlier].append(accuracy("GA", right, totals)["GA"])
    finally:
        server.close()
    tenth = ceil(experiment.rounds / 10)
    return [
        {
            "server_average": earlier,
            "GA_last": round(values[-1], 2),
            "GA_last_tenth": round(statistics.fmean(values[-tenth:]), 2),
            "GA_best": round(max(values), 2),
        }
        for earlier, values in GA.items()
    ]


def main() -> None:
    torch.set_num_threads(1)
    wanted = sys.argv[2:]
    sweep = Sweep(sys.argv[1], settings=[DIGITS, SOME, WRITERS, CIFAR])
    for base, partition, E_W, seeds in PLACES:
        if wanted and base["dataset"] not in wanted:
            continue
        for seed in seeds:
            for label, algorithm in METHODS.items():
                clients = f"{base.get('sample', 10)} of {base.get('clients', 10)}"
                run = {"dataset": base["dataset"], "partition": partition, "clients": clients}
                run |= {"method": label, "seed": seed}
                if sweep.has(run):
                    continue
                length = {} if label == "fedavg" else {"E_W": E_W}
                # a round's own evaluation is not needed, but for the last
                settings = {**base, "partition": partition, "seed": seed, "eval_every": base["rounds"]}
                found = measure(
                    {**settings, "device": "cpu", "finetune_epochs": 0, "algorithm": algorithm | length}
                )
                sweep.add(*({**run, **length, **row} for row in found))


if __name__ == "__main__":
    main()
