"""The docs' tables of what the paper prints, each as Markdown."""

from fedgela.grids import Grid
from fedgela.paper import TABLES, cells, common, distinct, summaries, table
from fedgela.paper.disagreements import disagreements


def contents() -> str:
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
    told = f"{len(cells())} cells in all, which are {len(distinct(cells()))} different runs."
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
