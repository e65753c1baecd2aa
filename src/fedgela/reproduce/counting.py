"""Which of the paper's cells a run or a line of the ledger counts for."""

import json
from functools import cache

from fedgela.config import plain_table
from fedgela.paper import Cell, cells, experiment_of
from fedgela.reproduce.ledger import Entry
from fedgela.reproduce.settings import Settings, settings_hash, settings_of


@cache
def wanted_settings(cell: Cell) -> Settings:
    return settings_of(experiment_of(cell))


@cache
def cells_by_settings() -> dict[str, list[Cell]]:
    """The cells that are trained, by the hash of the settings that they ask for."""
    found: dict[str, list[Cell]] = {}
    for cell in cells():
        if cell.is_trained:
            found.setdefault(settings_hash(wanted_settings(cell)), []).append(cell)
    return found


def cells_of(entry: Entry) -> tuple[str, ...]:
    """The cells that the line names, and those of Table 9 whose run begins like it: rounds to an accuracy are
    told by GA of each round, which a shorter run has too, as far as it went."""
    longer = (id for own in entry.cells for id in _longer().get(own, ()))
    return tuple(dict.fromkeys([*entry.cells, *longer]))


def has_a_cell_of_its_own(entry: Entry, id: str) -> bool:
    """Whether the table of this cell has another one for just these settings: a table that compares models
    does not show one model's run as another's."""
    own = cells_by_settings().get(entry.settings_hash(), [])
    return all(cell.id != id for cell in own) and any(cell.table == id.partition("/")[0] for cell in own)


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
