"""Results of several methods and seeds as one table: text, Markdown, CSV and JSON."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from fedgela.evaluation import Record
from fedgela.files import write_atomically, write_json
from fedgela.grids import Cell, Grid, parts
from fedgela.over_seeds import BOUNDS, OverSeeds, mean_std, ranks
from fedgela.runfolder import TABLE

METRICS = ("PA", "GA")
WHEN = ("best", "last")
COLUMNS = [(metric, when) for metric in METRICS for when in WHEN]
BASELINE = "fedavg"
RANKED = "best and second best of the seeds that all methods have"
DIVERGED = "†: the training loss became infinite or NaN"


@dataclass
class Row(OverSeeds):
    """One method, with its results and its errors by seed."""

    method: str
    results: dict[int, Record] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)

    def diverged(self) -> dict[int, int]:
        """The seeds whose training loss became infinite or NaN, with the first round of each where it did."""
        found = {seed: self.results[seed].get("diverged_round") for seed in sorted(self.results)}
        return {seed: lost for seed, lost in found.items() if lost}

    def label(self) -> str:
        return f"{self.method} †" if self.diverged() else self.method

    @property
    def algorithm(self) -> str:
        """The method's own name; the row may have another one."""
        return str(next(iter(self.results.values()), {}).get("algorithm", self.method))

    def values(self, metric: str, when: str) -> dict[int, float]:
        return {seed: result[metric][when] for seed, result in self.results.items() if metric in result}


def summary_of_seeds(results: Mapping[int, Record]) -> Record:
    """The result of one experiment over several seeds."""
    row = Row("", dict(results))
    summary: Record = {"seeds": sorted(results), "unit": "percent"}
    for metric in ("GA", "GA_balanced", "PA", "PA_balanced", "PA_finetuned", "GA_locals", "local_accuracy"):
        if all(metric in result for result in results.values()):
            summary[metric] = {when: row.summary(metric, when) for when in WHEN}
    return summary | {"runs": [results[seed] for seed in sorted(results)]}


