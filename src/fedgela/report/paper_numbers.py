"""The paper's number for an entry, where the paper has that cell."""

from dataclasses import asdict

from fedgela.config import Experiment
from fedgela.paper import Cell, Printed, cells, experiment_of, table
from fedgela.report.entries import Entry

_SAME = ("partition", "clients", "sample", "model")


def paper_number(entry: Entry, metric: str) -> tuple[Printed, str] | None:
    """What the paper prints and where ('Table 2'), for GA and PA, and for rounds and speedup of the
    communication table: the first of its tables with the same data set, partition, clients, sample, model
    and method. None where there is none, and for runs that were measured on validation data."""
    e = entry.experiment
    if e.validation:
        return None
    for cell in cells():
        if cell.value(metric) is not None and _fits(cell, e):
            return cell.printed[metric], table(cell.table).number
    return None


def _fits(cell: Cell, e: Experiment) -> bool:
    if cell.dataset != e.dataset.replace("_", "-"):
        return False
    theirs = experiment_of(cell)
    if any(getattr(theirs, name) != getattr(e, name) for name in _SAME):
        return False
    if type(theirs.algorithm) is not type(e.algorithm):
        return False
    # what the cell says of the method must hold; what it leaves open (E_W, a baseline's lambda) may differ
    mine = asdict(e.algorithm)
    return all(mine.get(key) == value for key, value in cell.config["algorithm"].items() if key != "name")
