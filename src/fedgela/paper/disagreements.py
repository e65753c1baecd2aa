"""Where the paper's numbers disagree with one another, computed from the registry."""

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from fedgela.paper.cells import BEST_BASELINE, Cell, Summary
from fedgela.paper.files import TABLES, Claim, Marks, claims, common, table
from fedgela.paper.numbers import Printed
from fedgela.paper.registry import cells, summaries

FIRST = "main"  # the table that the others are compared with


@dataclass(frozen=True)
class Disagreement:
    kind: str
    where: str
    printed: str
    computed: str


def disagreements() -> list[Disagreement]:
    return [
        *_repeated_numbers(),
        *_summaries(),
        *_gains(),
        *_claims(),
        *_marks("underlined"),
        *_marks("bold"),
        *_equal_rows(),
        *_speedups(),
        *_reached(),
    ]


def best_baselines(name: str, dataset: str, setting: str, metric: str) -> tuple[float, tuple[str, ...]]:
    """The maximum over the baselines of one cell of a table, and whose it is."""
    values = {
        cell.method: value
        for cell in cells(name, dataset, setting)
        if cell.method in common().baselines and (value := cell.value(metric)) is not None
    }
    best = max(values.values())
    return best, tuple(method for method, value in values.items() if value == best)


@cache
def _first_printed() -> Mapping[tuple[str, str], tuple[Cell, Printed]]:
    """(run, metric) -> where it is printed first, and as what."""
    found: dict[tuple[str, str], tuple[Cell, Printed]] = {}
    for cell in cells():
        for metric, number in cell.printed.items():
            found.setdefault((cell.run_key, metric), (cell, number))
    return found


def _repeated_numbers() -> Iterator[Disagreement]:
    """One and the same run with different numbers in two tables."""
    for cell in cells():
        for metric, number in cell.printed.items():
            first, earlier = _first_printed()[cell.run_key, metric]
            if number.value != earlier.value:
                yield Disagreement(
                    "a number printed twice",
                    f"{cell.id} {metric}",
                    number.text,
                    f"{earlier.text} ({first.id})",
                )


def _summaries() -> Iterator[Disagreement]:
    """Averages and best baselines that the numbers behind them do not give."""
    for summary in summaries():
        for metric, number in summary.printed.items():
            behind = {}
            for cell in summary.cells:
                _, earlier = _first_printed().get((cell.run_key, metric), (None, Printed("-")))
                if earlier.value is not None:
                    behind[cell.id] = earlier.value
            computed = summary.combine(behind)
            # the cells are rounded to 0.01 themselves
            if computed is not None and not _close(number, computed, 0.005):
                yield Disagreement("a summary", f"{summary.id} {metric}", number.text, _two(computed))


def _close(number: Printed, computed: float, slack: float) -> bool:
    """Whether rounding explains the difference between a printed number and one from rounded numbers."""
    assert number.value is not None
    return abs(number.value - computed) <= number.half_unit + slack + 1e-9


def _two(computed: float) -> str:
    """Two decimals, a half rounded up, as on paper."""
    return f"{computed + 1e-9:.2f}"


def _gains() -> Iterator[Disagreement]:
    """FedGELA minus a row, where the paper prints the difference too."""
    for name in TABLES:
        source = table(name)
        listed: list[Cell | Summary] = [*cells(name), *summaries(name)]
        rows = {row.id: row for row in listed}
        for row in listed:
            for metric, gain in source.gains.items():
                if gain not in row.printed:
                    continue
                ours = rows[row.id.rpartition("/")[0] + "/fedgela"]
                mine, theirs = ours.value(metric), row.value(metric)
                assert mine is not None and theirs is not None
                if not _close(row.printed[gain], mine - theirs, 0.0):
                    yield Disagreement(
                        "a gain", f"{row.id} {metric}", row.printed[gain].text, f"{mine - theirs:+.2f}"
                    )


def _claims() -> Iterator[Disagreement]:
    """Gains in the paper's text."""
    for claim in claims():
        computed = claimed_gain(claim)
        number = Printed(claim.printed)
        if not _close(number, computed, 0.01):  # a difference of two rounded numbers
            data = ", ".join(dataset for _, dataset in claim.over)
            where = f"{claim.where}: FedGELA over {claim.against}, {' and '.join(claim.metrics)}, {data}"
            yield Disagreement("the text", where, number.text, _two(computed))


