"""What the sweeps share: a file of measured rows, and runs of which only figures are kept."""

import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedgela.config import parse_experiment
from fedgela.runs import run
from fedgela.saved.runs import Run, find_runs

Row = dict[str, Any]


class Sweep:
    """A file that is written anew after each row: a script that was stopped goes on with what is missing."""

    def __init__(self, path: str, **head: Any) -> None:
        """`head` is what the file says before its rows."""
        self.path, self.head = Path(path), head
        self.rows: list[Row] = json.loads(self.path.read_text())["rows"] if self.path.exists() else []

    def has(self, asked: Row) -> bool:
        return any(asked.items() <= row.items() for row in self.rows)

    def add(self, *rows: Row) -> None:
        self.rows += rows
        print(*rows, sep="\n", flush=True)
        head = "".join(f"{json.dumps(key)}: {json.dumps(value)},\n" for key, value in self.head.items())
        lines = ",\n".join(json.dumps(row) for row in self.rows)  # a row a line, so that a new one is one
        self.path.write_text(f'{{{head}"rows": [\n{lines}\n]}}\n')


def note_of(doc: str | None) -> str:
    """What a script's docstring says below its title and its command, in one line: the `note` of its file."""
    assert doc is not None
    return doc.split("\n\n", 2)[2].replace("\n", " ").strip()


@contextlib.contextmanager
def trained(table: Row) -> Iterator[Run]:
    """A finished run of this experiment; its folder is gone afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        run(parse_experiment(table), Path(folder) / "run")
        (found,) = find_runs([Path(folder)], print)
        yield found


def last(trained: Run, *metrics: str) -> dict[str, float]:
    """These metrics at the last round, in percent."""
    assert trained.result is not None
    return {name: round(trained.result[name]["last"], 2) for name in metrics}
