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
from fedgela.compare import check_possible, working_in
from fedgela.config import Experiment, parse_experiment, plain_table
from fedgela.evaluation import Record
from fedgela.failures import keep_failure
from fedgela.files import write_atomically, write_json
from fedgela.progress import View
from fedgela.resolve import data_read_once
from fedgela.runfolder import TRIALS
from fedgela.runs import run_or_resume

Metric = Literal["GA", "PA", "both"]
# A method's grid is crossed with these multiples of the run's learning rate; FedAvg, which has no
# hyper-parameter of its own, gets as many learning rates as the others get trials.
LR_FACTORS = (1.0, 3.0, 0.3, 10.0, 0.1, 2.0, 0.5, 5.0, 0.2, 20.0, 0.05, 30.0)


@dataclass
class Trial:
    """One setting of one method, and its mean scores over seeds at the last round, in percent."""

    method: str
    settings: dict[str, Any]  # of the method, and lr
    GA: float | None = None
    PA: float | None = None
    error: str | None = None

    def score(self, by: Metric) -> float:
        if self.GA is None or self.PA is None:
            return float("-inf")
        return {"GA": self.GA, "PA": self.PA, "both": (self.GA + self.PA) / 2}[by]


def candidates(experiment: Experiment, trials: int) -> list[dict[str, Any]]:
    """So many settings to try: first the experiment's own, then the method's grid, then that at other
    learning rates, from the first point and the nearest rate on."""
    own = _grid(experiment)
    rates = [experiment.lr, *(float(f"{experiment.lr * factor:.6g}") for factor in LR_FACTORS[1:])]
    order = sorted(
        itertools.product(range(len(own)), range(len(rates))),
        key=lambda ij: (ij[1] > 0, sum(ij), ij[1]),
    )
    return [{**own[i], "lr": rates[j]} for i, j in order[:trials]]


def _grid(experiment: Experiment) -> list[dict[str, Any]]:
    """Every point of a method's own grid, from the experiment's own values on; one point without keys where
    it has none."""
    axes: list[list[dict[str, Any]]] = []
    for names, values in experiment.algorithm.searched(experiment.epochs).items():
        keys = names.split(",")
        own = tuple(getattr(experiment.algorithm, key) for key in keys)
        points: list[Any] = [value if len(keys) > 1 else (value,) for value in values]
        axes.append([dict(zip(keys, point, strict=True)) for point in dict.fromkeys([own, *points])])
    return [{k: v for part in point for k, v in part.items()} for point in itertools.product(*axes)]


def left_out(experiment: Experiment, trials: int) -> int:
    """How many points of a method's own grid so many trials do not come to."""
    tried = [{k: v for k, v in p.items() if k != "lr"} for p in candidates(experiment, trials)]
    return sum(point not in tried for point in _grid(experiment))


@data_read_once()
def tune(
    experiments: Mapping[str, Experiment],
    seeds: Sequence[int],
    trials: int,
    validation: float,
    by: Metric,
    out: Path,
    view: View,
) -> list[Trial]:
    """Every trial of every method, in turn. Run again, it goes on where it stopped."""
    validated = {name: e.with_(validation=validation) for name, e in experiments.items()}
    check_possible(validated, seeds, lambda name, seed: out / name / "trial-1" / f"seed-{seed}")
    planned = {
        name: [(Trial(name, settings), _with_settings(e, settings)) for settings in candidates(e, trials)]
        for name, e in validated.items()
    }
    done: list[Trial] = []
    with working_in(out, TRIALS):
        for name, of_method in planned.items():
            for number, (trial, chosen) in enumerate(of_method, 1):
                results: list[Record] = []
                try:
                    for seed in seeds:
                        view.label = f"{name} trial {number}/{trials} seed {seed}"
                        folder = out / name / f"trial-{number}" / f"seed-{seed}"
                        results.append(run_or_resume(chosen.with_(seed=seed), folder, view))
                        view.advance()
                    trial.GA, trial.PA = (
                        statistics.fmean(r[m]["last"] for r in results) for m in ("GA", "PA")
                    )
                except Exception as error:
                    trial.error = keep_failure(error, folder, view.note)
                    for _ in seeds[len(results) :]:  # the seed that failed, and those not tried after it
                        view.advance()
                done.append(trial)
                _save(done, experiments, seeds, trials, validation, by, out)
    view.label = ""
    return done


def _with_settings(experiment: Experiment, settings: Mapping[str, Any]) -> Experiment:
    """Keys of the experiment, such as lr, and of its method."""
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


def _save(
    done: Sequence[Trial],
    experiments: Mapping[str, Experiment],
    seeds: Sequence[int],
    trials: int,
    validation: float,
    by: Metric,
    out: Path,
) -> None:
    write_json(out / TRIALS, [vars(trial) for trial in done])
    shared = plain_table(next(iter(experiments.values())))
    methods = {}
    for name, trial in best_of(done, by).items():
        if trial.error is None:
            table = plain_table(experiments[name])
            chosen = {**table.pop("algorithm"), **table, **trial.settings}
            methods[name] = {key: value for key, value in chosen.items() if value is not None}
    for key in ("algorithm", "seed", "lr", "validation"):
        shared.pop(key, None)
    for key in list(shared):  # what the methods do not have in common is each one's own
        if any(plain_table(e).get(key) != shared[key] for e in experiments.values()):
            del shared[key]
    # a method with a batch size of its own has the others' min_samples, which is then that of all
    for experiment in experiments.values():
        if experiment.min_samples is not None:
            shared["min_samples"] = experiment.min_samples
    for own in methods.values():
        for key in (*shared, "seed", "validation"):
            own.pop(key, None)
    counted = {name: sum(t.method == name and t.error is None for t in done) for name in experiments}
    told = f"{trials} trials a method"
    if set(counted.values()) != {trials}:
        told += f" but for what failed or is to come ({', '.join(f'{k} {n}' for k, n in counted.items())})"
    header = (
        f"# Chosen by {'the mean of GA and PA' if by == 'both' else by} at the last round on validation data "
        f"({validation:g} of each\n# client's training samples), {told},\n# "
        f"seeds {', '.join(map(str, seeds))}. No test set was looked at.\n"
    )
    write_atomically(out / "tuned.toml", header + tomli_w.dumps({**shared, "methods": methods}))
