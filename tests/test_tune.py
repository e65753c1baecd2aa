"""The fair search: the same number of trials for every method, and never a look at a test set."""

import dataclasses
import json
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import tomli_w
from rich.console import Console

from fedgela.algorithms import ALGORITHMS, FedAvg
from fedgela.config import Experiment, read_toml
from fedgela.errors import UserError
from fedgela.evaluation import Record
from fedgela.methods import experiments_of
from fedgela.progress import PlainView
from fedgela.runfolder import RunFolder
from fedgela.runs import run_or_resume
from fedgela.tune import LR_FACTORS, Trial, at_an_end, best_of, candidates, left_out, tune
from helpers import Cli, serve, tiny, tiny_table


def search(npz: Path, out: Path, names: list[str], trials: int = 3, **changes: object) -> dict[str, Trial]:
    experiments = {name: tiny(npz, algorithm=name, finetune_epochs=1, **changes) for name in names}
    with PlainView(Console(quiet=True)) as view:
        return best_of(tune(experiments, [0, 1], trials, 0.25, "both", out, view), "both")


def test_a_bug_in_a_trial_is_kept_with_its_traceback(
    npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> object:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(ALGORITHMS["fedavg"], "loss", broken)
    assert search(npz, tmp_path, ["fedavg"], 1)["fedavg"].error == "ZeroDivisionError: a bug"
    assert "in broken" in (tmp_path / "fedavg/trial-1/seed-0/error.txt").read_text()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_method_gets_the_same_number_of_different_trials(name: str) -> None:
    experiment = Experiment.model_validate({"algorithm": name})
    for trials in (1, 6, len(LR_FACTORS)):
        settings = candidates(experiment, trials)
        assert len(settings) == trials
        assert len({json.dumps(s) for s in settings}) == trials


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_first_trial_is_the_methods_default_at_the_runs_learning_rate(name: str) -> None:
    experiment = Experiment.model_validate({"algorithm": name, "epochs": 10})
    first = dict(candidates(experiment, 1)[0])
    assert first.pop("lr") == experiment.lr
    for key, value in first.items():
        assert value == getattr(experiment.algorithm, key)


def test_no_trial_of_fedrep_is_its_default_by_other_words() -> None:
    experiment = Experiment.model_validate({"algorithm": "fedrep", "epochs": 10})
    seen = set()
    for settings in candidates(experiment, 6):
        lr = settings.pop("lr")
        algorithm = dataclasses.replace(experiment.algorithm, **settings)
        seen.add((algorithm.phases(experiment.epochs), lr))
    assert len(seen) == 6


@pytest.mark.parametrize(
    ("options", "searched"),
    [({}, ["E_W", "phi"]), ({"etf": False}, ["phi"]), ({"adapt": False}, ["E_W"])],
    ids=str,
)
def test_options_without_effect_are_not_searched(
    npz: Path, tmp_path: Path, options: dict[str, bool], searched: list[str]
) -> None:
    experiment = tiny(npz, algorithm={"name": "fedgela", **options}, rounds=1)
    for settings in candidates(experiment, len(LR_FACTORS)):
        assert list(settings) == [*searched, "lr"]
    done = tune({"fedgela": experiment}, [0], 8, 0.25, "both", tmp_path, PlainView(Console(quiet=True)))
    metrics = {(path.parent / "metrics.jsonl").read_text() for path in tmp_path.rglob("result.json")}
    assert [trial.error for trial in done] == [None] * 8
    assert len({re.sub(r', "seconds.*', "", text) for text in metrics}) == 8


@dataclass(frozen=True)
class WarmedUp(FedAvg):
    """Its epochs are none of a phase: its loss reads them."""

    grid: ClassVar[dict[str, tuple[object, ...]]] = {"warmup_epochs": (0, 1, 2)}
    warmup_epochs: int = 0


@dataclass(frozen=True)
class Misspelt(FedAvg):
    grid: ClassVar[dict[str, tuple[object, ...]]] = {"strength": (0.0, "much")}
    strength: float = 0.0


def test_epochs_that_are_no_phases_are_told_apart() -> None:
    tried = candidates(Experiment(algorithm=WarmedUp()), len(LR_FACTORS))
    assert {settings["warmup_epochs"] for settings in tried} == {0, 1, 2}
    assert left_out(Experiment(algorithm=WarmedUp()), len(LR_FACTORS))[0] == 0


def test_a_grid_that_a_method_cannot_take_is_named_before_anything_is_written(
    npz: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=r"^the grid of test_tune:Misspelt: algorithm.strength: .*'much'$"):
        search(npz, tmp_path / "out", ["test_tune:Misspelt"])
    assert not (tmp_path / "out").exists()


def test_no_trial_of_fedrep_is_the_runs_own_by_other_words() -> None:
    own = {"name": "fedrep", "head_epochs": 5, "body_epochs": 5}
    tried = candidates(Experiment.model_validate({"algorithm": own, "epochs": 10}), len(LR_FACTORS))
    assert tried[0]["head_epochs"] == 5
    assert None not in {settings["head_epochs"] for settings in tried}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_own_options_and_learning_rates_are_tried_side_by_side(name: str) -> None:
    experiment = Experiment.model_validate({"algorithm": name, "epochs": 10})
    own = experiment.algorithm.searched(experiment.epochs)
    for trials in (3, 6, 8, 12):
        tried = candidates(experiment, trials)
        rates = {settings["lr"] for settings in tried}
        points = {tuple(v for k, v in settings.items() if k != "lr") for settings in tried}
        if not own:
            assert (len(rates), left_out(experiment, trials)) == (trials, (0, 0))
            continue
        # neither waits for the other, but where a grid is gone through
        assert len(rates) >= 2 and len(points) >= 2
        assert len(rates) >= len(points) // len(own)
        assert len(points) >= min(len(rates), len(next(iter(own.values()))))
        assert left_out(experiment, trials)[1] == trials - len(rates)


def test_the_order_of_a_search() -> None:
    tried = candidates(Experiment.model_validate({"algorithm": "fedgela"}), 10)
    assert [tuple(settings.values()) for settings in tried] == [
        (10.0, "power:1", 0.01),
        (10.0, "power:1", 0.03),
        (1.0, "power:1", 0.01),
        (10.0, "power:0.5", 0.01),
        (10.0, "power:1", 0.003),
        (100.0, "power:1", 0.01),
        (1.0, "power:1", 0.03),
        (10.0, "power:0.5", 0.03),
        (1.0, "power:0.5", 0.01),
        (10.0, "power:1", 0.1),
    ]


def test_other_learning_rates_are_tried_with_the_runs_own_options() -> None:
    own = Experiment.model_validate({"algorithm": {"name": "fedprox", "mu": 0.7}, "lr": 0.02})
    assert candidates(own, 3) == [
        {"mu": 0.7, "lr": 0.02},
        {"mu": 0.7, "lr": 0.06},
        {"mu": 0.001, "lr": 0.02},
    ]


def test_what_is_left_out_is_told(npz: Path, tmp_path: Path, command: Cli) -> None:
    config = tmp_path / "config.toml"
    config.write_text(tomli_w.dumps(tiny_table(npz, algorithm={}, rounds=1)))
    names = ["--algorithms", "fedavg,moon,fedproto", "--trials", "4"]
    code, _, told = command("tune", config, *names, "--out", tmp_path / "out")
    assert code == 0
    moon, fedproto = "4 points of its own grid and 1 of fedavg's 4 learning rates", "1 of fedavg's 4 learning"
    assert f"note: 4 trials leave out: moon {moon}; fedproto {fedproto} rates\n" in told


def test_trials_of_another_order_are_not_taken_for_these(npz: Path, tmp_path: Path) -> None:
    search(npz, tmp_path, ["fedprox"])
    written = (tmp_path / "trials.json").read_text()
    (tmp_path / "fedprox/trial-2").rename(tmp_path / "fedprox/trial-4")
    (tmp_path / "fedprox/trial-3").rename(tmp_path / "fedprox/trial-2")
    with pytest.raises(UserError, match=r"trial-2/seed-0: holds a run with .*; choose another --out"):
        search(npz, tmp_path, ["fedprox"])
    assert (tmp_path / "trials.json").read_text() == written


def test_the_test_set_is_never_looked_at(npz: Path, tmp_path: Path) -> None:
    # with labels of the test set scrambled, every score stays as it was
    with np.load(npz) as file:
        arrays = dict(file)
    arrays["y_test"] = arrays["y_test"][::-1].copy()
    arrays["x_test"] = 255 - arrays["x_test"]
    np.savez(tmp_path / "other.npz", **arrays)
    best = search(npz, tmp_path / "a", ["fedavg", "fedgela"])
    other = search(tmp_path / "other.npz", tmp_path / "b", ["fedavg", "fedgela"])
    assert best == other


def test_the_best_trial_wins_and_the_earlier_of_equals() -> None:
    trials = [Trial("m", {"lr": i}, GA, PA) for i, (GA, PA) in enumerate([(50, 90), (60, 80), (40, 99)])]
    assert best_of(trials, "both")["m"].settings == {"lr": 0}
    assert best_of(trials, "GA")["m"].settings == {"lr": 1}
    assert best_of(trials, "PA")["m"].settings == {"lr": 2}


def test_a_learning_rate_at_an_end_of_those_tried_is_told() -> None:
    scores = {"a": (50, 60, 70), "b": (60, 90, 70), "c": (90, 60, 70), "d": (50,)}
    trials = [
        Trial(name, {"lr": lr}, GA, GA)
        for name, those in scores.items()
        for lr, GA in zip((0.01, 0.03, 0.1), those, strict=False)
    ]
    told = ["a lr = 0.1, the largest", "c lr = 0.01, the least"]
    assert at_an_end(trials, best_of(trials, "both")) == told


def test_what_a_method_has_for_itself_it_keeps(npz: Path, tmp_path: Path) -> None:
    own = {"fedgela": {"clip_norm": 20.0, "epochs": 2}, "fedavg": {"momentum": 0.5}}
    table = {**tiny_table(npz), "methods": own}
    del table["algorithm"]
    asked = experiments_of(table, [], "config")
    with PlainView(Console(quiet=True)) as view:
        tune(asked, [0], 1, 0.25, "GA", tmp_path, view)
    tuned = experiments_of(tomllib.loads((tmp_path / "tuned.toml").read_text()), [], "tuned.toml")
    for name, experiment in asked.items():
        for key in ("clip_norm", "epochs", "momentum", "lr", "rounds", "dataset"):
            assert getattr(tuned[name], key) == getattr(experiment, key), (name, key)


def test_the_chosen_values_are_a_config_that_compare_reads(npz: Path, tmp_path: Path) -> None:
    best = search(npz, tmp_path, ["fedavg", "fedrep", "fedgela"])
    table = tomllib.loads((tmp_path / "tuned.toml").read_text())
    experiments = experiments_of(table, [], "tuned.toml")
    assert list(experiments) == ["fedavg", "fedrep", "fedgela"]
    for name, experiment in experiments.items():
        assert experiment.validation == 0  # the comparison itself is on the test sets
        for key, value in best[name].settings.items():
            held = experiment.lr if key == "lr" else getattr(experiment.algorithm, key)
            assert held == value
    trials = json.loads((tmp_path / "trials.json").read_text())
    assert [trial["method"] for trial in trials] == ["fedavg"] * 3 + ["fedrep"] * 3 + ["fedgela"] * 3


def test_the_chosen_values_are_read_from_any_folder(
    npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(npz.parent)
    search(Path(npz.name), tmp_path / "out", ["fedavg"], 1)
    monkeypatch.chdir(tmp_path / "out")
    for experiment in experiments_of(read_toml(Path("tuned.toml")), [], "tuned.toml").values():
        assert experiment.dataset == str(npz)
        serve(experiment)


def test_a_search_goes_on_where_it_stopped(npz: Path, tmp_path: Path) -> None:
    best = search(npz, tmp_path, ["fedavg"])
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("metrics.jsonl")}
    assert len(written) == 6
    assert search(npz, tmp_path, ["fedavg"]) == best
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("metrics.jsonl")} == written


