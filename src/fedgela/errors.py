"""What a user did wrong, said in one or two lines."""

import difflib
from collections.abc import Iterable, Sequence


class UserError(Exception):
    """A mistake of the user's: the command line prints it and exits with 2, without a traceback."""


def first_line(error: BaseException) -> str:
    """Of what an exception says; its kind where it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def some_of(names: Sequence[str], most: int) -> str:
    """'a, b and 3 more': the first names, and how many there are beside them."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """' (did you mean 'x'?)' with the nearest known word, or '' where none is near."""
    # names without their tables are compared: 'E_W' for 'algorithm.E_W' is the likeliest slip of all
    tails: dict[str, str] = {}
    for name in known:
        tails.setdefault(_tail(name), name)
    near = difflib.get_close_matches(_tail(word), tails, n=1, cutoff=0.6)
    return f" (did you mean '{tails[near[0]]}'?)" if near else ""


def _tail(name: str) -> str:
    return name.rsplit(".", 1)[-1].lower()
