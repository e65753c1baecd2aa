"""What a table's cells should be and are not: values that are there, and numbers where features are."""

from collections.abc import Collection, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from fedgela.errors import UserError, printable, some_of

LETTERS = 30  # of a value that is shown
NAMED = 10  # columns in a message


class Cells:
    """A column of a table, as far as a complaint about it is concerned."""

    def __init__(self, column: Any, missing: Collection[str]) -> None:
        """`missing` are the spellings of a missing value."""
        import pyarrow
        import pyarrow.compute
        import pyarrow.types as t

        self.column = column
        self.is_of_numbers = any(is_it(column.type) for is_it in (t.is_boolean, t.is_integer, t.is_floating))
        none, self.written = column.is_null(), []
        if t.is_string(column.type) or t.is_large_string(column.type):
            texts = pyarrow.compute.utf8_trim_whitespace(column)
            spelled = pyarrow.compute.is_in(texts, pyarrow.array(missing, column.type))
            none = pyarrow.compute.or_(none, spelled)
            self.written = sorted({text for text in texts.filter(spelled).to_pylist() if text})
        self.lacking: list[int] = np.flatnonzero(none.to_numpy()).tolist()

    @cached_property
    def wrong(self) -> list[int]:
        """The rows with a value that is no number: all, of dates and of numbers that are kept as text."""
        if self.is_of_numbers:
            return []
        values, there = self.column.to_pylist(), set(range(len(self.column))) - set(self.lacking)
        return [row for row in sorted(there) if not _is_number(values[row])] or sorted(there)

    def shown(self, row: int) -> str:
        return repr(str(self.column[row].as_py())[:LETTERS])


def check_cells(
    table: Any,
    columns: Sequence[str],
    numbers: Collection[str],
    missing: Collection[str] = ("",),
    instead: str = "",
    rows: Sequence[int] | None = None,
) -> None:
    """A UserError that names all of these columns that lack values, and all of `numbers` that are of other
    things: a user's table has several such columns at first, and is to be mended in one go. `instead` says
    what may be done with a column of other things; `rows` are the rows' numbers in the file."""
    named = range(table.num_rows) if rows is None else rows
    lacking: dict[str, str] = {}
    strange: dict[str, Cells] = {}
    for column in columns:
        cells = Cells(table[column], missing)
        if cells.lacking:
            lacking[column] = _where(column, cells, named)
        if column in numbers and cells.wrong:
            strange[column] = cells
    lines = []
    if len(lacking) == 1:
        lines += [f"column {printable(column)} lacks a value in {where}" for column, where in lacking.items()]
    elif lacking:
        listed = [f"{printable(column)} ({where})" for column, where in lacking.items()]
        lines.append(f"columns that lack values: {some_of(listed, NAMED)}")
    if len(strange) == 1:
        lines += [f"column {printable(c)} {_what(cells, named)}{instead}" for c, cells in strange.items()]
    elif strange:
        listed = [f"{printable(c)} ({cells.shown(cells.wrong[0])})" for c, cells in strange.items()]
        lines.append(f"columns that are not of numbers: {some_of(listed, NAMED)}{instead}")
    if lines:
        raise UserError("\n".join(lines))


def _where(column: str, cells: Cells, named: Sequence[int]) -> str:
    first = named[cells.lacking[0]]
    told = f"row {first}" if len(cells.lacking) == 1 else f"{len(cells.lacking)} rows, first in row {first}"
    if cells.written:
        told += f", written {' and '.join(map(repr, cells.written))}"
        what = {"label": "class", "client": "client"}.get(column)
        told += f"; if that is a real {what}, rename it" if what else ""
    return told


def _what(cells: Cells, named: Sequence[int]) -> str:
    """Of some cells, as '<5' among a laboratory's values, or of all."""
    wrong = cells.wrong
    if len(wrong) == len(cells.column) - len(cells.lacking):
        return f"is no column of numbers but {cells.column.type}, such as {cells.shown(wrong[0])}"
    more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
    return f"holds {cells.shown(wrong[0])} in row {named[wrong[0]]}{more}, which is no number"


def _is_number(value: object) -> bool:
    try:
        float(str(value))
    except ValueError:
        return False
    return True
