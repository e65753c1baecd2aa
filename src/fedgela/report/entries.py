"""What a report compares: an entry is one method over its seeds, a setting the entries on one federation."""

import math
import re
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field

from fedgela.algorithms import name_of
from fedgela.config import Experiment
from fedgela.evaluation import best_and_last
from fedgela.over_seeds import BOUNDS, OverSeeds, ranks, spread
from fedgela.saved.runs import Run
from fedgela.saved.sites import Sites

FOLLOWS = "the seed"  # a split that every seed has its own of


@dataclass(frozen=True)
class Curve:
    rounds: list[int]
    mean: list[float]
    std: list[float | None]  # None where there is one seed


@dataclass
class Entry(OverSeeds):
    """One method with its hyper-parameters, over its seeds."""

    label: str
    runs: dict[int, Run] = field(default_factory=dict)  # by seed

    @property
    def first(self) -> Run:
        return self.runs[min(self.runs)]

    @property
    def experiment(self) -> Experiment:
        return self.first.experiment

    @property
    def method(self) -> str:
        return name_of(self.experiment.algorithm)

    @property
    def finished(self) -> bool:
        return all(run.result is not None for run in self.runs.values())

    def values(self, metric: str, when: str) -> dict[int, float]:
        """Best or last of a metric by seed, of result.json, or of the rounds there are."""
        found = {}
        for seed, run in self.runs.items():
            summary = (run.result or {}).get(metric) or best_and_last(run.records, metric)
            if summary is not None and summary.get(when) is not None:
                found[seed] = float(summary[when])
        return found

    def curve(self, key: str) -> Curve:
        """A number of the records by round, over seeds."""
        by_round: dict[int, list[float]] = {}
        for run in self.runs.values():
            for record in run.records:
                value = record.get(key)
                if isinstance(value, int | float) and math.isfinite(value):
                    by_round.setdefault(record["round"], []).append(float(value))
        rounds = sorted(by_round)
        spreads = [spread(by_round[r]) for r in rounds]
        return Curve(rounds, [s["mean"] or 0.0 for s in spreads], [s["std"] for s in spreads])

    def GA_by_class(self) -> list[float | None]:
        """Of the last evaluated round, the mean over seeds."""
        told = [[r.get("GA_by_class") for r in run.records] for run in self.runs.values()]
        rows = [held[-1] for of_run in told if (held := [row for row in of_run if isinstance(row, list)])]
        if not rows or len({len(row) for row in rows}) > 1:
            return []
        return [_mean(row[c] for row in rows) for c in range(len(rows[0]))]

    def by_client(self) -> list[float]:
        """PA of every client with test samples at the last round, seed after seed."""
        values: list[float | None] = []
        for run in self.runs.values():
            values += personal_accuracies(run)
        return [v for v in values if v is not None]


def personal_accuracies(run: Run) -> list[float | None]:
    """Of the models that PA is of: fine-tuned, or the clients' own."""
    result = run.result or {}
    if result.get("PA_of") == "finetuned":
        return list(result.get("finetuned", {}).get("last", {}).get("by_client", []))
    return list(result.get("local_accuracy_by_client", [])) if result.get("PA_of") == "local" else []


@dataclass
class Setting:
    """Entries that can be compared: the same data, clients, participation and model."""

    split: str | int = FOLLOWS  # or its partition_seed, where all seeds have one split
    entries: list[Entry] = field(default_factory=list)

    @property
    def experiment(self) -> Experiment:
        return self.entries[0].experiment

    @property
    def sites(self) -> Sites | None:
        """Where the entries were run on the sites of a federation."""
        return self.entries[0].first.sites

    @property
    def title(self) -> str:
        e = self.experiment
        part = "" if e.sample in (None, e.clients) else f", {e.sample} a round"
        if self.sites is not None:
            return f"a federation of {e.clients} sites{part}, {e.model}"
        dataset = re.split(r"[\\/]", e.dataset)[-1]
        held = f", validated on {e.validation:.0%} of the training data" if e.validation else ""
        rounds = f", {e.rounds} round{'s' if e.rounds > 1 else ''}"
        rounds += f" (every {e.eval_every} measured)" if e.eval_every > 1 else ""
        split = "" if self.split == FOLLOWS else f" (partition_seed {self.split})"
        return f"{dataset}, {e.partition}{split}, {e.clients} clients{part}, {e.model}{rounds}{held}"

    @property
    def GA_of(self) -> str:
        """What GA is the accuracy of, in words."""
        if self.sites is not None:
            return f"the global model on {self.sites.GA_on}"
        of_locals = [e.label for e in self.entries if e.experiment.algorithm.GA_of == "locals"]
        told = f" ({', '.join(of_locals)}: the mean of the clients' models)" if of_locals else ""
        return f"the global model on all test samples{told}"

    @property
    def fedavg(self) -> Entry | None:
        return next((entry for entry in self.entries if entry.method == "fedavg"), None)

    def ranks(self, metric: str, when: str) -> dict[str, int]:
        """Of the entries by label. Unfinished runs and bounds take no part, and a single entry is not the
        best of anything."""
        ranked = {e.label: e for e in self.entries if e.finished and e.method not in BOUNDS}
        return ranks(ranked, metric, when) if len(ranked) > 1 else {}

    def keys(self, *beginnings: str) -> list[str]:
        """Names of numbers that some record of some entry holds, in their order there."""
        records = (record for entry in self.entries for run in entry.runs.values() for record in run.records)
        numbers = (
            key for record in records for key, value in record.items() if isinstance(value, int | float)
        )
        return list(dict.fromkeys(key for key in numbers if key.startswith(beginnings)))


def _mean(values: Iterable[float | None]) -> float | None:
    held = [v for v in values if v is not None]
    return statistics.fmean(held) if held else None
