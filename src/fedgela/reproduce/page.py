"""docs/reproduction.md: the paper's tables with ours beside, from the registry and a ledger."""

from collections.abc import Sequence

from fedgela.grids import Grid
from fedgela.paper import TABLES, Cell, cells, distinct, table
from fedgela.reproduce.departures import options_of
from fedgela.reproduce.document import Block, Heading, Listing, Paragraph, anchor
from fedgela.reproduce.fields import Notes
from fedgela.reproduce.ledger import Entry
from fedgela.reproduce.margins import EXPLAINED, margins_of_fedgela
from fedgela.reproduce.paper_table import table_blocks, table_heading
from fedgela.reproduce.standing import Standings

TITLE = "The paper's tables, and ours"


def page(entries: Sequence[Entry]) -> list[Block]:
    standings, notes = Standings(entries), Notes()
    blocks: list[Block] = [
        Heading(1, TITLE),
        *_introduction(),
        Heading(2, "What was tried"),
        _overview(standings),
    ]
    untried = [name for name in TABLES if not standings.tried(cells(name))]
    if untried:
        blocks.append(Paragraph(f"Untried as a whole: {', '.join(map(table_heading, untried))}."))
    margins = margins_of_fedgela(standings, notes)
    if margins is not None:
        blocks += [Heading(2, "Margins of FedGELA"), *map(Paragraph, EXPLAINED), margins]
    shown: set[str] = set()  # runs that an earlier table has shown
    for name in TABLES:
        if name not in untried:
            blocks += table_blocks(name, standings, notes, shown)
    if notes.texts:
        blocks += [Heading(2, "Notes"), Listing(tuple(notes.texts))]
    if entries:
        blocks += [Heading(2, "How each was obtained"), _provenance(entries)]
    return blocks


def _introduction() -> list[Block]:
    return [
        Paragraph(
            "The paper's printed numbers with ours beside them, as far as they have been run. A raised "
            "number refers to a [note](#notes): fewer rounds, other data or other settings than the paper's."
        ),
        Paragraph(
            "**Settings**: `full-` is 10 of 10 clients, `part-` 10 of 50, `dir0.1` a Dirichlet split with "
            "beta 0.1, `p10c2` ten clients with two classes each. 'As in the paper' means with the settings"
            " of [paper.md](paper.md); methods' own options, FedGELA's E_W = 10 among them, are this "
            "project's defaults where the paper gives none."
        ),
        Paragraph(
            "**Numbers**: accuracies are in percent; ± is the standard deviation over seeds (ddof = 1). "
            "**Best** is the maximum over rounds, chosen on the test data it is measured on, as the paper "
            "reports it (fine-tuned PA: at the round of the best GA); **last** is the last round's, **last "
            "tenth** the mean over the last tenth of the rounds. GA may swing by many points from one round"
            " to the next, which a maximum rewards."
        ),
        Paragraph(
            "**Marks**: ▲ marks a mean that reaches the paper's number, ▼ one that does not, each with the "
            "difference. Another model, data set or split than the paper's is another task, and gets "
            "neither; a copy of the data set that was encoded again counts as that data set."
        ),
        Paragraph(
            "**Rounds to FedAvg's best GA** (Table 9) are counted within the rounds that were run, '-' where "
            "that GA was not reached in them. With fewer rounds than the paper's the target is another one, "
            "and gets no mark."
        ),
        Paragraph(
            "Nothing here is typed by hand: `fedgela reproduce --table` writes this page from a ledger "
            "(`results/ledger.jsonl`, or `--ledger`) and the registry of the paper's tables. "
            "`fedgela reproduce --list` shows what there is to run."
        ),
    ]


def _overview(standings: Standings) -> Grid:
    def counts(listed: Sequence[Cell], tried: Sequence[Cell]) -> tuple[str, ...]:
        exact = [cell for cell in tried if (best := standings.of(cell)) and not best.notes]
        return tuple(str(len(found)) for found in (listed, tried, exact))

    rows = []
    for name in TABLES:
        heading, listed = table_heading(name), cells(name)
        tried = standings.tried(listed)
        linked = f"[{heading}](#{anchor(heading)})" if tried else heading
        rows.append((linked, table(name).title, *counts(listed, tried)))
    rows.append(("all", "different runs", *counts(distinct(cells()), standings.tried_runs())))
    return Grid(("table", "what", "cells", "tried", "of these as in the paper"), rows)


def _provenance(entries: Sequence[Entry]) -> Grid:
    rows = []
    for entry in entries:
        rate = f"{entry.images_per_second:g}" if entry.images_per_second else "–"
        rounds = f"{entry.rounds_run} of {entry.rounds_paper}" if entry.kind == "run" else "–"
        code = entry.code.version + (f" ({entry.code.commit})" if entry.code.commit else "")
        row = [
            f"`{entry.cells[0]}`",
            str(len(entry.cells)),
            str(entry.config.get("model", "–")) if entry.kind != "partition" else "–",
            options_of(entry) or "–",
            str(entry.seed),
            rounds,
            f"{entry.data.name} `{entry.data.fingerprint}`",
            entry.device,
            entry.precision or "–",
            f"{entry.wall_seconds:g}",
            rate,
            code,
            entry.date,
            f"`{entry.config_hash}`",
        ]
        rows.append(row)
    head = (
        "first cell, cells, model, options, seed, rounds, data, device, precision, seconds, images/s, code, "
        "date, settings"
    )
    return Grid(head.split(", "), rows)
