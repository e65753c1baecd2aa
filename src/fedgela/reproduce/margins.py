"""The paper's claims and ours: FedGELA's margins over FedAvg and over the best baseline."""

import itertools
import statistics
from collections.abc import Iterator, Mapping, Sequence

from fedgela.grids import Grid
from fedgela.over_seeds import mean_std, spread
from fedgela.paper import BEST_BASELINE, Cell, Summary, cells, common, distinct, summaries
from fedgela.reproduce.document import Field
from fedgela.reproduce.fields import NOTHING, Notes, marked, signed
from fedgela.reproduce.standing import (
    LAST_TENTH,
    Draw,
    Standing,
    Standings,
    best_values,
    combined,
    counted,
)

MOMENTS = {"PA": ("best", "last"), "GA": ("best", "last", LAST_TENTH)}
EXPLAINED = (
    "FedGELA minus FedAvg, and minus the best of the ten baselines (best of each metric apart): what the "
    "paper claims, and ours. Ours are paired by seed, and of one task: the same model, data, rounds and "
    "other settings except the method's own.",
    "Against the best baseline ours are given where all ten were run, each with the best of the settings "
    "that it was run with, and each by whatever version of the code it was run with ([how each was "
    "obtained](#how-each-was-obtained)); means over settings, where all of them were run.",
    "▲ marks a margin that reaches the paper's, ▼ one that does not; both stand at the best rounds only, "
    "which is what the paper prints. 'Best' favours FedGELA's PA, 'last' does not: FedGELA's best PA is a "
    "maximum over rounds, while that of a method whose models are fine-tuned is of one round, that of its "
    "best GA.",
)
_MOMENTS = [(metric, when) for metric, moments in MOMENTS.items() for when in moments]

Figures = Mapping[tuple[str, str], Mapping[Draw, float]]  # by metric and moment


def margins_of_fedgela(standings: Standings, notes: Notes) -> Grid | None:
    rows = [*_in_settings(standings, notes), *_of_averages(standings, notes)]
    if not rows:
        return None
    head = ["where", "seeds"]
    for metric, moments in MOMENTS.items():
        head += [f"{metric} paper", *(f"{metric} ours, {when}" for when in moments)]
    return Grid(head, rows)


def _in_settings(standings: Standings, notes: Notes) -> Iterator[list[Field]]:
    for cell in distinct(c for c in cells(methods="fedgela") if c.measures == "accuracy"):
        siblings = {c.method: c for c in cells(cell.table, cell.dataset, cell.setting)}
        baselines = [siblings[m] for m in common().baselines if m in siblings]
        for mine in standings.all_of(cell):
            for against, others in (("FedAvg", [siblings["fedavg"]]), ("best baseline", baselines)):
                theirs = [found for other in others if (found := standings.under(mine.conditions, other))]
                if theirs and len(theirs) == len(others):
                    every = [mine, *itertools.chain(*theirs)]
                    yield _row(
                        f"{cell.dataset} {cell.setting}, over {against}{notes.of(every)}",
                        {metric: _printed(cell, others, metric) for metric in MOMENTS},
                        mine.comparable,
                        {moment: mine.values(*moment) for moment in _MOMENTS},
                        {moment: _best_of_all(theirs, *moment) for moment in _MOMENTS},
                    )


def _best_of_all(theirs: Sequence[Sequence[Standing]], metric: str, when: str) -> dict[Draw, float]:
    """The best of the others on each draw that all of them have; a method by the best of its settings."""
    others = [best_values(of_cell, metric, when) for of_cell in theirs]
    draws = set(others[0]).intersection(*others)
    return {draw: max(other[draw] for other in others) for draw in draws}


def _printed(cell: Cell, others: Sequence[Cell], metric: str) -> float | None:
    values = [value for other in others if (value := other.value(metric)) is not None]
    if len(others) > 1 and len(values) < len(others):
        # the paper may print the best baseline itself, without the ten
        best = _summary(cell.table, cell.dataset, cell.setting, BEST_BASELINE)
        printed = best.value(metric) if best is not None else None
        values = values if printed is None else [printed]
    mine = cell.value(metric)
    return None if mine is None or not values else mine - max(values)


def _summary(table: str, dataset: str, column: str, row: str) -> Summary | None:
    place = (dataset, column, row)
    return next((s for s in summaries(table) if (s.dataset, s.column, s.row) == place), None)


def _of_averages(standings: Standings, notes: Notes) -> Iterator[list[Field]]:
    """Where the paper prints means over settings, and the ledger has all of these settings."""
    pairs = [
        (against, mine, theirs)
        for mine in summaries()
        if mine.row == "fedgela" and len(mine.groups) > 1
        for against, row in (("FedAvg", "fedavg"), ("best baseline", BEST_BASELINE))
        if (theirs := _summary(mine.table, mine.dataset, mine.column, row)) is not None
    ]
    for against, mine, theirs in pairs:
        for conditions in standings.conditions(mine.cells):
            sides = [(s, counted(s, standings.all_under(conditions, s.cells))) for s in (mine, theirs)]
            ours, others = ({moment: combined(*side, *moment) for moment in _MOMENTS} for side in sides)
            if any(ours[moment].keys() & others[moment].keys() for moment in _MOMENTS):
                every = [standing for _, of_cells in sides for of_cell in of_cells for standing in of_cell]
                settings = f"mean of {len(mine.groups)} settings"
                yield _row(
                    f"{mine.dataset} {mine.column}, {settings}, over {against}{notes.of(every)}",
                    {metric: _difference(mine, theirs, metric) for metric in MOMENTS},
                    all(standing.comparable for standing in every),
                    ours,
                    others,
                )


def _difference(mine: Summary, theirs: Summary, metric: str) -> float | None:
    ours, others = mine.value(metric), theirs.value(metric)
    return None if ours is None or others is None else ours - others


def _row(
    where: str, paper: Mapping[str, float | None], comparable: bool, mine: Figures, theirs: Figures
) -> list[Field]:
    paired = {}
    for moment in _MOMENTS:
        ours, others = mine[moment], theirs[moment]
        paired[moment] = [value - others[draw] for draw, value in ours.items() if draw in others]
    fields: list[Field] = [where, str(max(map(len, paired.values())))]
    for metric, moments in MOMENTS.items():
        printed = paper[metric]
        fields.append(NOTHING if printed is None else signed(printed))
        for when in moments:
            goal = printed if comparable and when == "best" else None
            fields.append(_our_margin(paired[metric, when], goal))
    return fields


def _our_margin(paired: Sequence[float], goal: float | None) -> Field:
    """`goal` is the paper's margin, where it is of the same task."""
    if not paired:
        return NOTHING
    text = mean_std(spread(paired), sign="+").replace("-", "−")
    return text if goal is None else marked(text, round(statistics.fmean(paired), 2) >= round(goal, 2))
