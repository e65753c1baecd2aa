"""docs/reproduction.md: the paper's tables with ours beside, from the registry and a ledger."""

import itertools
from collections.abc import Iterable, Sequence

from fedgela.paper import (
    BEST_BASELINE,
    TABLES,
    Cell,
    Printed,
    Summary,
    cells,
    common,
    distinct,
    summaries,
    table,
)
from fedgela.reproduce.document import Block, Field, Grid, Heading, Listing, Paragraph, Tone
from fedgela.reproduce.ledger import Entry
from fedgela.reproduce.standing import LAST_TENTH, Standing, Standings, best_values, mean_and_std

TITLE = "The paper's tables, and ours"
UNTRIED = Field("untried", tone="untried")
INCOMPLETE = Field("incomplete", tone="untried")
OTHER_TASK = Field("another task")
NOTHING = Field("–")
COUNTS = ("smallest_client", "largest_client")
MARGINS = {"PA": ("best", "last"), "GA": ("best", "last", LAST_TENTH)}


class Notes:
    """Footnotes of a page, each text once: what is not as in the paper."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def numbers(self, standings: Iterable[Standing | None]) -> tuple[int, ...]:
        found = set()
        for standing in standings:
            if standing is not None and standing.notes:
                text = "; ".join(standing.notes)
                if text not in self.texts:
                    self.texts.append(text)
                found.add(self.texts.index(text) + 1)
        return tuple(sorted(found))


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
        listed = ", ".join(f"{table(name).number} (`{name}`)" for name in untried)
        blocks.append(Paragraph(f"Untried as a whole: {listed}."))
    margins = _margins(standings, notes)
    if margins is not None:
        blocks += [Heading(2, "Margins of FedGELA"), Paragraph(_MARGINS), margins]
    shown: set[str] = set()  # runs that an earlier table has shown
    for name in TABLES:
        if name not in untried:
            blocks += _table(name, standings, notes, shown)
    if entries:
        blocks += [Heading(2, "How each was obtained"), _provenance(entries)]
    if notes.texts:
        blocks += [Heading(2, "Notes"), Listing(tuple(notes.texts))]
    return blocks


_MARGINS = (
    "The paper's claims: FedGELA minus FedAvg, and minus the best of the ten baselines (best of each metric "
    "apart). Ours are paired by seed and of one task: the same model, data, rounds and other settings but "
    "the method's own; against the best baseline they are given where all ten were run, each with the best "
    "of the settings that it was run with. ▲ marks a margin that reaches the paper's, ▼ one that does not."
)


def _introduction() -> list[Block]:
    return [
        Paragraph(
            "Written by `fedgela reproduce --table` from a ledger (`results/ledger.jsonl`, or `--ledger`) "
            "and the registry of the paper's tables ([paper.md](paper.md)); nothing here is typed by hand. "
            "`fedgela reproduce --list` shows what there is to run. `full-` is 10 of 10 clients, `part-` 10 "
            "of 50, `dir0.1` a Dirichlet split with beta 0.1, `p10c2` ten clients with two classes each. As "
            "in the paper means as that page sets it; methods' own options, FedGELA's E_W = 10 among them, "
            "are this project's defaults where the paper gives none."
        ),
        Paragraph(
            "Accuracies are in percent; ± is the standard deviation over seeds (ddof = 1). **Best** is the "
            "maximum over rounds, chosen on the test data it is measured on, as the paper reports it "
            "(fine-tuned PA: at the round of the best GA); **last** is the last round's, **last tenth** "
            "the mean over the last tenth of the rounds: GA may swing by many points from one round to the "
            "next, which a maximum rewards. ▲ marks a mean that reaches the paper's number, ▼ one that does "
            "not, each with the difference; another model, data set or split than the paper's is another "
            "task, and gets neither. A raised number refers to a note: fewer rounds, other data or other "
            "settings than the paper's."
        ),
    ]


def _overview(standings: Standings) -> Grid:
    rows: list[tuple[Field, ...]] = []
    for name in TABLES:
        listed = cells(name)
        tried = standings.tried(listed)
        exact = [cell for cell in tried if (best := standings.of(cell)) and not best.notes]
        rows.append(
            (
                Field(f"{table(name).number} (`{name}`)"),
                Field(table(name).title),
                Field(str(len(listed))),
                Field(str(len(tried))),
                Field(str(len(exact))),
            )
        )
    everything = cells()
    runs = distinct(everything)
    tried = standings.tried(runs)
    exact = [cell for cell in tried if (best := standings.of(cell)) and not best.notes]
    total = (len(runs), len(tried), len(exact))
    rows.append((Field("all"), Field("different runs"), *(Field(str(n)) for n in total)))
    return Grid(("table", "what", "cells", "tried", "of these as in the paper"), tuple(rows))


# -- one table -------------------------------------------------------------------------------------


def _table(name: str, standings: Standings, notes: Notes, shown: set[str]) -> list[Block]:
    source = table(name)
    blocks: list[Block] = [Heading(2, f"{source.number} (`{name}`): {source.title}")]
    repeated: list[Cell] = []
    untried: list[str] = []
    for dataset, settings in source.datasets.items():
        for setting in settings:
            listed = cells(name, dataset, setting)
            tried = standings.tried(listed)
            if not tried:
                untried.append(f"{dataset} {setting}")
                continue
            # runs that stand above already are not shown again, unless this table has other numbers of them
            new = [cell for cell in tried if _has_own_numbers(cell) or cell.run_key not in shown]
            repeated += [cell for cell in tried if cell not in new]
            if not new:
                untried += _places([cell for cell in listed if cell not in tried])
            else:
                shown |= {cell.run_key for cell in listed if cell.measures == "accuracy"}
                here = [cell for cell in listed if _has_own_numbers(cell) or cell in new or cell not in tried]
                blocks += [Heading(3, f"{dataset}, {setting}"), _grid(here, standings, notes)]
    summed = [s for s in summaries(name) if standings.tried(s.cells)]
    if summed:
        blocks += [Heading(3, "Averages and best baselines"), _summary_grid(summed, standings, notes)]
    if repeated:
        told = "; ".join(_places(repeated))
        blocks.append(Paragraph(f"{len(repeated)} cells are runs that stand in the tables above: {told}."))
    if untried:
        blocks.append(Paragraph(f"Untried: {'; '.join(untried)}."))
    return blocks


def _has_own_numbers(cell: Cell) -> bool:
    return bool(cell.printed) or cell.measures != "accuracy"


def _places(listed: Sequence[Cell]) -> list[str]:
    """Cells by their data set and setting, methods in brackets."""
    found: dict[str, list[str]] = {}
    for cell in listed:
        found.setdefault(f"{cell.dataset} {cell.setting}", []).append(cell.method)
    return [f"{place} ({', '.join(methods)})" for place, methods in found.items()]


def _grid(listed: Sequence[Cell], standings: Standings, notes: Notes) -> Grid:
    measures = listed[0].measures
    if measures == "accuracy":
        return _accuracies(listed, standings, notes)
    if measures == "communication":
        return _communication(listed, standings, notes)
    metrics = {
        "burden": ("parameters", "kept", "sent", "ratio", "ratio_low", "ratio_high"),
        "partition": ("missing_percent", "smallest_client", "largest_client"),
    }.get(measures, listed[0].metrics)
    titles = {
        "parameters": "held while training (M)",
        "kept": "kept between rounds (M)",
        "sent": "sent up (M)",
        "ratio": "time to FedAvg's",
        "ratio_low": "from",
        "ratio_high": "to",
        "missing_percent": "cells of client and class without samples, %",
        "smallest_client": "smallest client",
        "largest_client": "largest client",
    }
    rows = []
    for cell in listed:
        for standing in standings.rows_of(cell):
            fields = [_name(cell, standing, notes), _seeds(standing)]
            for metric in metrics:
                values = list(standing.values(metric).values()) if standing else []
                shown = _count(values) if values and metric in COUNTS else _mean(values) if values else ""
                fields.append(Field(shown) if shown else NOTHING if standing else UNTRIED)
            rows.append(tuple(fields))
    head = [titles.get(metric, f"{metric.replace('_', ' ')}, degrees, last round") for metric in metrics]
    return Grid(("method", "seeds", *head), tuple(rows))


def _accuracies(listed: Sequence[Cell], standings: Standings, notes: Notes) -> Grid:
    metrics = listed[0].metrics
    rows = []
    for cell in listed:
        for standing in standings.rows_of(cell):
            fields = [_name(cell, standing, notes), _seeds(standing)]
            for metric in metrics:
                values = list(standing.values(metric).values()) if standing else []
                comparable = standing is None or standing.comparable
                fields += _beside(cell.printed.get(metric), values if standing else None, comparable)
            for metric in metrics:
                fields.append(_mean_at(standing, metric, "last"))
            if "GA" in metrics:
                fields.append(_mean_at(standing, "GA", LAST_TENTH))
            rows.append(tuple(fields))
    head = [f"{metric} {part}" for metric in metrics for part in ("paper", "ours, best", "difference")]
    head += [f"{metric} last" for metric in metrics]
    head += [f"GA {LAST_TENTH}"] if "GA" in metrics else []
    return Grid(("method", "seeds", *head), tuple(rows))


def _mean_at(standing: Standing | None, metric: str, when: str) -> Field:
    values = list(standing.values(metric, when).values()) if standing else []
    return Field(_mean(values)) if values else NOTHING


def _communication(listed: Sequence[Cell], standings: Standings, notes: Notes) -> Grid:
    rows = []
    for cell in listed:
        for standing in standings.rows_of(cell):
            fields = [_name(cell, standing, notes), _seeds(standing)]
            reached = standings.reached(standing) if standing else {}
            for place, metric in enumerate(("rounds", "speedup")):
                printed = cell.printed.get(metric)
                fields.append(Field(printed.text) if printed else NOTHING)
                if standing is None:
                    fields.append(UNTRIED)
                elif not reached:
                    fields.append(Field("FedAvg is untried", tone="untried"))
                elif any(pair[0] is None for pair in reached.values()):
                    fields.append(Field("-"))  # as the paper prints what never gets there
                else:
                    numbers = [float(pair[place] or 0) for pair in reached.values()]
                    text = _mean(numbers, "x") if metric == "speedup" else _count(numbers)
                    fields.append(Field(text, tone=_quick(printed, numbers)))
            rows.append(tuple(fields))
    return Grid(
        ("method", "seeds", "rounds paper", "rounds ours", "speedup paper", "speedup ours"), tuple(rows)
    )


def _quick(printed: Printed | None, ours: Sequence[float]) -> Tone:
    """Fewer rounds are better, and a larger speedup."""
    if printed is None or printed.value is None:
        return "plain"
    gain = mean_and_std(ours)[0] - printed.value
    better = gain >= 0 if printed.text.endswith("x") else gain <= 0
    return "reached" if better else "below"


def _summary_grid(listed: Sequence[Summary], standings: Standings, notes: Notes) -> Grid:
    metrics = table(listed[0].table).metrics
    rows = []
    for summary in listed:
        together = standings.together(summary.cells)
        counted = [standing for of_cell in together for standing in of_cell]
        if summary.row != BEST_BASELINE:
            counted = [of_cell[0] for of_cell in together]
        title = "Best baseline" if summary.row == BEST_BASELINE else _title(summary.table, summary.row)
        name = Field(f"{title}, {summary.dataset} {summary.column}", notes.numbers(counted))
        fields = [name, Field(f"{len(together)} of {len(summary.cells)}")]
        for metric in metrics:
            values = list(standings.summary(summary, metric).values())
            comparable = all(standing.comparable for standing in counted)
            paper, ours, difference = _beside(summary.printed.get(metric), values or None, comparable)
            fields += [paper, ours if values else INCOMPLETE, difference]
        rows.append(tuple(fields))
    head = [f"{metric} {part}" for metric in metrics for part in ("paper", "ours", "difference")]
    return Grid(("what", "runs tried", *head), tuple(rows))


def _title(name: str, method: str) -> str:
    known = {**common().methods, **table(name).methods_here}
    return known[method].title


def _name(cell: Cell, standing: Standing | None, notes: Notes) -> Field:
    return Field(_title(cell.table, cell.method), notes.numbers([standing]))


def _seeds(standing: Standing | None) -> Field:
    return Field(", ".join(map(str, standing.entries))) if standing else NOTHING


def _beside(printed: Printed | None, values: Sequence[float] | None, comparable: bool) -> list[Field]:
    """The paper's number, ours and the difference."""
    paper = Field(printed.text) if printed else NOTHING
    if not values:
        return [paper, UNTRIED if values is None else NOTHING, NOTHING]
    ours, _ = mean_and_std(values)
    if printed is None or printed.value is None:
        return [paper, Field(_mean(values)), NOTHING]
    difference = _difference(round(ours, 2) - printed.value) if comparable else OTHER_TASK
    return [paper, Field(_mean(values)), difference]


