"""What a user did wrong, said in one or two lines."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake of the user's: the command line prints it and exits with 2, without a traceback."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """' (did you mean 'x'?)' with the nearest known word, or '' where none is near."""
    known = list(known)
    # 'E_W' for 'algorithm.E_W': the right name without its table is the likeliest slip of all
    tail = word.rsplit(".", 1)[-1].lower()
    tails = [name for name in known if name.rsplit(".", 1)[-1].lower() == tail]
    near = tails or difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f" (did you mean '{near[0]}'?)" if near else ""
