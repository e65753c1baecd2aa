"""How a cell of the paper stands: the ledger's lines that count for it, grouped by how they were obtained."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from typing import Any

from fedgela.measures import reaching_fedavg
from fedgela.paper import BEST_BASELINE, Cell, Summary, cells, distinct
from fedgela.reproduce.counting import cells_of, has_a_cell_of_its_own, wanted_settings
from fedgela.reproduce.departures import (
    UNREADABLE,
    Departure,
    departures_of,
    divergence,
    is_of_the_task,
)
from fedgela.reproduce.ledger import Entry

LAST_TENTH = "last tenth"  # GA's mean over the last tenth of the rounds, beside the best and the last round's

# what is not as in the paper, the method's own options aside; and the precision
Conditions = tuple[tuple[str, ...], str | None]
Draw = tuple[int, str]  # a seed, and the data's fingerprint: by these runs of several methods are paired


@dataclass(frozen=True)
class Standing:
    """Runs of one cell that differ by their seeds only."""

    cell: Cell
    entries: Mapping[int, Entry]  # by seed

    @property
    def _first(self) -> Entry:
        return next(iter(self.entries.values()))

    @property
    def rounds(self) -> int:
        return max(entry.rounds_run for entry in self.entries.values())

    @property
    def precision(self) -> str | None:
        return self._first.precision

    @cached_property
    def departures(self) -> tuple[Departure, ...]:
        """What is not as in the paper; where there is nothing, it is a reproduction."""
        return (*departures_of(self.cell, self._first), *divergence(self.entries.values()))

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(departure.text for departure in self.departures)

    @property
    def is_whole(self) -> bool:
        """Whether it was run for as many rounds as the paper's."""
        return all(departure.about != "rounds" for departure in self.departures)

    @cached_property
    def conditions(self) -> Conditions:
        """Standings under the same conditions can be held against each other. Where settings cannot be read,
        nothing is known of what they can be held against: their hash makes them conditions of their own."""
        found = [d.text for d in self.departures if d.about in ("rounds", "setting")]
        if UNREADABLE in self.departures:
            found.append(self._first.settings_hash())
        return tuple(found), self.precision

    @cached_property
    def comparable(self) -> bool:
        """Whether it is the paper's task at least, so that its numbers can be held against the paper's."""
        return all(is_of_the_task(self.cell, entry) for entry in self.entries.values())

    def values(self, metric: str, when: str = "best") -> dict[Draw, float]:
        """GA, PA, an angle, or something measured."""
        found: dict[Draw, float] = {}
        for seed, entry in self.entries.items():
            value = value_of(entry, metric, when)
            if value is not None:
                found[seed, entry.data.fingerprint] = value
        return found


def value_of(entry: Entry, metric: str, when: str) -> float | None:
    if metric in entry.measured:
        return entry.measured[metric]
    if metric in entry.angles:
        return entry.angles[metric]
    if when == LAST_TENTH:
        return _mean_of_last_tenth(entry.GA_by_round) if metric == "GA" else None
    pair = getattr(entry, metric, None)
    return None if pair is None else getattr(pair, when)


def _mean_of_last_tenth(by_round: Sequence[float | None]) -> float | None:
    """GA may swing by many points from one round to the next: a single round's says little."""
    known = [GA for GA in by_round[-ceil(len(by_round) / 10) :] if GA is not None]
    return statistics.fmean(known) if known else None


class Standings:
    """All cells' standings, from a ledger."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        by_cell: dict[str, list[Entry]] = {}
        self._named: set[str] = set()  # ids that lines have, not only count for
        for entry in entries:
            self._named.update(entry.cells)
            for id in cells_of(entry):
                if not has_a_cell_of_its_own(entry, id):
                    by_cell.setdefault(id, []).append(entry)
        self._of = {cell.id: _standings(cell, by_cell[cell.id]) for cell in cells() if cell.id in by_cell}

    def all_of(self, cell: Cell) -> list[Standing]:
        """The best first: as in the paper, then by rounds and seeds."""
        return self._of.get(cell.id, [])

    def of(self, cell: Cell) -> Standing | None:
        return next(iter(self.all_of(cell)), None)

    def tried(self, chosen: Iterable[Cell]) -> list[Cell]:
        return [cell for cell in chosen if cell.id in self._of]

    def tried_runs(self) -> list[Cell]:
        """A cell for each different run that the ledger has, in full or with fewer rounds."""
        return [cell for cell in self.tried(distinct(cells())) if cell.id in self._named]

    def under(self, conditions: Conditions, cell: Cell) -> list[Standing]:
        """A cell's standings: one, or several of a method that was run with several settings."""
        return [standing for standing in self.all_of(cell) if standing.conditions == conditions]

    def conditions(self, chosen: Iterable[Cell]) -> list[Conditions]:
        """That any of these cells was tried under; the paper's own, without notes, first."""
        found = {standing.conditions for cell in chosen for standing in self.all_of(cell)}
        return sorted(found, key=lambda conditions: (conditions[0], conditions[1] or ""))

    def all_under(self, conditions: Conditions, chosen: Iterable[Cell]) -> list[list[Standing]]:
        """The standings of each of these cells that was tried under them."""
        return [found for cell in chosen if (found := self.under(conditions, cell))]

    def together(self, chosen: Sequence[Cell]) -> list[list[Standing]]:
        """These cells' standings under the conditions that most of them were tried under, or the paper's."""
        return max((self.all_under(c, chosen) for c in self.conditions(chosen)), key=len, default=[])

    def reached(self, standing: Standing) -> dict[int, tuple[int | None, float | None]]:
        """Rounds to FedAvg's best GA on the same seed, and the speedup over FedAvg's own (Table 9)."""
        cell = standing.cell
        (base_cell,) = cells(cell.table, cell.dataset, cell.setting, ["fedavg"])
        base = next(iter(self.under(standing.conditions, base_cell)), None)
        theirs = {
            seed: _records(entry)
            for seed, entry in (base.entries if base is not None else {}).items()
            if seed in standing.entries and entry.data.fingerprint == standing.entries[seed].data.fingerprint
        }
        mine = {seed: _records(entry) for seed, entry in standing.entries.items()}
        return reaching_fedavg(mine, theirs)


