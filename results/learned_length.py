"""The ETF's length learned with the body and averaged with it, against lengths that are chosen and fixed.

    python results/learned_length.py results/sweeps/learned-length.json

Digits, validation data, the last round.
"""

import itertools
import sys
from dataclasses import dataclass
from typing import ClassVar

import torch
from sweep import Sweep, last, trained
from torch import Tensor, nn

from fedgela.algorithms.fedgela import FedGELA, FixedClassifier, Head, L2Norm
from fedgela.files import read_tensors
from fedgela.geometry import simplex_etf
from fedgela.models import State
from fedgela.runfolder import RunFolder

DIGITS = {"dataset": "digits", "rounds": 10, "epochs": 5, "batch_size": 20, "lr": 0.03, "validation": 0.2}
PARTITIONS = ("classes:2", "dirichlet:0.1", "dirichlet:0.5")
FORMS = ("power:1", "power:0.5", "even")
LENGTHS = (3.0, 10.0)  # E_W, fixed or to begin with
SEEDS = range(106, 111)
LOG_LENGTH = "head.classifier.log_length"


class LearnedLength(nn.Module):
    """logits = e^s M^T h: M is the ETF of unit vectors, s learned."""

    def __init__(self, M: Tensor, E_W: float) -> None:
        super().__init__()
        self.directions = FixedClassifier(M)
        self.log_length = nn.Parameter(torch.tensor([E_W]).log() / 2)

    def forward(self, h: Tensor) -> Tensor:
        logits: Tensor = self.log_length.exp() * self.directions(h)
        return logits


@dataclass(frozen=True)
class LearnedETF(FedGELA):
    """FedGELA whose classifier keeps its directions for good, but not its length, which travels."""

    title: ClassVar[str] = "FedGELA, length learned"

    def head(self, d: int, C: int, seed: int) -> nn.Module:
        assert self.E_W is not None
        return Head(L2Norm(), LearnedLength(simplex_etf(d, C, seed), self.E_W))

    def travels(self, entry: str) -> bool:
        return not entry.startswith("head.classifier.directions.")

    def classifier(self, model: State, client: State) -> Tensor:
        W = model[LOG_LENGTH].exp() * model["head.classifier.directions.weight"]
        return client["phi"][:, None] * W if client else W


def main() -> None:
    sweep = Sweep(sys.argv[1], settings=DIGITS)
    for asked in itertools.product(PARTITIONS, FORMS, LENGTHS, (False, True), SEEDS):
        row = dict(zip(("partition", "phi", "E_W", "learned", "seed"), asked, strict=True))
        if not sweep.has(row):
            sweep.add(row | measure(*asked))


def measure(partition: str, form: str, E_W: float, learned: bool, seed: int) -> dict[str, float]:
    method = "learned_length:LearnedETF" if learned else "fedgela"
    table = {**DIGITS, "partition": partition, "seed": seed, "device": "cpu"}
    table["algorithm"] = {"name": method, "phi": form, "E_W": E_W}
    with trained(table) as run:
        found = last(run, "GA", "PA")
        if learned:
            assert run.result is not None
            model, _ = read_tensors(RunFolder(run.path).models / run.result["models"]["last"])
            found["E_W_last"] = round(float(model[LOG_LENGTH].exp() ** 2), 2)
    return found


if __name__ == "__main__":
    main()
