"""What there is to reproduce, and how much of it the ledger has."""

from collections.abc import Sequence
from pathlib import Path

from fedgela.grids import padded
from fedgela.paper import TABLES, Cell, cells, distinct, table
from fedgela.reproduce.ledger import Entry, read_ledger
from fedgela.reproduce.standing import Standings


def listed(names: Sequence[str], chosen: Sequence[Cell], ledger: Path) -> list[str]:
    """The chosen cells of these tables, or all tables, and where the ledger is."""
    entries = read_ledger(ledger)
    lines = [line for name in names for line in list_table(name, chosen, entries)]
    where = f"the ledger: {ledger}"
    if not ledger.exists():
        where = f"there is no ledger here ({ledger}): --ledger FILE"
    return [*(lines or list_tables(entries)), where]


def list_tables(entries: Sequence[Entry]) -> list[str]:
    """A line a table or figure."""
    standings = Standings(entries)
    head = ("name", "in the paper", "cells", "in the ledger", "what")
    rows = []
    for name in TABLES:
        source, listed = table(name), cells(name)
        rows.append((name, source.number, str(len(listed)), str(len(standings.tried(listed))), source.title))
    runs, tried = len(distinct(cells())), len(standings.tried_runs())
    told = f"{len(cells())} cells, {runs} different runs, {tried} of them in the ledger"
    return [*_columns([head, *rows]), told]


def list_table(name: str, chosen: Sequence[Cell], entries: Sequence[Entry]) -> list[str]:
    """A line for each data set and setting of a table's chosen cells."""
    standings = Standings(entries)
    rows = [("data set", "setting", "rounds", "in the ledger", "methods; * in the ledger")]
    source = table(name)
    by_setting: dict[tuple[str, str], list[Cell]] = {}
    for cell in chosen:
        if cell.table == name:
            by_setting.setdefault((cell.dataset, cell.setting), []).append(cell)
    for (dataset, setting), listed in by_setting.items():
        tried = standings.tried(listed)
        methods = ", ".join(cell.method + ("*" if cell in tried else "") for cell in listed)
        rounds = str(listed[0].config["rounds"]) if listed[0].is_trained else "-"
        rows.append((dataset, setting, rounds, f"{len(tried)} of {len(listed)}", methods))
    return [f"{source.number} ({name}): {source.title}", *_columns(rows)]


def _columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    return ["  ".join(line).rstrip() for line in padded(rows, str.ljust)]