def _difference(value: float) -> Field:
    value = round(value, 2) + 0.0  # no -0.00
    reached = value >= 0
    return Field(f"{'▲' if reached else '▼'} {_signed(value)}", tone="reached" if reached else "below")


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")


def _mean(values: Sequence[float], unit: str = "") -> str:
    mean, std = mean_and_std(values)
    return f"{mean:.2f}{unit}" + ("" if std is None else f" ± {std:.2f}")


def _count(values: Sequence[float]) -> str:
    """Of rounds or samples: a whole number, unless it is a mean."""
    return f"{values[0]:g}" if len(values) == 1 else _mean(values)


# -- margins and provenance ------------------------------------------------------------------------


def _margins(standings: Standings, notes: Notes) -> Grid | None:
    rows = []
    for cell in distinct(c for c in cells(methods="fedgela") if c.measures == "accuracy"):
        siblings = {c.method: c for c in cells(cell.table, cell.dataset, cell.setting)}
        baselines = [siblings[m] for m in common().baselines if m in siblings]
        for mine in standings.all_of(cell):
            for against, others in (("FedAvg", [siblings["fedavg"]]), ("best baseline", baselines)):
                theirs = [found for other in others if (found := standings.under(mine.task, other))]
                if not theirs or len(theirs) < len(others):
                    continue
                where = f"{cell.dataset} {cell.setting}, over {against}"
                fields = [Field(where, notes.numbers([mine, *itertools.chain(*theirs)]))]
                for metric, moments in MARGINS.items():
                    printed = _printed_margin(cell, others, metric)
                    fields.append(NOTHING if printed is None else Field(_signed(printed)))
                    goal = printed if mine.comparable else None
                    fields += [_our_margin(mine, theirs, metric, when, goal) for when in moments]
                rows.append(tuple(fields))
    if not rows:
        return None
    head = ["where"]
    for metric, moments in MARGINS.items():
        head += [f"{metric} paper", *(f"{metric} ours, {when}" for when in moments)]
    return Grid(tuple(head), tuple(rows))


