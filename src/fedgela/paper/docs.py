"""The parts of docs/paper.md that come from the registry, between their markers.

python -m fedgela.paper.docs docs/paper.md            # rewrites them
"""

import re
import sys
from pathlib import Path

from fedgela.grids import Grid
from fedgela.paper.disagreements import disagreements
from fedgela.paper.files import TABLES, common, table
from fedgela.paper.registry import cells, distinct, summaries

_PART = re.compile(r"<!-- paper: (.*?) -->\n.*?<!-- end -->", re.DOTALL)


def tables() -> str:
    """Every table and figure with what it is run on."""
    rows = []
    for name in TABLES:
        source, listed = table(name), cells(name)
        rows.append(
            [
                f"`{name}`",
                source.number,
                source.title,
                ", ".join(source.datasets),
                str(len({cell.setting for cell in listed})),
                str(len(source.methods)),
                str(len(listed)),
                str(len(summaries(name)) or "–"),
            ]
        )
    head = ("name", "in the paper", "what", "data sets", "settings", "methods", "cells", "printed summaries")
    everything = cells()
    told = f"{len(everything)} cells in all, which are {len(distinct(everything))} different runs."
    return f"{Grid(head, rows).to_markdown()}\n\n{told}"


def contradictions() -> str:
    """Every disagreement among the paper's numbers."""
    rows = [(found.kind, found.where, found.printed, found.computed) for found in disagreements()]
    return Grid(("what", "where", "the paper prints", "its own numbers give"), rows).to_markdown()


def choices() -> str:
    """What the paper leaves open or says in two ways, and what is done here."""
    sources = [("all", common().notes), *((f"`{name}`", table(name).notes) for name in TABLES)]
    rows = [(name, note.about, note.paper, note.choice) for name, notes in sources for note in notes]
    return Grid(("of", "about", "the paper", "here"), rows).to_markdown()


PARTS = {"tables": tables, "disagreements": contradictions, "choices": choices}


def rendered(text: str) -> str:
    """The page with the parts between its markers written anew."""

    def part(match: re.Match[str]) -> str:
        return f"<!-- paper: {match[1]} -->\n{PARTS[match[1]]()}\n<!-- end -->"

    return _PART.sub(part, text)


if __name__ == "__main__":
    for page in map(Path, sys.argv[1:]):
        page.write_text(rendered(page.read_text("utf-8")), "utf-8")
