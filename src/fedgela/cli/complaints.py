"""What goes to a user who made a mistake, or should know something: a line or two on standard error."""

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
    """Our own warnings are for the user, and need no line of code with them."""
    if Path(filename).is_relative_to(Path(fedgela.__file__).parent):
        complain(f"note: {message}")
    else:
        _show_foreign_warning(message, category, filename, lineno, file, line)


def complain(text: str) -> int:
    for line in text.splitlines():
        print(f"fedgela: {line}", file=sys.stderr)
    return 2
