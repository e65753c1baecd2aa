"""The parts of docs/paper.md that come from the registry, between their markers.

python -m fedgela.paper.docs docs/paper.md            # rewrites them
"""

import re
import sys
from pathlib import Path

from fedgela.paper.disagreements import disagreements
from fedgela.paper.files import TABLES, common, table
from fedgela.paper.registry import cells, distinct, summaries

_PART = re.compile(r"<!-- paper: (.*?) -->\n.*?<!-- end -->", re.DOTALL)


def tables() -> list[str]:
    """Every table and figure with what it is run on."""
    lines = [
        "| name | in the paper | what | data sets | settings | methods | cells | printed summaries |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in TABLES:
        source, listed = table(name), cells(name)
        settings = {cell.setting for cell in listed}
        row = [
            f"`{name}`",
            source.number,
            source.title,
            ", ".join(source.datasets),
            str(len(settings)),
            str(len(source.methods)),
            str(len(listed)),
            str(len(summaries(name)) or "–"),
        ]
        lines.append("| " + " | ".join(row) + " |")
    everything = cells()
    lines += ["", f"{len(everything)} cells in all, which are {len(distinct(everything))} different runs."]
    return lines


def contradictions() -> list[str]:
    """Every disagreement among the paper's numbers."""
    lines = ["| what | where | the paper prints | its own numbers give |", "|---|---|---|---|"]
    lines += [
        f"| {found.kind} | {found.where} | {found.printed} | {found.computed} |" for found in disagreements()
    ]
    return lines


def choices() -> list[str]:
    """What the paper leaves open or says in two ways, and what is done here."""
    lines = ["| of | about | the paper | here |", "|---|---|---|---|"]
    sources = [("all", common().notes), *((f"`{name}`", table(name).notes) for name in TABLES)]
    for name, notes in sources:
        lines += [f"| {name} | {note.about} | {note.paper} | {note.choice} |" for note in notes]
    return lines


PARTS = {"tables": tables, "disagreements": contradictions, "choices": choices}


def rendered(text: str) -> str:
    """The page with the parts between its markers written anew."""

    def part(match: re.Match[str]) -> str:
        return "\n".join([f"<!-- paper: {match[1]} -->", *PARTS[match[1]](), "<!-- end -->"])

    return _PART.sub(part, text)


if __name__ == "__main__":
    for page in map(Path, sys.argv[1:]):
        page.write_text(rendered(page.read_text("utf-8")), "utf-8")
