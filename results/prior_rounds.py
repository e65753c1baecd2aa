"""FedPrior over many rounds of CIFAR-10 with Simple-CNN, beside FedAvg, FedRoD and FedGELA.

    python results/prior_rounds.py results/sweeps/prior-rounds.json [PLACE ...]

Validation data; every method has its defaults, and nothing is chosen here: FedPrior's `floor` comes from
digits (prior.py). The ablations change one part each: no ETF, but FedAvg's head, and FedGELA's even lengths
beside the shares. The settings of ten of fifty clients and seed 106 are also those of averages.py.
"""

import statistics
import sys
from math import ceil
from typing import Any

from sweep import Sweep, trained

CIFAR = {"dataset": "cifar10", "model": "simple-cnn", "epochs": 5, "validation": 0.1, "finetune_epochs": 0}
SOME = {**CIFAR, "clients": 50, "sample": 10, "rounds": 50}
ALL = {**CIFAR, "clients": 10, "rounds": 25}
COMPARED = ("fedavg", "fedrod", "fedgela", "fedprior")
MORE = ("without etf", "and even", "even")
# by the place's name: settings, split, methods of METHODS and seeds, the most wanted first
PLACES: list[tuple[str, dict[str, Any], str, tuple[str, ...], range]] = [
    ("some-two", SOME, "classes:2", COMPARED, range(106, 109)),
    ("some-skew", SOME, "dirichlet:0.2", COMPARED, range(106, 109)),
    ("some-two-more", SOME, "classes:2", MORE, range(106, 107)),
    ("some-skew-more", SOME, "dirichlet:0.2", MORE, range(106, 107)),
    ("all-skew", ALL, "dirichlet:0.1", (*COMPARED, "without etf"), range(106, 107)),
]
METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {"name": "fedavg"},
    "fedrod": {"name": "fedrod"},
    "fedgela": {"name": "fedgela"},
    "even": {"name": "fedgela", "phi": "even"},
    "fedprior": {"name": "fedprior"},
    "without etf": {"name": "fedprior", "etf": False},
    "and even": {"name": "fedprior", "adapt": True, "phi": "even"},
}


def measure(table: dict[str, Any]) -> dict[str, float]:
    """GA over the last tenth of the rounds and at best, and the mean accuracy of the last local models."""
    with trained(table) as run:
        records = run.records
    GA = [record["GA"] for record in records]
    tenth = ceil(len(GA) / 10)
    local = records[-1]["local_accuracy"]
    figures = {"GA_last_tenth": statistics.fmean(GA[-tenth:]), "GA_best": max(GA), "local_accuracy": local}
    return {name: round(value, 2) for name, value in figures.items()}


def main() -> None:
    sweep = Sweep(sys.argv[1], settings=[SOME, ALL])
    wanted = sys.argv[2:] or [name for name, *_ in PLACES]
    for name, base, partition, methods, seeds in PLACES:
        for seed in seeds if name in wanted else ():
            for method in methods:
                clients = f"{base.get('sample', base['clients'])} of {base['clients']}"
                row = {"partition": partition, "clients": clients, "method": method, "seed": seed}
                if not sweep.has(row):
                    settings = {**base, "partition": partition, "seed": seed, "device": "cpu"}
                    sweep.add(row | measure({**settings, "algorithm": METHODS[method]}))


if __name__ == "__main__":
    main()