class Comparison:
    """The rows of a table, in the order in which they were asked for, ranked in each column."""

    def __init__(self, rows: Sequence[Row], differing: Mapping[str, Mapping[str, str]] | None = None) -> None:
        """`differing` has the settings that are not the same for all rows: by key, each method's value."""
        self.rows = rows
        self.differing = differing or {}
        self.baseline = next((row for row in rows if row.algorithm == BASELINE), None)
        ranked = {row.method: row for row in rows if row.algorithm not in BOUNDS}
        self.ranks = {column: ranks(ranked, *column) for column in COLUMNS}

    def to_json(self) -> list[dict[str, Any]]:
        listed = []
        for row in self.rows:
            entry: dict[str, Any] = {"algorithm": row.method, "seeds": sorted(row.results)}
            for metric in (*METRICS, "PA_balanced", "GA_balanced"):
                entry[metric] = {when: row.summary(metric, when) for when in WHEN}
            if self.baseline is not None and row is not self.baseline:
                entry["difference_to_fedavg"] = {
                    metric: {when: row.difference(self.baseline, metric, when) for when in WHEN}
                    for metric in METRICS
                }
            if self.differing:
                entry["settings"] = self._settings(row)
            if row.diverged():
                entry["diverged_seeds"] = list(row.diverged())
            if row.errors:
                entry["errors"] = {str(seed): error for seed, error in row.errors.items()}
            listed.append(entry)
        return listed

    def to_csv(self) -> str:
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        names = [f"{metric}_{when}" for metric, when in COLUMNS]
        writer.writerow(
            ["algorithm", "seeds"]
            + [f"{name}_{part}" for name in names for part in ("mean", "std")]
            + [f"{name}_minus_fedavg_{part}" for name in names for part in ("mean", "std")]
            + ["errors", "diverged", "settings"]
        )
        for row in self.rows:
            cells: list[Any] = [row.method, " ".join(map(str, sorted(row.results)))]
            for metric, when in COLUMNS:
                cells += row.summary(metric, when).values()
            for metric, when in COLUMNS:
                other = None if row is self.baseline else self.baseline
                cells += row.difference(other, metric, when).values() if other else ["", ""]
            lost = [f"seed {seed} in round {number}" for seed, number in row.diverged().items()]
            own = [f"{key} {value}" for key, value in self._settings(row).items()]
            writer.writerow([*cells, *map("; ".join, (_errors(row), lost, own))])
        return out.getvalue()

    def grid(self) -> Grid:
        head = ["method", *(f"{metric} {when}" for metric, when in COLUMNS)]
        head += [f"Δ {metric} last" for metric in METRICS] if self._shows_difference() else []
        rows = []
        for row in self.rows:
            cells: list[Cell] = [row.label()]
            for metric, when in COLUMNS:
                mark = {0: "best", 1: "second"}.get(self.ranks[metric, when].get(row.method, 9), "")
                cells.append((mean_std(row.summary(metric, when)), mark))
            if self._shows_difference():
                cells += [self._difference(row, metric) for metric in METRICS]
            rows.append(cells)
        return Grid(head, rows)

    def to_markdown(self) -> str:
        grid = self.grid()
        table = replace(grid, head=["Method", *grid.head[1:]]).to_markdown()
        lines = [table, "", f"Bold: best, underlined: second best; {self.legend()}"]
        errors = [f"- {line}" for line in self._errors()]
        return "\n".join(lines + (["", *errors] if errors else [])) + "\n"

    def to_text(self) -> str:
        """The table without a terminal's styles: * marks the best of a column, _ the second."""
        return (
            "\n".join([self.grid().to_text(), *self._errors(), "* best, _ second best", self.legend()]) + "\n"
        )

    def to_rich(self) -> Table:
        """For a terminal, narrow enough for 80 columns: a spread stands below its mean."""
        caption = "\n".join([*self._errors(), self.legend()])
        table = Table(box=SIMPLE_HEAD, caption=Text(caption), caption_justify="left")
        grid = self.grid()
        for i, name in enumerate(grid.head):
            stacked = "\n".join(name.rsplit(" ", 1))
            table.add_column(stacked, justify="right" if i else "left", no_wrap=True)
        for row in grid.rows:
            table.add_row(*map(_stacked, row))
        return table

    def legend(self) -> str:
        text = "accuracy in percent"
        if any(len(row.results) > 1 for row in self.rows):
            text += ", mean ± standard deviation over seeds"
        text += "; best: the maximum over rounds (fine-tuned PA: at the round of the best GA), chosen on the "
        text += "data it is measured on"
        if self._shows_difference():
            text += "; Δ: difference to fedavg, paired by seed"
        if len({frozenset(row.results) for row in self.rows if row.results}) > 1:
            text += f"; {RANKED}"
        if bounds := [row.method for row in self.rows if row.algorithm in BOUNDS]:
            text += f"; not ranked, as bounds: {', '.join(bounds)}"
        if self.differing:
            told = "; ".join(f"{key} {_by_value(methods)}" for key, methods in self.differing.items())
            text += f"; not the same for all methods: {told}"
        return f"{text}; {DIVERGED}" if self._shows_diverged() else text

    def save(self, folder: Path) -> None:
        write_json(folder / TABLE, self.to_json())
        write_atomically(folder / "table.csv", self.to_csv())
        write_atomically(folder / "table.md", self.to_markdown())
        write_atomically(folder / "table.txt", self.to_text())

    def _shows_difference(self) -> bool:
        return self.baseline is not None and len(self.rows) > 1

    def _shows_diverged(self) -> bool:
        return any(row.diverged() for row in self.rows)

    def _settings(self, row: Row) -> dict[str, str]:
        """The row's own values of the settings that differ."""
        return {key: methods[row.method] for key, methods in self.differing.items()}

    def _errors(self) -> list[str]:
        return [f"{row.method}: {text}" for row in self.rows for text in _errors(row)]

    def _difference(self, row: Row, metric: str) -> str:
        if self.baseline is None or row is self.baseline:
            return ""
        return mean_std(row.difference(self.baseline, metric, "last"), sign="+")


def _stacked(cell: Cell) -> Text:
    text, mark = parts(cell)
    mean, plus_minus, std = text.partition(" ± ")
    style = {"best": "bold", "second": "underline"}.get(mark, "")
    return Text(mean, style=style) + Text(f"\n± {std}" if plus_minus else "", style="dim")


def _by_value(methods: Mapping[str, str]) -> str:
    """The methods by the value that they have: 0.04 (fedavg), 0.1 (fedge, fedgela)"""
    values = dict.fromkeys(methods.values())
    having = {value: [name for name, own in methods.items() if own == value] for value in values}
    return ", ".join(f"{value} ({', '.join(names)})" for value, names in having.items())


def _errors(row: Row) -> list[str]:
    return [f"seed {seed} failed: {error}" for seed, error in row.errors.items()]
