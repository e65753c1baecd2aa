"""One table or figure of the paper with ours beside: its settings, averages and best baselines."""

import itertools
import statistics
from collections.abc import Collection, Iterable, Iterator, Sequence

from fedgela.grids import Grid
from fedgela.over_seeds import mean_std, spread
from fedgela.paper import BEST_BASELINE, Cell, Printed, Summary, cells, summaries, table
from fedgela.reproduce.document import Block, Field, Heading, Paragraph
from fedgela.reproduce.fields import INCOMPLETE, NOTHING, UNTRIED, Notes, beside
from fedgela.reproduce.standing import LAST_TENTH, Standing, Standings, combined, counted

Place = tuple[str, str, list[str]]  # data set, setting, and methods; none where all are meant
BY_SETTING = ("accuracy", "communication")  # shown by a table for each setting, all else by one
COUNTS = ("smallest_client", "largest_client")
# what is measured without training, with its heading
MEASURED = {
    "burden": {
        "parameters": "held while training (M)",
        "kept": "kept between rounds (M)",
        "sent": "sent up (M)",
        "ratio": "time to FedAvg's",
        "ratio_low": "from",
        "ratio_high": "to",
    },
    "partition": {
        "missing_percent": "cells of client and class without samples, %",
        "smallest_client": "smallest client",
        "largest_client": "largest client",
    },
}


def table_blocks(name: str, standings: Standings, notes: Notes, shown: set[str]) -> list[Block]:
    """`shown` are the runs that the tables above have shown; those of this table are added to it."""
    source = table(name)
    blocks: list[Block] = [Heading(2, table_heading(name)), Paragraph(f"{source.title}.")]
    measured: list[Cell] = []
    repeated: list[Place] = []
    untried: list[Place] = []
    for dataset, settings in source.datasets.items():
        for setting in settings:
            listed = cells(name, dataset, setting)
            tried = standings.tried(listed)
            lacking = [cell for cell in listed if cell not in tried]
            # runs that stand above already are not shown again, unless this table has other numbers of them
            new = [cell for cell in tried if _has_own_numbers(cell) or cell.run_key not in shown]
            if again := [cell.method for cell in tried if cell not in new]:
                repeated.append((dataset, setting, again))
            if new and source.measures in BY_SETTING:
                shown |= {cell.run_key for cell in tried if cell.measures == "accuracy"}
                here = [cell for cell in listed if cell in new or cell in lacking]
                blocks += [Heading(3, f"{dataset}, {setting}"), _grid(here, standings, notes)]
            else:
                measured += new
                if lacking:
                    untried.append((dataset, setting, [cell.method for cell in lacking] if tried else []))
    if measured:
        blocks.append(_measured(measured, standings, notes))
    summed = [s for s in summaries(name) if standings.tried(s.cells)]
    if summed:
        blocks += [Heading(3, "Averages and best baselines"), _summary_grid(summed, standings, notes)]
    if repeated:
        blocks.append(Paragraph(f"Runs that stand in the tables above: {_told(repeated)}."))
    if untried:
        blocks.append(Paragraph(f"Untried: {_told(untried)}."))
    return blocks


def table_heading(name: str) -> str:
    return f"{table(name).number} (`{name}`)"


def _has_own_numbers(cell: Cell) -> bool:
    """Whether a table has something of the cell that no other table has, though both are one run."""
    return bool(cell.printed) or cell.measures != "accuracy"


def _told(places: Iterable[Place]) -> str:
    """Settings of the same data set and methods together, methods in brackets."""
    found: dict[tuple[str, str], list[str]] = {}
    for dataset, setting, methods in places:
        found.setdefault((dataset, ", ".join(methods)), []).append(setting)
    return "; ".join(
        f"{dataset} {', '.join(settings)}" + (f" ({methods})" if methods else "")
        for (dataset, methods), settings in found.items()
    )


def _grid(listed: Sequence[Cell], standings: Standings, notes: Notes) -> Grid:
    of_accuracies = listed[0].measures == "accuracy"
    return (_accuracies if of_accuracies else _communication)(listed, standings, notes)


def _measured(listed: Sequence[Cell], standings: Standings, notes: Notes) -> Grid:
    """What has no accuracy: a line for each setting and method."""
    angles = {name: f"{name.replace('_', ' ')}, degrees, last round" for name in listed[0].metrics}
    titles = MEASURED.get(listed[0].measures, angles)
    rows = []
    for cell, standing, fields in _begun(listed, standings, notes):
        for metric in titles:
            values = list(standing.values(metric).values()) if standing else []
            fields.append(_count(values) if values and metric in COUNTS else _mean(values))
        rows.append([f"{cell.dataset}, {cell.setting}", *fields])
    return Grid(("data set, setting", "method", "seeds", *titles.values()), rows)


