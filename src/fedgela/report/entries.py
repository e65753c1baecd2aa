"""What is compared: entries, one method over its seeds, in settings, entries on the same federation."""

import math
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from fedgela.algorithms import ALGORITHMS, name_of
from fedgela.config import READING, SPLITTING, Experiment, comparable, plain_table
from fedgela.evaluation import best_and_last
from fedgela.over_seeds import BOUNDS, OverSeeds, ranks, spread
from fedgela.runs import HARDWARE
from fedgela.saved.runs import Note, Run
from fedgela.saved.sites import Sites

FOLLOWS = "the seed"  # a split that every seed has its own of
_READ = itemgetter(*(key for key in READING if key not in ("data_dir", "augment")))
_SPLIT = itemgetter(*SPLITTING)
_METHODS = list(ALGORITHMS)  # in the order of the paper's tables


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

    def curve(self, key: str) -> "Curve":
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

    def last_by_class(self, key: str) -> list[float | None]:
        """The mean over seeds of a list of the last evaluated round, such as GA_by_class."""
        rows = []
        for run in self.runs.values():
            held = next((r[key] for r in reversed(run.records) if isinstance(r.get(key), list)), None)
            if held is not None:
                rows.append(held)
        if not rows or len({len(row) for row in rows}) > 1:
            return []
        return [_mean(row[c] for row in rows) for c in range(len(rows[0]))]

    def by_client(self) -> list[float]:
        """PA of every client with test samples at the last round, seed after seed."""
        values: list[float | None] = []
        for run in self.runs.values():
            values += personal_accuracies(run)
        return [v for v in values if v is not None]


@dataclass(frozen=True)
class Curve:
    rounds: list[int]
    mean: list[float]
    std: list[float | None]  # None where there is one seed


def personal_accuracies(run: Run) -> list[float | None]:
    """Of the models that PA is of: fine-tuned, or the clients' own."""
    result = run.result or {}
    if result.get("PA_of") == "finetuned":
        return list(result.get("finetuned", {}).get("last", {}).get("by_client", []))
    return list(result.get("local_accuracy_by_client", [])) if result.get("PA_of") == "local" else []


@dataclass
class Setting:
    """Entries that can be compared: the same data, clients, participation and model."""

    split: str | int = FOLLOWS
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
        rounds = f", {e.rounds} rounds" if e.rounds > 1 else ", a round"
        rounds += f" (every {e.eval_every} measured)" if e.eval_every > 1 else ""
        split = "" if self.split == FOLLOWS else f" (partition_seed {self.split})"
        return f"{dataset}, {e.partition}{split}, {e.clients} clients{part}, {e.model}{rounds}{held}"

    @property
    def fedavg(self) -> Entry | None:
        return next((entry for entry in self.entries if entry.method == "fedavg"), None)

    def ranks(self, metric: str, when: str) -> dict[str, int]:
        """Of the entries by label. Unfinished runs and bounds take no part, and a single entry is not the
        best of anything."""
        ranked = {e.label: e for e in self.entries if e.finished and e.method not in BOUNDS}
        return ranks(ranked, metric, when) if len(ranked) > 1 else {}

    def keys(self, starts: Callable[[str], bool]) -> list[str]:
        """Names of numbers that some record of some entry holds, in their order there."""
        found: dict[str, None] = {}
        for entry in self.entries:
            for run in entry.runs.values():
                for record in run.records:
                    for key, value in record.items():
                        if starts(key) and isinstance(value, int | float):
                            found[key] = None
        return list(found)


def arrange(runs: Sequence[Run], note: Note) -> list[Setting]:
    """Runs that differ in nothing but the seed and the hardware are one entry; entries on the same
    federation are one setting."""
    settings: dict[tuple[Any, ...], Setting] = {}
    groups: dict[tuple[tuple[Any, ...], str, str], Entry] = {}
    for run, split in zip(runs, _splits(runs), strict=True):
        e = run.experiment
        key = (split, _content(run, runs), *comparable(e).items())
        if run.sites is not None:
            key += (run.sites.terms.federation, run.sites.test_data)
        place = (key, run.name, repr(sorted(_identity(run).items())))
        if place not in groups:
            groups[place] = Entry(run.name)
            settings.setdefault(key, Setting(split)).entries.append(groups[place])
        entry = groups[place]
        held = entry.runs.get(run.seed)
        if held is None or _further(run) > _further(held):
            entry.runs[run.seed] = run
        if held is not None:
            kept = entry.runs[run.seed]
            other = held if kept is run else run
            note(f"{other.path}: is the same experiment as {kept.path}; it is left out")
    for setting in settings.values():
        setting.entries.sort(
            key=lambda entry: _METHODS.index(entry.method) if entry.method in _METHODS else 99
        )
        _tell_apart(setting.entries)
    titles = [setting.title for setting in settings.values() if setting.sites is None]
    for title in dict.fromkeys(title for title in titles if titles.count(title) > 1):
        note(f"{title}: not all runs of this title are of the same data; they are shown apart")
    return list(settings.values())


