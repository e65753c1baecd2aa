"""One table or figure of the paper with ours beside: its settings, averages and best baselines."""

import itertools
import statistics
from collections.abc import Iterator, Sequence

from fedgela.grids import Grid
from fedgela.over_seeds import mean_std, spread
from fedgela.paper import BEST_BASELINE, Cell, Printed, Summary, cells, summaries, table
from fedgela.reproduce.document import Block, Field, Heading, Paragraph
from fedgela.reproduce.fields import INCOMPLETE, NOTHING, UNTRIED, Notes, beside
from fedgela.reproduce.standing import LAST_TENTH, Standing, Standings, combined, counted

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
    """Whether a table has something of the cell that no other table has, though both are one run."""
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
    angles = {name: f"{name.replace('_', ' ')}, degrees, last round" for name in listed[0].metrics}
    titles = MEASURED.get(measures, angles)
    rows = []
    for _, standing, fields in _begun(listed, standings, notes):
        for metric in titles:
            values = list(standing.values(metric).values()) if standing else []
            if values:
                fields.append(_count(values) if metric in COUNTS else mean_std(spread(values)))
            else:
                fields.append(NOTHING if standing else UNTRIED)
        rows.append(fields)
    return Grid(("method", "seeds", *titles.values()), rows)


def _accuracies(listed: Sequence[Cell], standings: Standings, notes: Notes) -> Grid:
    metrics = listed[0].metrics
    rows = []
    for cell, standing, fields in _begun(listed, standings, notes):
        for metric in metrics:
            values = list(standing.values(metric).values()) if standing else []
            comparable = standing is None or standing.comparable
            fields += beside(cell.printed.get(metric), values if standing else None, comparable)
        for metric in metrics:
            fields.append(_mean_at(standing, metric, "last"))
        if "GA" in metrics:
            fields.append(_mean_at(standing, "GA", LAST_TENTH))
        rows.append(fields)
    head = [f"{metric} {part}" for metric in metrics for part in ("paper", "ours, best", "difference")]
    head += [f"{metric} last" for metric in metrics]
    head += [f"GA {LAST_TENTH}"] if "GA" in metrics else []
    return Grid(("method", "seeds", *head), rows)


def _begun(
    listed: Sequence[Cell], standings: Standings, notes: Notes
) -> Iterator[tuple[Cell, Standing | None, list[Field]]]:
    """Every row that the cells have, begun with its method and seeds."""
    for cell in listed:
        for standing in standings.rows_of(cell):
            yield cell, standing, [_name(cell, standing, notes), _seeds(standing)]


def _mean_at(standing: Standing | None, metric: str, when: str) -> str:
    values = list(standing.values(metric, when).values()) if standing else []
    return mean_std(spread(values)) if values else NOTHING


def _communication(listed: Sequence[Cell], standings: Standings, notes: Notes) -> Grid:
    rows = []
    for cell, standing, fields in _begun(listed, standings, notes):
        reached = standings.reached(standing) if standing else {}
        for place, metric in enumerate(("rounds", "speedup")):
            printed = cell.printed.get(metric)
            fields.append(printed.text if printed else NOTHING)
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
            paper, ours, difference = beside(summary.printed.get(metric), values or None, comparable)
            fields += [paper, ours if values else INCOMPLETE, difference]
        rows.append(fields)
    head = [f"{metric} {part}" for metric in metrics for part in ("paper", "ours", "difference")]
    return Grid(("what", "runs tried", *head), rows)


def _title(name: str, method: str) -> str:
    return table(name).method(method).title


def _name(cell: Cell, standing: Standing | None, notes: Notes) -> str:
    return _title(cell.table, cell.method) + notes.of([standing])


def _seeds(standing: Standing | None) -> str:
    return ", ".join(map(str, standing.entries)) if standing else NOTHING


def _count(values: Sequence[float]) -> str:
    """Of rounds or samples: a whole number, unless it is a mean."""
    return f"{values[0]:g}" if len(values) == 1 else mean_std(spread(values))
