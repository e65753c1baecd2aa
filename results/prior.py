"""Class shares beside the logits (FedPrior) against lengths of the classifier.

    python results/prior.py results/sweeps/prior.json

Validation data, the last round. Every method has one setting for all splits. Seeds are others than those that
the settings were looked for with.
"""

import itertools
import sys
from typing import Any

from sweep import Sweep, last, trained

DIGITS = {"dataset": "digits", "rounds": 10, "epochs": 5, "batch_size": 20, "lr": 0.03}
WRITERS = {
    "dataset": "mnist-by-writer",
    "model": "simple-cnn",
    "rounds": 20,
    "epochs": 10,
    "clients": 50,
    "sample": 10,
}
PLACES: list[tuple[dict[str, Any], str, range]] = [
    (DIGITS, "classes:2", range(106, 111)),
    (DIGITS, "classes:3", range(106, 111)),
    (DIGITS, "dirichlet:0.1", range(106, 111)),
    (DIGITS, "dirichlet:0.5", range(106, 111)),
    (WRITERS, "natural", range(106, 109)),
]
METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {"name": "fedavg"},
    "fedrod": {"name": "fedrod"},
    "fedge, E_W 30": {"name": "fedge", "E_W": 30.0},
    "fedgela, power:1, E_W 3": {"name": "fedgela", "E_W": 3.0},
    "fedgela, power:0.5, E_W 10": {"name": "fedgela", "phi": "power:0.5"},
    "fedgela, even, E_W 3": {"name": "fedgela", "phi": "even", "E_W": 3.0},
    "prior, E_W 10": {"name": "fedprior", "E_W": 10.0},
    "prior, E_W 30": {"name": "fedprior", "E_W": 30.0},
}


def main() -> None:
    sweep = Sweep(sys.argv[1], settings=[DIGITS, WRITERS])
    for base, partition, seeds in PLACES:
        for seed, label in itertools.product(seeds, METHODS):
            row = {"dataset": base["dataset"], "partition": partition, "method": label, "seed": seed}
            if sweep.has(row):
                continue
            table = {**base, "partition": partition, "seed": seed, "validation": 0.2}
            with trained(table | {"algorithm": METHODS[label]}) as run:
                sweep.add(row | last(run, "GA", "PA"))


if __name__ == "__main__":
    main()
