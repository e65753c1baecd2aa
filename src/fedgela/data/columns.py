"""A table's columns: what they are for by their names, and which look like a mistake."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from fedgela.data.dataset import printable
from fedgela.errors import some_of

ID = "id"  # what a sample is called: for predictions, never trained on
ROLES = ("label", "client", "split", "image", "group", ID)
NAMED = ("label", "client", "group")  # by names, or by numbers
PANDAS_INDEX = re.compile(r"Unnamed: \d+(\.\d+)*")  # what pandas calls an index that it wrote and read again
SHOWN = 5  # columns in a note
FEWEST = 5  # rows: of fewer, the numbers of a column may well rise by chance


def nearly(role: str, names: Sequence[str]) -> str | None:
    """The column that may be meant where none is called so: ' label' or Label."""
    return None if role in names else next((name for name in names if name.strip().lower() == role), None)


def doubtful(table: Any, features: Sequence[str]) -> Iterator[str]:
    """What a run and an inspection say of the columns, of which some are trained on."""
    names = table.column_names
    for name in filter(PANDAS_INDEX.fullmatch, names):
        yield f"column {name} is left out: pandas calls the index of a table so"
    unread = [printable(name) for name in names if name not in (*ROLES, *features) and "image" in names]
    if unread:
        yield f"columns beside image that nothing reads: {some_of(unread, SHOWN)}"
    for role in ROLES:
        if (name := nearly(role, names)) in features:
            yield f"column {name!r} is trained on as any feature (did you mean {role!r}?)"
    for name in features:
        numbers = table[name].to_numpy()
        if numbers.dtype.kind in "iu" and len(numbers) >= FEWEST:
            rise, fall = numbers[1:] > numbers[:-1], numbers[1:] < numbers[:-1]
            if rise.all() or fall.all():
                way = "rises" if rise.all() else "falls"
                # of a table that was once sorted, it tells the labels
                yield (
                    f"column {printable(name)} numbers the rows: it {way} with every row, and is trained on; "
                    "leave it out unless it was measured"
                )
