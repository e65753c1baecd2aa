"""Refuses .csv files in other forms than the one that is read: UTF-8, with commas between columns."""

import codecs
from pathlib import Path

from fedgela.errors import UserError

WANTED = "expected are UTF-8, commas between columns, and points in numbers"
SEPARATORS = {";": "';'", "\t": "tabs", "|": "'|'"}


def check_form(path: Path) -> None:
    """A UserError where the file is not UTF-8, or its first line has other separators and no comma."""
    with path.open("rb") as file:
        head = file.readline()
        if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in head[:2]:
            raise UserError(f"seems to be UTF-16 text; {WANTED}")
        names = _decoded(head, 1)
        for number, line in enumerate(file, start=2):
            _decoded(line, number)
    for separator, called in SEPARATORS.items():
        if separator in names and "," not in names:
            raise UserError(f"seems to be separated by {called}; {WANTED}")


def _decoded(line: bytes, number: int) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        begins = line[: error.start].decode("utf-8")[-10:]
        raise UserError(f"line {number} is not UTF-8 text, after {begins!r}; {WANTED}") from None
