"""FedGELA where the classes are uneven over all clients together: digits with a long tail, and skin lesions.

    python results/uneven.py results/sweeps/uneven.json

Of digits, class c keeps a share of 0.7^c of its samples. Fed-ISIC2019 is from hospitals; it has few rounds of
one epoch here, with a small net, for a CPU. Validation data, the last round; methods and their settings are
those of prior.py, and those of digits its seeds too: none was looked for on this data. `paper-linear` has the
E_W of the paper's Phi, whose normalised form it is. `equal` is the global model as the paper has it, with
vectors of equal length; `mean` gives it the clients' mean lengths, sum_k p_k Phi_kc, which are equal where
the form is normalised or the classes are even. Both are of one training run.
"""

import itertools
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import prior
import torch
from sweep import Row, Sweep, last, note_of, trained

from fedgela.deploy.predictor import data_of, predictor_of
from fedgela.evaluation import accuracy
from fedgela.saved.runs import Run

KEPT = 0.7  # of a class, of what the one before it keeps
DIGITS = "digits, long tail"
PLACES: dict[str, tuple[dict[str, Any], tuple[str, ...], range]] = {
    DIGITS: (
        {
            "clients": 10,
            "rounds": 10,
            "epochs": 5,
            "batch_size": 10,
            "lr": 0.03,
            "min_samples": 10,
            "lanes": 1,
        },
        ("classes:2", "classes:3", "dirichlet:0.1", "dirichlet:0.5"),
        range(106, 111),
    ),
    "fed-isic2019": (
        {"model": "simple-cnn", "clients": 20, "sample": 10, "rounds": 30, "epochs": 1, "finetune_epochs": 1},
        ("natural",),
        range(106, 107),
    ),
}
METHODS = {
    label: algorithm for label, algorithm in prior.METHODS.items() if label not in ("fedrod", "prior, E_W 30")
} | {"fedgela, paper-linear, E_W 3": {"name": "fedgela", "phi": "paper-linear", "E_W": 3.0}}


def long_tailed_digits(path: Path) -> None:
    from sklearn.datasets import load_digits

    digits = load_digits()
    y = digits.target
    kept = [np.flatnonzero(y == c)[: round(KEPT**c * (y == c).sum())] for c in range(10)]
    rows = np.sort(np.concatenate(kept))
    np.savez(path, x=(digits.images[rows] * 255 / 16).astype(np.uint8), y=y[rows])


def by_mean_lengths(run: Run) -> dict[str, float]:
    """The trained model's GA, plain and balanced, with the clients' mean lengths."""
    federation = data_of(run)
    counts = federation.train_counts
    p = counts.sum(dim=1).double() / counts.sum()
    vectors = run.experiment.algorithm.client_vectors(counts, {})
    lengths = p @ vectors["phi"].double()
    predictor, _ = predictor_of(run, federation, None, "last")
    data = federation.data
    with torch.no_grad():
        right = (lengths * predictor.logits(data.x_test)).argmax(dim=1) == data.y_test
    by_class = data.y_test[right].bincount(minlength=data.classes)
    found = accuracy("GA", by_class, federation.test_counts.sum(dim=0))
    return {key: round(found[key], 2) for key in ("GA", "GA_balanced")}


def main() -> None:
    sweep = Sweep(sys.argv[1], note=note_of(__doc__))
    with tempfile.TemporaryDirectory() as folder:
        digits = Path(folder) / "digits_long_tail.npz"
        long_tailed_digits(digits)
        for name, (settings, splits, seeds) in PLACES.items():
            for partition, seed, label in itertools.product(splits, seeds, METHODS):
                row: Row = {"dataset": name, "partition": partition, "method": label, "seed": seed}
                if sweep.has(row):
                    continue
                table = {"dataset": str(digits) if name == DIGITS else name, "partition": partition}
                table |= settings | {"seed": seed, "validation": 0.2, "algorithm": METHODS[label]}
                with trained(table) as run:
                    row["equal"] = last(run, "GA", "GA_balanced", "PA")
                    if METHODS[label]["name"] == "fedgela" and "paper" not in label:
                        row["mean"] = by_mean_lengths(run)
                sweep.add(row)


if __name__ == "__main__":
    main()
