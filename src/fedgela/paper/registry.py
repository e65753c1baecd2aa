"""The paper's tables as cells and summaries, listed and filtered."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from fedgela.errors import UserError, did_you_mean
from fedgela.paper.cells import BEST_BASELINE, Cell, Summary
from fedgela.paper.files import TABLES, Setting, Table, common, table
from fedgela.paper.numbers import Printed

Names = str | Sequence[str]  # one name, or several; none stands for all


def cells(table: Names = (), dataset: str = "", setting: Names = (), methods: Names = ()) -> tuple[Cell, ...]:
    """The cells that fit, in the order of the paper's tables; a name that none has is a UserError."""
    tables = _several(table)
    for name in tables:
        _check("table", name, TABLES, "the paper")
    found = [cell for name in tables or TABLES for cell in _cells_of(name)]
    where = ", ".join(tables) or "the paper"
    wanted: tuple[tuple[str, Callable[[Cell], str], Sequence[str]], ...] = (
        ("data set", lambda cell: cell.dataset, _several(dataset.replace("_", "-"))),
        ("setting", lambda cell: cell.setting, _several(setting)),
        ("method", lambda cell: cell.method, _several(methods)),
    )
    for kind, of_cell, names in wanted:
        for name in names:
            _check(kind, name, map(of_cell, found), where)
        if names:
            found = [cell for cell in found if of_cell(cell) in names]
            where += f", {', '.join(names)}"
    return tuple(found)


def _several(names: Names) -> Sequence[str]:
    return names if not isinstance(names, str) else [names] if names else []


def find_cell(id: str) -> Cell:
    """A cell by its id, such as main/cifar10/full-dir0.1/fedgela."""
    known = {cell.id: cell for cell in cells()}
    if id not in known:
        raise UserError(f"the paper has no cell {id!r}{did_you_mean(id, known)}")
    return known[id]


def distinct(chosen: Iterable[Cell]) -> tuple[Cell, ...]:
    """Of cells that are one and the same run, the first: Table 4 repeats runs of Table 2, for one."""
    runs: dict[str, Cell] = {}
    for cell in chosen:
        runs.setdefault(cell.run_key, cell)
    return tuple(runs.values())


def same_run(cell: Cell) -> tuple[Cell, ...]:
    """The cells of all tables that are one and the same run as this one, itself among them."""
    return _by_run()[cell.run_key]


@cache
def _by_run() -> dict[str, tuple[Cell, ...]]:
    runs: dict[str, list[Cell]] = {}
    for cell in cells():
        runs.setdefault(cell.run_key, []).append(cell)
    return {key: tuple(found) for key, found in runs.items()}


def summaries(table: str = "") -> tuple[Summary, ...]:
    """What the paper prints of several cells at once: averages over settings and best baselines."""
    if table:
        _check("table", table, TABLES, "the paper")
    return tuple(summary for name in ([table] if table else TABLES) for summary in _summaries_of(name))


def _check(kind: str, word: str, known: Iterable[str], where: str) -> None:
    names = list(dict.fromkeys(known))
    if word not in names:
        raise UserError(
            f"{where} has no {kind} {word!r}{did_you_mean(word, names)}; there are {', '.join(names)}"
        )


@cache
def _cells_of(name: str) -> tuple[Cell, ...]:
    source = table(name)
    return tuple(
        Cell(
            table=name,
            dataset=dataset,
            setting=setting,
            method=method,
            measures=source.measures,
            metrics=source.metrics,
            config=_config(source, dataset, setting, method),
            printed=_printed(source, dataset, setting, method),
        )
        for dataset, settings in source.datasets.items()
        for setting in settings
        for method in source.methods
    )


def _config(source: Table, dataset: str, setting: str, method: str) -> Mapping[str, Any]:
    """Keys of the experiment: what all share, the data set's, the setting's; later ones win."""
    data = common().datasets[dataset]
    chosen = _setting(source, setting)
    config = {**common().config, **data.config, **chosen.config, "dataset": dataset}
    if "rounds" not in config:
        assert chosen.participation is not None, setting
        config["rounds"] = data.rounds[chosen.participation]
    return {**config, "algorithm": dict(source.method(method).algorithm)}


def _setting(source: Table, name: str) -> Setting:
    chosen = source.settings.get(name) or common().settings[name]
    if chosen.like is None:
        return chosen
    base = common().settings[chosen.like]
    return Setting(None, chosen.participation or base.participation, {**base.config, **chosen.config})


def _printed(source: Table, dataset: str, column: str, row: str) -> dict[str, Printed]:
    """The numbers of a row in a column, by metric, gains included."""
    columns = list(source.columns_of(dataset))
    return {
        metric: Printed(rows[row][columns.index(column)])
        for metric, rows in source.printed.get(dataset, {}).items()
        if column in columns and row in rows
    }


@cache
def _summaries_of(name: str) -> tuple[Summary, ...]:
    source = table(name)
    by_place = {(cell.dataset, cell.setting, cell.method): cell for cell in _cells_of(name)}
    found = []
    for dataset, metrics in source.printed.items():
        rows = dict.fromkeys(row for metric in source.metrics for row in metrics[metric])
        for column, settings in source.columns_of(dataset).items():
            for row in rows:
                if row != BEST_BASELINE and settings == (column,):
                    continue  # one run: a cell
                members = common().baselines if row == BEST_BASELINE else (row,)
                groups = tuple(
                    tuple(by_place[dataset, setting, method] for method in members) for setting in settings
                )
                found.append(
                    Summary(
                        table=name,
                        dataset=dataset,
                        column=column,
                        row=row,
                        groups=groups,
                        printed=_printed(source, dataset, column, row),
                    )
                )
    return tuple(found)
