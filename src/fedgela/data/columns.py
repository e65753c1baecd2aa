"""A table's columns: which role each has by its name, and which look like a mistake."""

import difflib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fedgela.data.groups import repeated_ids
from fedgela.errors import printable, some_of

ID = "id"  # the sample's name, shown with predictions and never trained on
ROLES = ("label", "client", "split", "image", "group", ID)
NAMED = ("label", "client", "group")  # their values may be names or numbers
PANDAS_INDEX = re.compile(r"Unnamed: \d+(\.\d+)*")  # what pandas calls an index that it wrote and read again
# what else such columns are often called, perhaps with an 'id' behind it
OTHERWISE = {
    "label": ("target", "class", "diagnosis", "outcome", "y"),
    "client": ("site", "hospital", "clinic", "center", "centre", "institution"),
    "group": ("patient", "subject"),
}
# what stands for a missing value in many tables
PLACEHOLDERS = [-9.0, *(sign * float("9" * digits) for digits in range(2, 7) for sign in (-1, 1))]
MISSPELT = 0.8  # similarity from which a word is taken for a role: that of 'lable' to label
SHOWN = 5  # columns in a note
FEWEST = 5  # in fewer rows the numbers of a column may well rise by chance


def nearly(role: str, names: Sequence[str]) -> str | None:
    """Where no column has the name of a role, the one that may be meant: ' label', 'Lable' or 'target' for
    label, 'hospital_id' for client."""
    if role in names:
        return None
    words = {_word(name): name for name in names}
    meant = [word for word in (role, *OTHERWISE.get(role, ())) if word in words]
    if not meant and role != ID:  # which many short words resemble
        meant = difflib.get_close_matches(role, words, n=1, cutoff=MISSPELT)
    return words[meant[0]] if meant else None


def _word(name: str) -> str:
    word = re.sub(r"[\W_]", "", name).lower()
    return word.removesuffix("id") or word


def doubtful(table: Any, features: Sequence[str]) -> Iterator[str]:
    """Notes about columns that look like mistakes; `features` are the columns that are trained on."""
    names = table.column_names
    for name in filter(PANDAS_INDEX.fullmatch, names):
        yield f"column {name} is left out: pandas calls the index of a table so"
    unread = [printable(name) for name in names if name not in (*ROLES, *features) and "image" in names]
    if unread:
        yield f"columns beside image that nothing reads: {some_of(unread, SHOWN)}"
    for role in ROLES:
        if (name := nearly(role, names)) in features:
            yield f"column {name!r} is trained on as any feature (did you mean {role!r}?)"
    if ID in names and "group" not in names:
        yield from repeated_ids(table[ID].drop_null().to_pylist())
    for name in features:
        numbers = table[name].to_numpy()
        yield from _placeholder(name, numbers)
        if numbers.dtype.kind in "iu" and len(numbers) >= FEWEST:
            rise, fall = numbers[1:] > numbers[:-1], numbers[1:] < numbers[:-1]
            if rise.all() or fall.all():
                way = "rises" if rise.all() else "falls"
                # if the table was ever sorted by label, such a column reveals the labels
                yield (
                    f"column {printable(name)} numbers the rows: it {way} with every row, and is trained on; "
                    "leave it out unless it was measured"
                )


def _placeholder(name: str, numbers: np.ndarray) -> Iterator[str]:
    """A note where a number such as -999 lies farther from all others than they do from each other."""
    for value in PLACEHOLDERS:
        there = numbers == value
        rows, others = int(there.sum()), numbers[~there]
        if rows > 1 and len(others) > 1:
            low, high = float(others.min()), float(others.max())
            if max(low - value, value - high) > high - low > 0:
                yield (
                    f"column {printable(name)} holds {value:g} in {rows} rows, far from its other values: if "
                    "that stands for a missing value, it is trained on as a number"
                )
