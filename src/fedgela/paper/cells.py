"""Cells, what is run, and summaries, what the paper prints of several cells at once."""

import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

from fedgela.config import Experiment, parse_experiment, plain_table
from fedgela.paper.files import Measures
from fedgela.paper.numbers import Printed

BEST_BASELINE = "best-baseline"


@dataclass(frozen=True, kw_only=True)
class Row:
    """What the paper prints numbers of, one of each metric."""

    table: str
    dataset: str
    printed: Mapping[str, Printed] = field(hash=False)  # by metric; empty where the paper prints none

    def value(self, metric: str) -> float | None:
        """The printed number; None where the paper gives none."""
        return self.printed[metric].value if metric in self.printed else None


@dataclass(frozen=True, kw_only=True)
class Cell(Row):
    """One method in one setting of one data set of a table: one experiment (for each seed)."""

    setting: str
    method: str
    measures: Measures
    metrics: tuple[str, ...]
    config: Mapping[str, Any] = field(hash=False)  # of the experiment, without the seed

    @property
    def id(self) -> str:
        return f"{self.table}/{self.dataset}/{self.setting}/{self.method}"

    @property
    def is_trained(self) -> bool:
        """Accuracies, angles and communication come from a training run; burden and partition do not."""
        return self.measures not in ("burden", "partition")

    @cached_property
    def run_key(self) -> str:
        """The same for cells of different tables that are one and the same run, defaults filled in."""
        other = "" if self.is_trained else self.measures
        return other + json.dumps(plain_table(experiment_of(self)), sort_keys=True)


@dataclass(frozen=True, kw_only=True)
class Summary(Row):
    """A printed number that no single run gives: the mean over settings, the best baseline, or both."""

    column: str
    row: str  # a method, or best-baseline
    groups: tuple[tuple[Cell, ...], ...]  # for each setting, the cells of which the best counts

    @property
    def id(self) -> str:
        return f"{self.table}/{self.dataset}/{self.column}/{self.row}"

    @property
    def cells(self) -> tuple[Cell, ...]:
        return tuple(cell for group in self.groups for cell in group)

    def combine(self, values: Mapping[str, float]) -> float | None:
        """One metric from the cells' values by their id: the maximum within each setting, then the mean over
        settings. None where a cell is missing."""
        if any(cell.id not in values for cell in self.cells):
            return None
        return statistics.fmean(max(values[cell.id] for cell in group) for group in self.groups)


@cache
def experiment_of(cell: Cell) -> Experiment:
    """The cell as an experiment of this project, with the seed 0."""
    return parse_experiment(dict(cell.config), where=cell.id)
