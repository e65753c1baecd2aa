"""Errors and warnings for the user, as lines on standard error."""

import sys
import warnings
from pathlib import Path
from typing import TextIO

import fedgela

_show_foreign_warning = warnings.showwarning


def show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Shows this package's own warnings, which are for users, without the line of code that raised them."""
    if Path(filename).is_relative_to(Path(fedgela.__file__).parent):
        complain(f"note: {message}")
    else:
        _show_foreign_warning(message, category, filename, lineno, file, line)


def complain(text: str) -> int:
    """Print lines to standard error; returns the exit code of a user's mistake."""
    for line in text.splitlines():
        print(f"fedgela: {line}", file=sys.stderr)
    return 2