def _content(run: Run, runs: Sequence[Run]) -> str | None:
    """The fingerprint of its data, since a file may have changed between two runs. One without a
    checkpoint counts as of the others' data; where samples are held out, or clients drawn from the data's
    own, every split has its own, and only runs of one split tell that the file has changed."""
    e = run.experiment
    if run.sites is not None:
        return None
    same = [r for r in runs if r.sites is None and _READ(dict(r.experiment)) == _READ(dict(e))]
    if (e.partition == "natural" or e.validation) and not _changed(same):
        return None
    if run.data_fingerprint is not None:
        return run.data_fingerprint
    return next((told for r in same if (told := r.data_fingerprint) is not None), None)


def _changed(runs: Sequence[Run]) -> bool:
    """Whether runs of one split of the same file are of different data."""
    told: dict[tuple[Any, ...], str] = {}
    known = ((_SPLIT(dict(run.experiment)), run.data_fingerprint) for run in runs)
    return any(told.setdefault(split, data) != data for split, data in known if data is not None)


def _further(run: Run) -> tuple[bool, int]:
    """Of two copies of one experiment the finished one is shown, or else the one with more rounds."""
    return run.result is not None, run.rounds_done


def _splits(runs: Sequence[Run]) -> list[str | int]:
    """Whether each run's split follows its seed, or is a fixed one. With partition_seed = 0 for all seeds,
    seed 0's looks as if it followed: the other seeds of the same experiment tell."""
    identities = [repr((run.name, sorted(_identity(run).items()))) for run in runs]
    named = list(zip(runs, identities, strict=True))
    fixed = {(identity, seed) for run, identity in named if (seed := _fixed(run)) is not None}
    splits: list[str | int] = []
    for run, identity in named:
        seed = _fixed(run)
        splits.append(seed if seed is not None else run.seed if (identity, run.seed) in fixed else FOLLOWS)
    return splits


def _fixed(run: Run) -> int | None:
    """The seed of its split, where it is certainly not the run's own."""
    return None if run.experiment.partition_seed == run.seed else run.experiment.partition_seed


def _identity(run: Run) -> dict[str, Any]:
    """What makes an experiment another one, flat: without the seeds, where it is computed and what else is
    measured of it."""
    table = plain_table(run.experiment)
    if run.sites is not None:
        table |= {key: getattr(run.sites.terms, key) for key in ("wire", "dp_noise", "dp_clip")}
    algorithm = table.pop("algorithm")
    own = {f"algorithm.{key}": value for key, value in algorithm.items()}
    left_out = ("seed", "partition_seed", "track", *HARDWARE)
    return {k: v for k, v in (table | own).items() if k not in left_out}


def _tell_apart(entries: Sequence[Entry]) -> None:
    """Labels that are given twice get what their experiments differ in, or else their folders."""
    by_label: dict[str, list[Entry]] = {}
    for entry in entries:
        by_label.setdefault(entry.label, []).append(entry)
    for label, same in by_label.items():
        if len(same) == 1:
            continue
        identities = [_identity(entry.first) for entry in same]
        keys = {key for one in identities for key in one}
        differing = sorted(key for key in keys if len({repr(one.get(key)) for one in identities}) > 1)
        for entry, one in zip(same, identities, strict=True):
            told = [f"{key.removeprefix('algorithm.')} {one[key]}" for key in differing[:2] if key in one]
            entry.label = f"{label} ({', '.join(told)})" if told else f"{label} ({entry.first.path.name})"
        if len({entry.label for entry in same}) < len(same):
            for entry in same:
                entry.label = f"{label} ({entry.first.path})"


def _mean(values: Iterable[float | None]) -> float | None:
    held = [v for v in values if v is not None]
    return statistics.fmean(held) if held else None
