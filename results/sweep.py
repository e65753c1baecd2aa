"""A file of measured rows, which is written after each: what was stopped goes on with what is missing."""

import json
from pathlib import Path
from typing import Any


class Sweep:
    def __init__(self, path: str, **head: Any) -> None:
        """`head` is what the file says before its rows."""
        self.path, self.head = Path(path), head
        self.rows: list[dict[str, Any]] = (
            json.loads(self.path.read_text())["rows"] if self.path.exists() else []
        )

    def has(self, asked: dict[str, Any]) -> bool:
        return any(asked.items() <= row.items() for row in self.rows)

    def add(self, *rows: dict[str, Any]) -> None:
        self.rows += rows
        print(*rows, sep="\n", flush=True)
        head = "".join(f"{json.dumps(key)}: {json.dumps(value)},\n" for key, value in self.head.items())
        lines = ",\n".join(json.dumps(row) for row in self.rows)  # a row a line, so that a new one is one
        self.path.write_text(f'{{{head}"rows": [\n{lines}\n]}}\n')