def claimed_gain(claim: Claim) -> float:
    """What the tables give for a gain that the text states: the mean over settings, then over data sets."""
    means = []
    for name, dataset in claim.over:
        gains = []
        for cell in cells(name, dataset, methods=["fedgela"]):
            for metric in claim.metrics:
                mine = cell.value(metric)
                if claim.against == BEST_BASELINE:
                    theirs: float | None = best_baselines(name, dataset, cell.setting, metric)[0]
                else:
                    theirs = cells(name, dataset, cell.setting, claim.against)[0].value(metric)
                assert mine is not None and theirs is not None
                gains.append(mine - theirs)
        means.append(statistics.fmean(gains))
    return statistics.fmean(means)


def _marks(mark: str) -> Iterator[Disagreement]:
    """Underlined numbers that are not the best baseline, bold ones that are not the best of all."""
    for name in TABLES:
        marks: Marks = getattr(table(name), mark)
        for dataset, metrics in marks.items():
            for metric, columns in metrics.items():
                for setting, marked in columns.items():
                    values = {
                        cell.method: value
                        for cell in cells(name, dataset, setting)
                        if (value := cell.value(metric)) is not None
                        and (mark == "bold" or cell.method in common().baselines)
                    }
                    best = (min if metric == "rounds" else max)(values.values())  # fewer are better
                    whose = {method for method, value in values.items() if value == best}
                    if whose != set(marked):
                        shown = ", ".join(f"{method} {values[method]:g}" for method in marked)
                        right = ", ".join(f"{method} {best:g}" for method in sorted(whose))
                        kind = "bold, not the best" if mark == "bold" else "underlined, not the best baseline"
                        yield Disagreement(kind, f"{name}/{dataset}/{setting} {metric}", shown, right)


def _equal_rows() -> Iterator[Disagreement]:
    """Two methods with the same PA and the same GA in one setting: likelier a slip than chance."""
    for name in TABLES:
        if table(name).measures != "accuracy":
            continue
        seen: dict[tuple[str, str, str, str], list[str]] = defaultdict(list)
        for cell in cells(name):
            if set(cell.printed) >= {"PA", "GA"}:
                pair = (cell.printed["PA"].text, cell.printed["GA"].text)
                seen[cell.dataset, cell.setting, *pair].append(cell.method)
        for (dataset, setting, PA, GA), methods in seen.items():
            if len(methods) > 1:
                where = f"{name}/{dataset}/{setting} {' and '.join(methods)}"
                yield Disagreement("two methods alike", where, f"{PA} / {GA}", "different numbers expected")


def _speedups() -> Iterator[Disagreement]:
    """Speedups that are not FedAvg's rounds divided by the method's."""
    for cell in cells("communication"):
        rounds, speedup = cell.value("rounds"), cell.printed["speedup"]
        base = cells("communication", cell.dataset, cell.setting, "fedavg")[0].value("rounds")
        if rounds is None or base is None or speedup.value is None:
            continue
        if not _close(speedup, base / rounds, 0.0):
            yield Disagreement("a speedup", cell.id, speedup.text, f"{base / rounds:.3f}x")


def _reached() -> Iterator[Disagreement]:
    """Methods that reach FedAvg's best GA here though their best is below it in the main table, or the other
    way round. The main table has half of the rounds, so this is a tension, not a proof."""
    for cell in cells("communication"):
        GA = cells(FIRST, cell.dataset, cell.setting, cell.method)[0].value("GA")
        goal = cells(FIRST, cell.dataset, cell.setting, "fedavg")[0].value("GA")
        assert GA is not None and goal is not None
        rounds = cell.value("rounds")
        reached, expected = rounds is not None, goal <= GA
        if reached != expected:
            said = "never reached" if rounds is None else f"reached in {rounds:g} rounds"
            yield Disagreement(
                "FedAvg's best GA", cell.id, said, f"best GA {GA:.2f}, FedAvg's {goal:.2f} ({FIRST})"
            )
