"""GA, PA and related figures, from counts of right answers. All accuracies are in percent.

`right` and `total` are [C] or [N, C]: test samples of a class that a model got right, and all of them.
"""

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from fedgela.geometry import class_angles

Record = dict[str, Any]


def finite(value: float) -> float | None:
    """The number, or None (null in JSON) where it is NaN or infinite: without samples, or a diverged loss."""
    return value if math.isfinite(value) else None


def percent(value: Tensor) -> float | None:
    return finite(100 * value.item())


def plain(values: Tensor) -> list[float | None]:
    return [finite(value) for value in values.tolist()]


def accuracy(name: str, right: Tensor, total: Tensor) -> Record:
    """One model on one test set: its accuracy, balanced accuracy and accuracy by class."""
    right, total = right.double(), total.double()
    by_class = right / total  # NaN for a class that the test set lacks
    return {
        name: percent(right.sum() / total.sum()),
        f"{name}_balanced": percent(by_class.nanmean()),
        f"{name}_by_class": plain(100 * by_class),
    }


def mean_accuracy(name: str, right: Tensor, total: Tensor) -> Record:
    """One model for each client: the mean over the clients that have test samples, and the spread.

    Balanced accuracy is a client's mean over the classes it is tested on; by class, the mean is over
    the clients that are tested on the class. All figures are None where no client has test samples.
    """
    tested = total.sum(dim=1) > 0
    right, total = right[tested].double(), total[tested].double()
    by_client = right.sum(dim=1) / total.sum(dim=1)
    by_class = right / total
    spread = by_client if tested.any() else by_client.new_full((1,), float("nan"))  # no minimum of nothing
    return {
        name: percent(by_client.mean()),
        f"{name}_worst": percent(spread.min()),
        f"{name}_p10": percent(spread.quantile(0.1)),
        f"{name}_weighted": percent(right.sum() / total.sum()),
        f"{name}_balanced": percent(by_class.nanmean(dim=1).mean()),
        f"{name}_by_class": plain(100 * by_class.nanmean(dim=0)),
        f"{name}_clients_left_out": int((~tested).sum()),
    }


def client_accuracies(right: Tensor, total: Tensor) -> list[float | None]:
    """Every client's accuracy; None for a client without test samples."""
    return plain(100 * right.sum(dim=1).double() / total.sum(dim=1).double())


def mean_angles(where: str, classifiers: Tensor, present: Tensor) -> Record:
    """Mean angles in degrees over the clients of a round: among the classes present on a client (`present`
    [K, C]), among those it lacks, and among all; of classifiers [K, C, d], or the server's one [C, d]."""
    angles = class_angles(classifiers, present)
    return {
        f"angle_{group}_{where}": finite(value.double().nanmean().item()) for group, value in angles.items()
    }


def train_loss(loss_sum: Tensor, loss_count: Tensor) -> Record:
    """Mean loss over the samples of all local steps of a round, from sums and counts by class, [C] each."""
    loss_sum, loss_count = loss_sum.double(), loss_count.double()
    return {
        "train_loss": finite((loss_sum.sum() / loss_count.sum()).item()),
        "train_loss_by_class": plain(loss_sum / loss_count),
    }


def diverged(record: Record) -> bool:
    """Whether a round's training loss was infinite or NaN, which is null in its record. The record of a round
    in which nobody trained has no loss at all."""
    return record.get("train_loss", 0.0) is None


def best_and_last(records: Sequence[Record], name: str) -> Record | None:
    """The largest value over rounds, and the last, each with its round."""
    values = [(r[name], r["round"]) for r in records if r.get(name) is not None]
    if not values:
        return None
    best, best_round = max(values, key=lambda v: (v[0], -v[1]))  # the first of equals
    last, last_round = values[-1]
    return {"best": best, "best_round": best_round, "last": last, "last_round": last_round}
