"""When one of several runs fails, it is noted in a line, a bug's traceback is kept, and the others go on."""

import traceback
from collections.abc import Callable
from pathlib import Path

from fedgela.errors import UserError
from fedgela.files import write_atomically

ERROR = "error.txt"  # in the run's folder


def keep_failure(error: Exception, folder: Path, note: Callable[[str], None]) -> str:
    """Note an error, and keep its traceback unless it is the user's mistake; returns its first line."""
    if isinstance(error, UserError):
        text, kept = str(error), ""
    else:
        text, kept = f"{type(error).__name__}: {error}", f" ({folder / ERROR} has all of it)"
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / ERROR, "".join(traceback.format_exception(error)))
    note(f"failed: {text}{kept}")
    return text.splitlines()[0]


def forget_failure(folder: Path) -> None:
    (folder / ERROR).unlink(missing_ok=True)
