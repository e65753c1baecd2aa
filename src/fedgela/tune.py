"""Hyper-parameter search for a fair comparison: the same number of trials for every method, scored on
validation data taken from the clients' training samples. The test sets are never looked at.

    OUT/METHOD/trial-1/seed-0/    one run each
    OUT/trials.json               every trial with its scores
    OUT/tuned.toml                a config for `fedgela compare`, with the chosen values
"""

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tomli_w

from fedgela.algorithms import name_of
from fedgela.compare import check_free, check_possible, working_in
from fedgela.config import Experiment, parse_experiment, plain_table
from fedgela.evaluation import Record
from fedgela.failures import keep_failure
from fedgela.files import write_atomically, write_json
from fedgela.listener import Listener
from fedgela.resolve import data_read_once, located
from fedgela.runfolder import TRIALS
from fedgela.runs import run_or_resume

Metric = Literal["GA", "PA", "both"]
# A method's options are searched together with these multiples of the run's learning rate; FedAvg, which has
# no hyper-parameter of its own, gets as many learning rates as the others get trials.
LR_FACTORS = (1.0, 3.0, 0.3, 10.0, 0.1, 2.0, 0.5, 5.0, 0.2, 20.0, 0.05, 30.0)


@dataclass
class Trial:
    """One setting of one method, and its mean scores over seeds at the last round, in percent."""

    method: str
    settings: dict[str, Any]  # the method's options, and lr
    GA: float | None = None
    PA: float | None = None
    error: str | None = None

    def score(self, by: Metric) -> float:
        if self.GA is None or self.PA is None:
            return float("-inf")
        return {"GA": self.GA, "PA": self.PA, "both": (self.GA + self.PA) / 2}[by]


# one dimension of the grid: points with values for one key, or for several that go together; the experiment's
# own values first
Axis = list[dict[str, Any]]


def candidates(experiment: Experiment, trials: int) -> list[dict[str, Any]]:
    """The settings of so many trials, the experiment's own first."""
    axes = _axes(experiment)
    return [
        {k: v for axis, i in zip(axes, point, strict=True) for k, v in axis[i].items()}
        for point in _order(axes)[:trials]
    ]


def left_out(experiment: Experiment, trials: int) -> tuple[int, int]:
    """What so many trials do not cover: how many points of the method's own grid, and how many of the
    learning rates that FedAvg tries in as many trials."""
    axes = _axes(experiment)
    every = _order(axes)
    tried = every[:trials]
    points = {point[:-1] for point in every} - {point[:-1] for point in tried}
    rates = set(range(len(axes[-1][:trials]))) - {point[-1] for point in tried}
    return len(points), len(rates)


def _axes(experiment: Experiment) -> list[Axis]:
    """The axes of the method's own grid, and as the last one the learning rate."""
    axes = []
    for names, values in experiment.algorithm.searched(experiment.epochs).items():
        keys = names.split(",")
        own = tuple(getattr(experiment.algorithm, key) for key in keys)
        points: list[Any] = [value if len(keys) > 1 else (value,) for value in values]
        axes.append([dict(zip(keys, point, strict=True)) for point in dict.fromkeys([own, *points])])
    rates = [experiment.lr, *(float(f"{experiment.lr * factor:.6g}") for factor in LR_FACTORS[1:])]
    return [*axes, [{"lr": lr} for lr in rates]]


def _order(axes: Sequence[Axis]) -> list[tuple[int, ...]]:
    """All points of the grid, as places on its axes, in the order in which they are tried.

    They go from the experiment's own values outwards, so that no axis waits until another is exhausted.
    Among points at the same distance those that move along a single axis go first, and the learning rate
    goes before the method's own options: three trials have tried another value of each.
    """
    points = itertools.product(*(range(len(axis)) for axis in axes))
    return sorted(points, key=lambda at: (sum(at), sum(i > 0 for i in at), -at[-1], [-i for i in at]))


@data_read_once()
def tune(
    experiments: Mapping[str, Experiment],
    seeds: Sequence[int],
    trials: int,
    validation: float,
    by: Metric,
    out: str | Path,
    listener: Listener | None = None,
) -> list[Trial]:
    """Run every trial of every method, and write the best settings after each. Called again, it goes on."""
    out, listener = Path(out), listener or Listener()

    def folder_of(name: str, number: int, seed: int) -> Path:
        return out / name / f"trial-{number}" / f"seed-{seed}"

    experiments = {name: located(e) for name, e in experiments.items()}
    validated = {name: e.with_(validation=validation) for name, e in experiments.items()}
    check_possible(validated, seeds, lambda name, seed: folder_of(name, 1, seed))
    planned = {
        name: [(Trial(name, settings), _with_settings(e, settings)) for settings in candidates(e, trials)]
        for name, e in validated.items()
    }
    for name, of_method in planned.items():
        for number, (_, chosen) in enumerate(of_method, 1):
            for seed in seeds:  # the trials of a search in another order would be taken for these
                check_free(chosen.with_(seed=seed), folder_of(name, number, seed))
    done: list[Trial] = []
    with working_in(out, TRIALS):
        for name, of_method in planned.items():
            for number, (trial, chosen) in enumerate(of_method, 1):
                folders = {seed: folder_of(name, number, seed) for seed in seeds}
                _run(trial, chosen, folders, f"{name} trial {number}/{trials}", listener)
                done.append(trial)
                write_json(out / TRIALS, [vars(one) for one in done])
                header = _header(done, list(experiments), seeds, trials, validation, by)
                config = _config(best_of(done, by), experiments)
                write_atomically(out / "tuned.toml", header + tomli_w.dumps(config))
    listener.label = ""
    return done


