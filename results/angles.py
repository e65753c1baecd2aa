"""Angles between the classifier vectors of the classes that clients lack, round by round.

    python results/angles.py results/angles.json

The paper's motivation (its Figure 2) is that they collapse while a client trains. Digits, with the base
settings of results/sweeps/digits-options.json, for twenty rounds; after a client's training, and after
averaging. FedRep averages no classifier: each client goes on with its own.
"""

import itertools
import sys

from sweep import Sweep, trained

BASE = {"dataset": "digits", "rounds": 20, "epochs": 5, "batch_size": 20, "lr": 0.03}
SEEDS = range(103, 108)
ROUNDS = (1, 2, 3, 5, 10, 20)


def main() -> None:
    sweep = Sweep(sys.argv[1], rounds=ROUNDS)
    for partition, method, seed in itertools.product(
        ("classes:2", "dirichlet:0.1"), ("fedavg", "fedrep"), SEEDS
    ):
        row = {"partition": partition, "method": method, "seed": seed}
        if sweep.has(row):
            continue
        table = {**BASE, "partition": partition, "seed": seed, "algorithm": {"name": method}}
        with trained(table) as run:
            records = run.records
        places = ("clients", "server") if method == "fedavg" else ("clients",)
        by_place = {
            place: {str(r): round(records[r - 1][f"angle_missing_{place}"], 2) for r in ROUNDS}
            for place in places
        }
        sweep.add(*(row | {"of": place} | by_round for place, by_round in by_place.items()))


if __name__ == "__main__":
    main()