def of_the_paper(entries: Iterable[Entry]) -> tuple[list[Entry], list[Entry]]:
    """Lines of cells that the paper has, and others, which no table can show."""
    ids = {cell.id for cell in cells()}
    known: list[Entry] = []
    strange: list[Entry] = []
    for entry in entries:
        (known if ids & {*entry.cells} else strange).append(entry)
    return known, strange


def best_values(standings: Iterable[Standing], metric: str, when: str) -> dict[Draw, float]:
    """The largest of several standings' values, by draw."""
    found: dict[Draw, float] = {}
    for standing in standings:
        for draw, value in standing.values(metric, when).items():
            found[draw] = max(value, found.get(draw, value))
    return found


def counted(summary: Summary, together: Iterable[Sequence[Standing]]) -> list[Sequence[Standing]]:
    """Of each cell's standings those that a summary takes: a best baseline has the best of its settings, any
    other row a method's own as in the paper."""
    return [of_cell if summary.row == BEST_BASELINE else of_cell[:1] for of_cell in together]


def combined(
    summary: Summary, together: Iterable[Sequence[Standing]], metric: str, when: str = "best"
) -> dict[Draw, float]:
    """A summary's value on each draw on which all of its cells were run."""
    found: dict[Draw, dict[str, float]] = {}
    for of_cell in together:
        for draw, value in best_values(of_cell, metric, when).items():
            found.setdefault(draw, {})[of_cell[0].cell.id] = value
    values = {draw: summary.combine(of_cells) for draw, of_cells in sorted(found.items())}
    return {draw: value for draw, value in values.items() if value is not None}


def _records(entry: Entry) -> list[dict[str, Any]]:
    return [{"round": i, "GA": GA} for i, GA in enumerate(entry.GA_by_round, start=1)]


def _standings(cell: Cell, entries: Sequence[Entry]) -> list[Standing]:
    """Of the lines that count for a cell; the best standing first."""
    groups: dict[tuple[Any, ...], dict[int, Entry]] = {}
    for entry in entries:  # a later line of the same seed takes the place of an earlier one
        if entry.kind == ("run" if cell.is_trained else cell.measures):
            apart = tuple(departures_of(cell, entry))
            key = (entry.settings_hash(), apart, entry.precision, _fixed_data(entry))
            groups.setdefault(key, {})[entry.seed] = entry
    found = [Standing(cell, dict(sorted(by_seed.items()))) for by_seed in groups.values()]
    found.sort(key=lambda s: (bool(s.notes), -s.rounds, len(s.notes), -len(s.entries), s.notes))
    return [standing for standing in found if not _superseded(standing, found)]


def _fixed_data(entry: Entry) -> str | None:
    """The data's fingerprint, which is every seed's own where clients are drawn from those that data has."""
    return None if entry.config.get("partition") == "natural" else entry.data.fingerprint


def _superseded(standing: Standing, others: Sequence[Standing]) -> bool:
    """The same run cut short, where one is there that came further, but no further than the paper's."""
    wanted = wanted_settings(standing.cell)["rounds"]
    return any(
        standing.rounds < other.rounds <= wanted
        and other.precision == standing.precision
        and _beside_rounds(other) == _beside_rounds(standing)
        and set(standing.entries) <= set(other.entries)
        for other in others
    )


def _beside_rounds(standing: Standing) -> set[Departure]:
    return {departure for departure in standing.departures if departure.about != "rounds"}
