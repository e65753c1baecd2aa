"""Refuses .csv files in other forms than the one that is read: UTF-8, with commas between columns."""

import codecs
from pathlib import Path

from fedgela.errors import UserError

WANTED = "expected are UTF-8, commas between columns, and points in numbers"
SEPARATORS = {";": "';'", "\t": "tabs", "|": "'|'"}
HEAD = 2**16  # bytes that are looked at


def check_form(path: Path) -> None:
    """A UserError where the file is UTF-16, or its first line has other separators and no comma."""
    with path.open("rb") as file:
        head = file.read(HEAD)
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in head[:2]:
        raise UserError(f"seems to be UTF-16 text; {WANTED}")
    names = head.decode("utf-8", errors="replace").partition("\n")[0]
    for separator, called in SEPARATORS.items():
        if separator in names and "," not in names:
            raise UserError(f"seems to be separated by {called}; {WANTED}")
