"""Cells that no training run gives: what a method costs a client (Figure 10), and who holds what (Figures 7
and 8)."""

import time
from pathlib import Path

from fedgela import burden, inspection, inspection_report
from fedgela.config import Experiment
from fedgela.paper import Cell
from fedgela.reproduce.entries import entry_of_measurement
from fedgela.reproduce.ledger import Entry
from fedgela.resolve import resolve

REPETITIONS = 5


def measure_burden(cell: Cell, experiment: Experiment, repetitions: int) -> Entry:
    """A method beside FedAvg, which its time is relative to."""
    began = time.perf_counter()
    base = experiment.with_(algorithm={"name": "fedavg"})
    experiments = {"fedavg": base} if cell.method == "fedavg" else {"fedavg": base, cell.method: experiment}
    found = burden.measure(experiments, repetitions)[-1]
    measured = {
        "parameters": found.held,
        "kept": found.kept,
        "sent": found.sent,
        "seconds": found.seconds,
        "ratio": found.ratio,
        "ratio_low": found.ratio_low,
        "ratio_high": found.ratio_high,
    }
    return entry_of_measurement(cell, *resolve(experiment), measured, time.perf_counter() - began)


def measure_partition(cell: Cell, experiment: Experiment, folder: Path) -> Entry:
    """Counts of every client and class as text, JSON and, with matplotlib, the heat map."""
    began = time.perf_counter()
    folder.mkdir(parents=True, exist_ok=True)
    found = inspection.inspect(experiment)
    inspection_report.save(found, folder)
    measured = {
        "missing_percent": 100 * found.missing_cells,
        "smallest_client": float(found.samples.min()),
        "largest_client": float(found.samples.max()),
    }
    return entry_of_measurement(cell, *resolve(experiment), measured, time.perf_counter() - began)
