"""An inspection's tables: its clients, and their samples by class."""

import math
from typing import Any

import numpy as np

from fedgela.grids import Grid
from fedgela.heat_maps import shortened
from fedgela.inspection import Inspection

LISTED = 20  # clients in the text; of more, the WORST and a summary
WORST = 10
COUNTED = (20, 12)  # clients and classes up to which the text has their counts


def clients_grid(found: Inspection, listed: int = LISTED) -> Grid:
    """Of all clients, or of more than `listed` of those with the highest cost, and a summary."""
    if found.clients <= listed:
        title = "Clients"
        rows = [_client_row(found, k) for k in range(found.clients)]
    else:
        title = f"Clients: the {WORST} with the highest cost, and all {found.clients:,} in summary"
        worst = np.lexsort((found.samples, -found.cost))[:WORST]
        rows = [_client_row(found, k) for k in worst.tolist()]
        for name, q in (("least", 0.0), ("median", 0.5), ("most", 1.0)):
            rows.append((name, *_cells(*(_quantile(column, q) for column in _figures(found))), ""))
    head = ("client", "samples", "classes", "missing", "imbalance", "test", "cost", "too small")
    columns = len(head) if found.too_small.any() else len(head) - 1
    return Grid(head[:columns], [row[:columns] for row in rows], _legend(found), title)


def _figures(found: Inspection) -> tuple[np.ndarray[Any, Any], ...]:
    """What is told of every client, [N] each."""
    return found.samples, found.held, found.missing, found.imbalance, found.test_samples, found.cost


def label(found: Inspection, k: int) -> str:
    """A client's number, with its name or id where that says more."""
    name = found.client_names[k] if found.client_names else ""
    return f"{k} {shortened(name, 24)}" if name else str(k)


def _client_row(found: Inspection, k: int) -> tuple[str, ...]:
    mark = "no samples" if found.samples[k] == 0 else "< batch" if found.too_small[k] else ""
    return (label(found, k), *_cells(*(float(column[k]) for column in _figures(found))), mark)


def _cells(
    samples: float, held: float, missing: float, imbalance: float, test: float, cost: float
) -> list[str]:
    ratio = "-" if math.isnan(imbalance) else f"{imbalance:,.1f}"
    return [f"{samples:,.0f}", f"{held:.0f}", f"{missing:.0%}", ratio, f"{test:,.0f}", f"{cost:.2f}"]


def _quantile(column: Any, q: float) -> float:
    kept = column[~np.isnan(column)]
    return float(np.quantile(kept, q)) if len(kept) else math.nan


def _legend(found: Inspection) -> str:
    whose = (
        "" if found.own_method else f" (FedGELA's defaults: {found.experiment.algorithm.name} adapts no ETF)"
    )
    return (
        "missing: share of all classes; imbalance: largest over smallest class the client has; cost: "
        f"||Phi_k W - W|| with phi = {found.method.phi}, E_W = {found.method.E_W:g}{whose}, "
        f"to compare with ||W|| = {found.W_norm:.2f}"
    )


def counts_grid(found: Inspection) -> Grid | None:
    """Training samples by client and class, where that is small enough to read."""
    if found.clients > COUNTED[0] or found.classes > COUNTED[1]:
        return None
    names = [shortened(name, 12) for name in found.class_names]
    rows = [
        (label(found, k), *(str(n) if n else "." for n in row))
        for k, row in enumerate(found.train_counts.tolist())
    ]
    total = ("all", *map(str, found.train_counts.sum(axis=0).tolist()))
    tested = ("test", *map(str, found.test_counts.sum(axis=0).tolist()))
    title = "Training samples by client and class"
    return Grid(("client", *names), [*rows, total, tested], title=title)
