"""Which cells a line of the ledger counts for."""

import json
from collections.abc import Iterable
from functools import cache

from fedgela.config import plain_table
from fedgela.paper import Cell, cells, experiment_of
from fedgela.reproduce.ledger import Entry


def cells_of(entry: Entry) -> tuple[str, ...]:
    """The cells that the line names, and those of Table 9 whose run begins like it: rounds to an accuracy are
    told by GA of each round, which a shorter run has too, as far as it went."""
    longer = (id for own in entry.cells for id in _longer().get(own, ()))
    return tuple(dict.fromkeys([*entry.cells, *longer]))


def lines_of(
    entries: Iterable[Entry], cell: str, config_hash: str, seed: int, precision: str | None = None
) -> list[Entry]:
    """The lines that count for the cell and have these settings and this seed, in any precision unless one is
    asked for. Settings alone do not tell: a run that did not record the angles that a cell is about has the
    cell's settings, but does not count for it."""
    return [
        entry
        for entry in entries
        if cell in cells_of(entry)
        and entry.seed == seed
        and precision in (None, entry.precision)
        and entry.settings_hash() == config_hash
    ]


@cache
def _longer() -> dict[str, list[str]]:
    """By the id of a cell, the cells about communication that differ from it by more rounds only."""
    asked = {_but_for_rounds(cell): cell for cell in cells() if cell.measures == "communication"}
    found: dict[str, list[str]] = {}
    for cell in cells():
        longer = asked.get(_but_for_rounds(cell)) if cell.is_trained else None
        if longer is not None and longer.config["rounds"] > cell.config["rounds"]:
            found.setdefault(cell.id, []).append(longer.id)
    return found


def _but_for_rounds(cell: Cell) -> str:
    settings = plain_table(experiment_of(cell)) | {"rounds": None}
    return json.dumps(settings, sort_keys=True)