def _run(
    trial: Trial, experiment: Experiment, folders: Mapping[int, Path], label: str, listener: Listener
) -> None:
    """Run a trial on every seed, and keep its scores in it, or the error of the first run that fails."""
    results: list[Record] = []
    try:
        for seed, folder in folders.items():
            listener.label = f"{label} seed {seed}"
            results.append(run_or_resume(experiment.with_(seed=seed), folder, listener))
            listener.advance()
        trial.GA, trial.PA = (statistics.fmean(r[m]["last"] for r in results) for m in ("GA", "PA"))
    except Exception as error:
        trial.error = keep_failure(error, folder, listener.note)
        for _ in range(len(folders) - len(results)):  # the seed that failed, and those not tried after it
            listener.advance()


def _with_settings(experiment: Experiment, settings: Mapping[str, Any]) -> Experiment:
    """The experiment with these settings, which are keys of its own, such as lr, or of its method."""
    table = plain_table(experiment)
    for key, value in settings.items():
        target = table if key in Experiment.model_fields else table["algorithm"]
        target[key] = value
    return parse_experiment(table, f"the grid of {name_of(experiment.algorithm)}")


def best_of(trials: Sequence[Trial], by: Metric) -> dict[str, Trial]:
    """The best trial of each method; the earlier of equals, so that the experiment's own values win a tie."""
    best: dict[str, Trial] = {}
    for trial in trials:
        held = best.get(trial.method)
        if held is None or trial.score(by) > held.score(by):
            best[trial.method] = trial
    return best


def at_an_end(trials: Sequence[Trial], best: Mapping[str, Trial]) -> list[str]:
    """Of the best trials those whose learning rate is the least or the largest that their method has tried:
    beyond it there may be a better one."""
    lines = []
    for name, chosen in best.items():
        rates = {t.settings["lr"] for t in trials if t.method == name and t.error is None}
        lr = chosen.settings["lr"]
        if len(rates) > 1 and lr in (min(rates), max(rates)):
            lines.append(f"{name} lr = {lr:g}, the {'least' if lr == min(rates) else 'largest'}")
    return lines


def _config(best: Mapping[str, Trial], experiments: Mapping[str, Experiment]) -> dict[str, Any]:
    """A config for `fedgela compare`: what all methods have in common, and in tables what each has for itself
    with the settings of its best trial."""
    shared = plain_table(next(iter(experiments.values())))
    methods = {}
    for name, trial in best.items():
        if trial.error is None:
            table = plain_table(experiments[name])
            chosen = {**table.pop("algorithm"), **table, **trial.settings}
            methods[name] = {key: value for key, value in chosen.items() if value is not None}
    for key in ("algorithm", "seed", "lr", "validation"):
        shared.pop(key, None)
    for key in list(shared):  # what the methods do not have in common is in each one's own table
        if any(plain_table(e).get(key) != shared[key] for e in experiments.values()):
            del shared[key]
    # a method with a batch size of its own has the others' min_samples, which is then that of all
    for experiment in experiments.values():
        if experiment.min_samples is not None:
            shared["min_samples"] = experiment.min_samples
    for own in methods.values():
        for key in (*shared, "seed", "validation"):
            own.pop(key, None)
    return {**shared, "methods": methods}


def _header(
    done: Sequence[Trial],
    names: Sequence[str],
    seeds: Sequence[int],
    trials: int,
    validation: float,
    by: Metric,
) -> str:
    """The comment above the config: how its values were chosen."""
    counted = {name: sum(t.method == name and t.error is None for t in done) for name in names}
    told = f"{trials} trials a method"
    if set(counted.values()) != {trials}:
        told += f" but for what failed or is to come ({', '.join(f'{k} {n}' for k, n in counted.items())})"
    return (
        f"# Chosen by {'the mean of GA and PA' if by == 'both' else by} at the last round on validation data "
        f"({validation:g} of each\n# client's training samples), {told},\n# "
        f"seeds {', '.join(map(str, seeds))}. No test set was looked at.\n"
    )
