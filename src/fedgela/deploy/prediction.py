"""What a model says of samples: a table, and how much of it is right where that is known."""

import csv
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from torch import Tensor

from fedgela.deploy.card import Card
from fedgela.deploy.model import Model
from fedgela.deploy.samples import Samples
from fedgela.files import write_atomically


@dataclass(frozen=True)
class Predictions:
    card: Card
    samples: Samples
    probabilities: Tensor  # [n, C]

    @property
    def predicted(self) -> list[str]:
        return [self.card.classes[c] for c in self.probabilities.argmax(dim=1).tolist()]

    @property
    def right(self) -> npt.NDArray[np.bool_] | None:
        """Which are right, [n]; None where no labels are known."""
        if self.samples.labels is None:
            return None
        return np.array([a == b for a, b in zip(self.predicted, self.samples.labels, strict=True)])

    def rows(self) -> list[dict[str, str]]:
        """A row a sample: its name, the class, its probability, the label if it is known."""
        labels = self.samples.labels
        best = self.probabilities.amax(dim=1).tolist()
        rows = []
        for i, (name, predicted) in enumerate(zip(self.samples.names, self.predicted, strict=True)):
            row = {"sample": name, "predicted": predicted, "probability": f"{best[i]:.4f}"}
            rows.append(row if labels is None else row | {"label": labels[i]})
        return rows

    def save(self, path: Path) -> None:
        """As CSV, with every class's probability beside."""
        each = [f"p({name})" for name in self.card.classes]
        text = io.StringIO()
        rows = self.rows()
        writer = csv.DictWriter(text, [*rows[0], *each], lineterminator="\n")
        writer.writeheader()
        for row, chances in zip(rows, self.probabilities.tolist(), strict=True):
            writer.writerow(row | {key: f"{p:.6f}" for key, p in zip(each, chances, strict=True)})
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text.getvalue())


def predict(model: Model, samples: Samples) -> Predictions:
    return Predictions(model.card, samples, model.probabilities(samples.x))
