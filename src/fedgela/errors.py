"""Errors for users, and words that messages are made of."""

import contextlib
import difflib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path


class UserError(Exception):
    """A user's mistake: the command line prints its lines, without a traceback, and exits with 2."""


@contextlib.contextmanager
def prefixed(path: Path) -> Iterator[None]:
    """Puts a file's name in front of a UserError from within."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def first_line(error: BaseException) -> str:
    """The first line of an exception's message, or its class where there is no message."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def printable(name: str) -> str:
    """A name from a user's data with its control characters escaped; a folder's name may have some."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in name)


def some_of(names: Sequence[str], most: int) -> str:
    """'a, b and 3 more': at most so many names, and how many are left out."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The most similar known word as a hint with a blank before it, or nothing where none is similar."""
    # names are compared without their tables: 'E_W' for 'algorithm.E_W' is the likeliest slip of all
    tails: dict[str, str] = {}
    for name in known:
        tails.setdefault(_tail(name), name)
    near = difflib.get_close_matches(_tail(word), tails, n=1, cutoff=0.6)
    return f" (did you mean '{tails[near[0]]}'?)" if near else ""


def _tail(name: str) -> str:
    return name.rsplit(".", 1)[-1].lower()