def _printed_margin(cell: Cell, others: Sequence[Cell], metric: str) -> float | None:
    numbers = [other.printed[metric].value for other in others if metric in other.printed]
    mine = cell.printed[metric].value if metric in cell.printed else None
    values = [number for number in numbers if number is not None]
    if len(others) > 1 and len(values) < len(others):
        # the paper may print the best baseline itself, without the ten
        for summary in summaries(cell.table):
            place = (summary.dataset, summary.column, summary.row)
            if place == (cell.dataset, cell.setting, BEST_BASELINE) and metric in summary.printed:
                best = summary.printed[metric].value
                values = [] if best is None else [best]
    return None if mine is None or not values else mine - max(values)


def _our_margin(
    mine: Standing, theirs: Sequence[Sequence[Standing]], metric: str, when: str, goal: float | None
) -> Field:
    """Over each of the others, of which one may stand there with several settings of its own. `goal` is the
    paper's margin, where it is of the same task."""
    others = [best_values(standings, metric, when) for standings in theirs]
    paired = [
        value - max(other[draw] for other in others)
        for draw, value in mine.values(metric, when).items()
        if all(draw in other for other in others)
    ]
    if not paired:
        return NOTHING
    mean, std = mean_and_std(paired)
    text = _signed(mean) + ("" if std is None else f" ± {std:.2f}")
    if goal is None:
        return Field(text)
    reached = round(mean, 2) >= round(goal, 2)
    return Field(f"{'▲' if reached else '▼'} {text}", tone="reached" if reached else "below")


def _provenance(entries: Sequence[Entry]) -> Grid:
    rows = []
    for entry in entries:
        rate = f"{entry.images_per_second:g}" if entry.images_per_second else "–"
        rounds = f"{entry.rounds_run} of {entry.rounds_paper}" if entry.kind == "run" else "–"
        code = entry.code.version + (f" ({entry.code.commit})" if entry.code.commit else "")
        texts = [
            f"`{entry.cells[0]}`",
            str(len(entry.cells)),
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
        rows.append(tuple(Field(text) for text in texts))
    head = "first cell, cells, seed, rounds, data, device, precision, seconds, images/s, code, date, settings"
    return Grid(tuple(head.split(", ")), tuple(rows))