def test_a_failing_trial_is_named_and_the_others_stand(npz: Path, tmp_path: Path) -> None:
    best = search(npz, tmp_path, ["fedavg", "fedgela"], projection=2)  # too small for an ETF of 4 classes
    assert best["fedavg"].error is None
    assert "at least 4 dimensions" in str(best["fedgela"].error)
    text = (tmp_path / "tuned.toml").read_text()
    assert "fedgela" not in tomllib.loads(text)["methods"]
    assert "3 trials a method but for what failed or is to come (fedavg 3, fedgela 0)" in text


def test_runs_that_fail_or_are_skipped_count_as_ended(
    npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(experiment: Experiment, folder: Path, view: PlainView) -> Record:
        if "trial-1" in folder.parts or folder.name == "seed-1":
            raise ValueError("no luck")
        return {"GA": {"last": 50.0}, "PA": {"last": 50.0}}

    ended: list[str] = []
    monkeypatch.setattr("fedgela.tune.run_or_resume", failing)
    monkeypatch.setattr(PlainView, "advance", lambda view: ended.append(view.label))
    search(npz, tmp_path, ["fedavg"], trials=2)
    assert ended == ["fedavg trial 1/2 seed 0"] * 2 + [f"fedavg trial 2/2 seed {seed}" for seed in (0, 1)]


def test_a_search_with_a_failed_trial_ends_with_an_error_code(
    npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Cli
) -> None:
    def failing(experiment: Experiment, folder: Path, view: PlainView) -> Record:
        if "trial-2" in folder.parts:
            raise ValueError("no luck")
        return run_or_resume(experiment, folder, view)

    monkeypatch.setattr("fedgela.tune.run_or_resume", failing)
    config = tmp_path / "config.toml"
    config.write_text(tomli_w.dumps(tiny_table(npz, algorithm="fedavg")))
    code, _, told = command(
        "tune", config, "--algorithms", "fedavg", "--trials", 3, "--out", tmp_path / "out"
    )
    assert code == 1
    assert "1 of 3 trials failed, and were not chosen from" in told
    assert "(fedavg 2)" in (tmp_path / "out/tuned.toml").read_text()


def test_a_search_has_its_folder_for_itself(npz: Path, tmp_path: Path) -> None:
    with (
        RunFolder(tmp_path).locked(),
        pytest.raises(UserError, match="another process is working in this folder"),
    ):
        search(npz, tmp_path, ["fedavg"])
    assert not (tmp_path / "tuned.toml").exists()


@pytest.mark.parametrize(
    "arguments", [["--by", "luck"], ["--validation", "1.5"], ["--validation", "0"], ["--trials", "99"]]
)
def test_bad_options_end_in_one_line(arguments: list[str], command: Cli, tmp_path: Path) -> None:
    code, _, told = command("tune", "--out", tmp_path / "out", *arguments)
    assert code == 2
    assert told.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_methods_own_batch_size_is_a_config_that_compare_reads(npz: Path, tmp_path: Path) -> None:
    table = tiny_table(npz, rounds=1) | {"methods": {"fedavg": {"batch_size": 3}, "local": {}}}
    table.pop("min_samples", None)
    experiments = experiments_of(table, [], "config")
    tune(experiments, [0], 1, 0.3, "both", tmp_path, PlainView(Console(quiet=True)))
    tuned = experiments_of(tomllib.loads((tmp_path / "tuned.toml").read_text()), [], "tuned.toml")
    assert tuned["fedavg"].batch_size == 3
    assert {e.min_samples for e in tuned.values()} == {experiments["fedavg"].min_samples}