def _accuracies(listed: Sequence[Cell], standings: Standings, notes: Notes) -> Grid:
    metrics = listed[0].metrics
    later = [(metric, "last") for metric in metrics] + [("GA", LAST_TENTH)] * ("GA" in metrics)
    rows = []
    for cell, standing, fields in _begun(listed, standings, notes):
        for metric in metrics:
            printed = cell.printed.get(metric)
            if standing is None:
                fields += [_text(printed), UNTRIED, NOTHING]
            else:
                values = list(standing.values(metric).values())
                fields += beside(printed, values, standing.comparable)
        for metric, when in later:
            fields.append(_mean(standing.values(metric, when).values()) if standing else NOTHING)
        rows.append(fields)
    head = [f"{metric} {part}" for metric in metrics for part in ("paper", "ours, best", "difference")]
    head += [f"{metric} {when}" for metric, when in later]
    return _without_empty_columns(("method", "seeds", *head), rows)


def _without_empty_columns(head: Sequence[str], rows: Sequence[Sequence[Field]]) -> Grid:
    """The paper does not print a number of every cell."""
    kept = [i for i in range(len(head)) if any(row[i] != NOTHING for row in rows)]
    return Grid([head[i] for i in kept], [[row[i] for i in kept] for row in rows])


def _begun(
    listed: Sequence[Cell], standings: Standings, notes: Notes
) -> Iterator[tuple[Cell, Standing | None, list[Field]]]:
    """Every row of the cells, begun with its method and seeds; without a standing where it is untried."""
    for cell in listed:
        title = _title(cell.table, cell.method)
        for standing in standings.all_of(cell):
            yield cell, standing, [title + notes.of([standing]), ", ".join(map(str, standing.entries))]
        if standings.of(cell) is None:
            yield cell, None, [title, NOTHING]


def _text(printed: Printed | None) -> str:
    return printed.text if printed else NOTHING


def _mean(values: Collection[float]) -> str:
    return mean_std(spread(values)) if values else NOTHING


def _communication(listed: Sequence[Cell], standings: Standings, notes: Notes) -> Grid:
    rows = []
    for cell, standing, fields in _begun(listed, standings, notes):
        reached = standings.reached(standing) if standing else {}
        for place, metric in enumerate(("rounds", "speedup")):
            printed = cell.printed.get(metric)
            fields.append(_text(printed))
            if standing is None:
                fields.append(UNTRIED)
            elif not reached:
                fields.append(("FedAvg is untried", "untried"))
            elif any(pair[0] is None for pair in reached.values()):
                fields.append("-")  # as the paper prints what never gets there
            else:
                numbers = [float(pair[place] or 0) for pair in reached.values()]
                text = mean_std(spread(numbers), unit="x") if metric == "speedup" else _count(numbers)
                # FedAvg's best GA within fewer rounds, or of another task, is another target
                same_target = standing.comparable and standing.is_whole
                fields.append((text, _quick(printed, numbers) if same_target else ""))
        rows.append(fields)
    return Grid(("method", "seeds", "rounds paper", "rounds ours", "speedup paper", "speedup ours"), rows)


def _quick(printed: Printed | None, ours: Sequence[float]) -> str:
    """Fewer rounds are better, and a larger speedup."""
    if printed is None or printed.value is None:
        return ""
    gain = statistics.fmean(ours) - printed.value
    better = gain >= 0 if printed.text.endswith("x") else gain <= 0
    return "reached" if better else "below"


def _summary_grid(listed: Sequence[Summary], standings: Standings, notes: Notes) -> Grid:
    metrics = table(listed[0].table).metrics
    rows = []
    for summary in listed:
        together = counted(summary, standings.together(summary.cells))
        every = list(itertools.chain(*together))
        title = "Best baseline" if summary.row == BEST_BASELINE else _title(summary.table, summary.row)
        name = f"{title}, {summary.dataset} {summary.column}{notes.of(every)}"
        fields: list[Field] = [name, f"{len(together)} of {len(summary.cells)}"]
        for metric in metrics:
            values = list(combined(summary, together, metric).values())
            comparable = all(standing.comparable for standing in every)
            paper, ours, difference = beside(summary.printed.get(metric), values, comparable)
            fields += [paper, ours if values else INCOMPLETE, difference]
        rows.append(fields)
    head = [f"{metric} {part}" for metric in metrics for part in ("paper", "ours", "difference")]
    return Grid(("what", "runs tried", *head), rows)


def _title(name: str, method: str) -> str:
    return table(name).method(method).title


def _count(values: Sequence[float]) -> str:
    """Of rounds or samples: a whole number, unless it is a mean."""
    return f"{values[0]:g}" if len(values) == 1 else mean_std(spread(values))
