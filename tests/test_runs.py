"""A run's folder: what is in it, what is refused, several seeds, and comparisons."""

import contextlib
import csv
import itertools
import json
import os
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from fedgela import runs
from fedgela.algorithms import ALGORITHMS
from fedgela.algorithms.fedgela import FedGE, FedGELA
from fedgela.compare import compare, experiments_of
from fedgela.files import read_tensors
from fedgela.progress import PlainView
from fedgela.runfolder import SEVERAL
from fedgela.runs import RunFolder, best_and_last
from fedgela.seeds import resume_seeds, run_seeds
from fedgela.server import Server
from fedgela.tune import tune
from helpers import Notes, UserError, listing, metrics_of, outcome_of, tiny, tiny_arrays, tiny_table


@pytest.fixture
def view() -> PlainView:
    return PlainView(Console(quiet=True))


# -- determinism -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_same_seed_gives_the_same_run_to_the_bit(npz: Path, tmp_path: Path, name: str) -> None:
    experiment = tiny(npz, algorithm=name, sample=2)
    runs.run(experiment, tmp_path / "a")
    torch.manual_seed(99)  # whatever happened to torch's own generator in between
    torch.rand(7)
    runs.run(experiment, tmp_path / "b")
    assert outcome_of(tmp_path / "a") == outcome_of(tmp_path / "b")


def test_another_seed_gives_another_run(npz: Path, tmp_path: Path) -> None:
    for seed in (0, 1):
        runs.run(tiny(npz, seed=seed), tmp_path / str(seed))
    assert metrics_of(tmp_path / "0") != metrics_of(tmp_path / "1")


def test_the_partition_seed_alone_decides_who_holds_what(npz: Path) -> None:
    counts = [
        runs.resolve(tiny(npz, seed=seed, partition_seed=part))[1].train.owner
        for seed, part in ((0, 5), (1, 5), (1, 6))
    ]
    assert torch.equal(counts[0], counts[1])
    assert not torch.equal(counts[1], counts[2])


# -- what a folder holds ---------------------------------------------------------------------------


def test_a_finished_folder_holds_what_the_module_says(npz: Path, tmp_path: Path) -> None:
    result = runs.run(tiny(npz), tmp_path / "a")
    names = {path.name for path in (tmp_path / "a").iterdir()} - {".lock"}
    assert names == {"config.toml", "metrics.jsonl", "checkpoints", "clients", "models", "result.json"}
    assert json.loads((tmp_path / "a/result.json").read_text()) == result
    records = [json.loads(line) for line in (tmp_path / "a/metrics.jsonl").read_text().splitlines()]
    assert [record["round"] for record in records] == [1, 2, 3]
    # the config of the folder has no open points, and says the same again
    found = RunFolder(tmp_path / "a").experiment()
    assert (found.sample, found.model, found.partition_seed) == (4, "tiny-cnn", 0)
    assert runs.resolve(found)[0] == found


def test_classes_that_nobody_trains_on_are_named(tmp_path: Path) -> None:
    arrays = tiny_arrays()
    seen = arrays["y_train"] != 2
    arrays |= {"x_train": arrays["x_train"][seen], "y_train": arrays["y_train"][seen]}
    np.savez(tmp_path / "gap.npz", **arrays, class_names=["ant", "bee", "cat", "dog"])
    listener = Notes()
    runs.run(tiny(tmp_path / "gap.npz", partition="iid", rounds=1), tmp_path / "run", listener)
    assert "classes that are tested, but that nobody has training samples of: cat" in listener.notes


def test_the_finished_models_are_those_of_the_best_and_the_last_round(npz: Path, tmp_path: Path) -> None:
    experiment = tiny(npz, lr=0.3, rounds=6)  # a rate at which the last round is not the best
    result = runs.run(experiment, tmp_path / "a")
    best_round = result["GA"]["best_round"]  # checkpoints then hold two models that share one ETF
    assert best_round < 6
    server = Server(*runs.resolve(experiment))
    progress, models = server.begin(), {}
    for _ in range(6):
        server.step(progress)
        models[progress.round] = progress.server.model
    for which, round in (("best", best_round), ("last", 6)):
        saved, _ = read_tensors(tmp_path / "a/models" / result["models"][which])
        assert saved.keys() == models[round].keys()
        assert all(torch.equal(saved[name], models[round][name]) for name in saved)


def test_only_two_checkpoints_and_the_clients_they_refer_to_are_kept(npz: Path, tmp_path: Path) -> None:
    runs.run(tiny(npz, sample=1, rounds=8, clients=4), tmp_path)
    kept = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert [name.split(".")[0] for name in kept] == ["round-000007", "round-000008"]
    referred = set()
    for name in kept:
        referred |= set(json.loads(read_tensors(tmp_path / "checkpoints" / name)[1])["clients"].values())
    assert {path.name for path in (tmp_path / "clients").iterdir()} == referred


def test_checkpoint_every_spares_checkpoints_but_the_last(npz: Path, tmp_path: Path) -> None:
    runs.run(tiny(npz, rounds=5, checkpoint_every=3), tmp_path)
    kept = sorted(path.name.split(".")[0] for path in (tmp_path / "checkpoints").iterdir())
    assert kept == ["round-000003", "round-000005"]


def test_a_run_that_diverges_goes_on_and_says_so(npz: Path, tmp_path: Path) -> None:
    listener = Notes()
    result = runs.run(tiny(npz, algorithm="fedavg", lr=1e20), tmp_path, listener)
    assert any("no finite number" in note for note in listener.notes)
    assert result["GA"]["last"] is not None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"min_samples": 16}, "min_samples = 16 does nothing: it is for dirichlet, and classes:2 leaves"),
        ({"min_samples": 1}, None),  # all of them have it
        ({"min_samples": 0}, None),
        ({"partition": "dirichlet:5", "min_samples": 6}, None),
        (
            {"pretrained": False},
            "pretrained = false does nothing: it is for models of the hub, and tiny-cnn is",
        ),
        ({"batch_size": 61}, "no client has a batch of 61, the largest has "),
    ],
)
def test_what_does_nothing_is_told(
    npz: Path, tmp_path: Path, changes: dict[str, Any], said: str | None
) -> None:
    listener = Notes()
    runs.run(tiny(npz, rounds=1, **changes), tmp_path, listener)
    assert len(listener.notes) == (said is not None)
    assert not said or listener.notes[0].startswith(said)


def test_a_method_that_shares_more_than_weights_says_so(npz: Path, tmp_path: Path) -> None:
    silent, telling = Notes(), Notes()
    runs.run(tiny(npz), tmp_path / "a", silent)
    runs.run(tiny(npz, algorithm={"name": "fedgela", "phi": "paper-sqrt"}), tmp_path / "b", telling)
    assert silent.notes == []
    assert "shares more than weights" in telling.notes[0]


def test_best_is_the_first_of_equal_maxima_and_last_the_last_measured() -> None:
    records = [
        {"round": 1, "GA": 10.0},
        {"round": 2, "GA": 30.0},
        {"round": 3, "GA": 30.0},
        {"round": 4},  # not evaluated
    ]
    assert best_and_last(records, "GA") == {"best": 30.0, "best_round": 2, "last": 30.0, "last_round": 3}
    assert best_and_last(records, "PA") is None


# -- what a folder refuses -------------------------------------------------------------------------


def test_a_folder_that_holds_a_run_is_refused_and_untouched(npz: Path, tmp_path: Path) -> None:
    runs.run(tiny(npz), tmp_path)
    before = listing(tmp_path)
    with pytest.raises(UserError, match=r"already holds a run.*fedgela resume"):
        runs.run(tiny(npz, seed=1), tmp_path)
    assert listing(tmp_path) == before


def test_an_impossible_experiment_leaves_no_folder(npz: Path, tmp_path: Path) -> None:
    for changes in ({"projection": 2}, {"partition": "classes:5"}, {"dataset": "nowhere.npz"}):
        with pytest.raises(UserError):
            runs.run(tiny(npz, **changes), tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_a_run_that_appeared_while_data_was_loading_is_not_overwritten(
    npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve, held = runs.resolve, {}

    def slowly(experiment: Any) -> Any:
        if not held:
            held["now"] = True
            runs.run(tiny(npz), tmp_path)  # another process, in the time that loading takes
            held["now"] = listing(tmp_path)
        return resolve(experiment)

    monkeypatch.setattr(runs, "resolve", slowly)
    with pytest.raises(UserError, match="already holds a run"):
        runs.run(tiny(npz, seed=1), tmp_path)
    assert listing(tmp_path) == held["now"]


def test_files_that_are_not_the_runs_stay(npz: Path, tmp_path: Path) -> None:
    # --out . in a project that has a folder of models
    mine = [tmp_path / "models/precious.pt", tmp_path / "clients/list.csv"]
    for path in mine:
        path.parent.mkdir()
        path.write_text("mine")
    with contextlib.suppress(UserError):  # to refuse such a folder is as good
        runs.run(tiny(npz), tmp_path)
    assert all(path.exists() for path in mine)


def test_an_out_that_is_a_file_is_refused(npz: Path, tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("mine")
    with pytest.raises(UserError, match="is a file, not a folder"):
        runs.run(tiny(npz), path)
    with pytest.raises(UserError, match=r"below: cannot be written to \(Not a directory\)"):
        runs.run(tiny(npz), path / "below")
    assert path.read_text() == "mine"


def test_an_out_that_cannot_be_written_is_refused(npz: Path, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    if os.access(closed, os.W_OK):
        pytest.skip("this user may write everywhere")
    with pytest.raises(UserError, match="cannot be written to"):
        runs.run(tiny(npz), closed / "a")


def test_only_one_process_works_in_a_folder(npz: Path, tmp_path: Path) -> None:
    runs.run(tiny(npz), tmp_path)
    refused = pytest.raises(UserError, match="another process is working in this folder")
    with RunFolder(tmp_path).locked(), refused:
        runs.resume(tmp_path)
    runs.resume(tmp_path)  # the lock went with its holder


def test_the_lock_is_held_while_a_run_goes_on(npz: Path, tmp_path: Path) -> None:
    class Intruder(Notes):
        def round(self, record: dict[str, Any]) -> None:
            with pytest.raises(UserError, match="another process"):
                runs.resume(tmp_path)
            self.notes.append("refused")

    listener = Intruder()
    runs.run(tiny(npz), tmp_path, listener)
    assert listener.notes == ["refused"] * 3


# -- several seeds ---------------------------------------------------------------------------------


def test_seeds_are_summed_up_by_mean_and_sample_standard_deviation(
    npz: Path, tmp_path: Path, view: PlainView
) -> None:
    summary = run_seeds(tiny(npz), [0, 3, 4], tmp_path, view)
    for metric in ("GA", "PA"):
        for when in ("best", "last"):
            values = [
                json.loads((tmp_path / f"seed-{seed}/result.json").read_text())[metric][when]
                for seed in (0, 3, 4)
            ]
            mean = sum(values) / 3
            std = (sum((v - mean) ** 2 for v in values) / 2) ** 0.5  # ddof = 1
            assert summary[metric][when]["mean"] == pytest.approx(mean)
            assert summary[metric][when]["std"] == pytest.approx(std)
            assert len(set(values)) > 1 or std == 0
    assert summary["seeds"] == [0, 3, 4]
    assert json.loads((tmp_path / "result.json").read_text()) == summary


def test_seeds_interrupted_go_on_where_they_were(
    npz: Path, tmp_path: Path, view: PlainView, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_seeds(tiny(npz), [0, 1, 2], tmp_path / "whole", view)
    step, steps = Server.step, []

    def five_steps(server: Server, progress: Any) -> Any:
        if len(steps) == 5:  # in the second round of the second seed
            raise KeyboardInterrupt
        steps.append(1)
        return step(server, progress)

    with monkeypatch.context() as patch:
        patch.setattr(Server, "step", five_steps)
        with pytest.raises(KeyboardInterrupt):
            run_seeds(tiny(npz), [0, 1, 2], tmp_path / "cut", view)
    assert not (tmp_path / "cut/result.json").exists()
    first = listing(tmp_path / "cut/seed-0")
    resume_seeds(tmp_path / "cut", view)
    assert listing(tmp_path / "cut/seed-0") == first  # the finished seed is not run again
    for seed in (0, 1, 2):
        assert outcome_of(tmp_path / f"cut/seed-{seed}") == outcome_of(tmp_path / f"whole/seed-{seed}")


def test_a_folder_of_seeds_is_refused(npz: Path, tmp_path: Path, view: PlainView) -> None:
    run_seeds(tiny(npz, rounds=1), [0, 1], tmp_path, view)
    before = listing(tmp_path)
    with pytest.raises(UserError, match="already holds a run"):
        run_seeds(tiny(npz), [0, 1], tmp_path, view)
    assert listing(tmp_path) == before


def test_impossible_seeds_leave_no_folder(npz: Path, tmp_path: Path, view: PlainView) -> None:
    # else the corrected command is refused: the folder "already holds a run"
    with pytest.raises(UserError):
        run_seeds(tiny(npz, partition="classes:5"), [0, 1], tmp_path / "a", view)
    assert not (tmp_path / "a").exists()


# -- comparisons -----------------------------------------------------------------------------------


def run_comparison(npz: Path, out: Path, view: PlainView, names: tuple[str, ...], **changes: Any) -> Any:
    table = tiny(npz, **changes).model_dump()
    return compare(experiments_of(table, names, "config"), changes.get("seeds", [0]), out, view)


def test_a_comparison_writes_its_table_in_four_forms(npz: Path, tmp_path: Path, view: PlainView) -> None:
    experiments = experiments_of(tiny(npz).model_dump(), ["fedavg", "fedgela"], "config")
    compare(experiments, [0, 1], tmp_path, view)
    table = json.loads((tmp_path / "table.json").read_text())
    assert [row["algorithm"] for row in table] == ["fedavg", "fedgela"]
    results = {
        (name, seed): json.loads((tmp_path / name / f"seed-{seed}/result.json").read_text())
        for name in ("fedavg", "fedgela")
        for seed in (0, 1)
    }
    for row in table:
        values = [results[row["algorithm"], seed]["GA"]["last"] for seed in (0, 1)]
        assert row["GA"]["last"] == {
            "mean": pytest.approx(statistics.fmean(values)),
            "std": pytest.approx(statistics.stdev(values)),
        }
    rows = list(csv.DictReader((tmp_path / "table.csv").read_text().splitlines()))
    assert [float(row["GA_last_mean"]) for row in rows] == [row["GA"]["last"]["mean"] for row in table]
    for name in ("table.md", "table.txt"):
        assert f"{table[0]['GA']['last']['mean']:.2f}" in (tmp_path / name).read_text()


def test_a_comparison_run_again_runs_only_what_is_missing(npz: Path, tmp_path: Path, view: PlainView) -> None:
    run_comparison(npz, tmp_path, view, ("fedavg", "local"))
    before = {name: listing(tmp_path / name) for name in ("fedavg", "local")}
    comparison = run_comparison(npz, tmp_path, view, ("fedavg", "local", "fedge"))
    assert {name: listing(tmp_path / name) for name in before} == before
    assert [sorted(row.results) for row in comparison.rows] == [[0], [0], [0]]


def test_a_method_that_fails_leaves_the_others_results_in_place(
    npz: Path, tmp_path: Path, view: PlainView
) -> None:
    # an ETF of 4 classes does not fit into 2 dimensions; FedAvg's head does
    run_comparison(npz, tmp_path, view, ("fedgela", "fedavg"), projection=2)
    failed, fine = json.loads((tmp_path / "table.json").read_text())
    assert "needs a projection of at least 4 dimensions, not 2" in failed["errors"]["0"]
    assert failed["GA"]["last"]["mean"] is None
    assert fine["GA"]["last"]["mean"] is not None
    assert "errors" not in fine
    assert "seed 0 failed: a simplex ETF" in (tmp_path / "table.txt").read_text()


def test_a_bug_in_a_method_is_kept_with_its_traceback(
    npz: Path, tmp_path: Path, view: PlainView, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(ALGORITHMS["fedla"], "loss", broken)
    comparison = run_comparison(npz, tmp_path, view, ("fedla", "fedavg"))
    assert comparison.rows[0].errors == {0: "ZeroDivisionError: a bug"}
    assert comparison.rows[1].errors == {}
    assert "in broken" in (tmp_path / "fedla/seed-0/error.txt").read_text()


def test_another_config_in_the_same_folder_is_an_error_and_changes_nothing(
    npz: Path, tmp_path: Path, view: PlainView
) -> None:
    run_comparison(npz, tmp_path, view, ("fedavg",))
    before = listing(tmp_path)
    with pytest.raises(UserError, match=r"holds a run with lr = 0\.05, not 0\.07"):
        run_comparison(npz, tmp_path, view, ("fedavg", "local"), lr=0.07)
    assert listing(tmp_path) == before


def test_a_comparison_has_its_folder_for_itself(npz: Path, tmp_path: Path, view: PlainView) -> None:
    with (
        RunFolder(tmp_path).locked(),
        pytest.raises(UserError, match="another process is working in this folder"),
    ):
        run_comparison(npz, tmp_path, view, ("fedavg",))
    assert not (tmp_path / "table.json").exists()


@pytest.mark.parametrize("key", ["partition", "clients", "seed"])
def test_methods_are_compared_on_one_federation(npz: Path, key: str) -> None:
    own = {"partition": "iid", "clients": 3, "seed": 5}[key]
    table = {**tiny_table(npz), "methods": {"fedavg": {}, "fedgela": {key: own}}}
    with pytest.raises(UserError, match=rf"\[methods.fedgela\]: methods share one federation: {key} is set"):
        experiments_of(table, [], "config")
    table["methods"] = {"fedavg": {}, "fedgela": {key: tiny_table(npz).get(key), "lr": 0.1}}
    if key != "seed":  # the same again is no harm
        assert experiments_of(table, [], "config")["fedgela"].lr == 0.1


def test_a_methods_own_batch_size_leaves_the_federation_as_it_is(npz: Path) -> None:
    table = {
        **tiny_table(npz, partition="dirichlet:0.5"),
        "methods": {"fedavg": {}, "fedgela": {"batch_size": 9}},
    }
    found = [runs.resolve(experiment) for experiment in experiments_of(table, [], "config").values()]
    assert [experiment.batch_size for experiment, _ in found] == [5, 9]
    assert [experiment.min_samples for experiment, _ in found] == [5, 5]
    assert torch.equal(*(federation.train_counts for _, federation in found))


def test_a_comparisons_folder_is_no_run_to_resume(npz: Path, tmp_path: Path, view: PlainView) -> None:
    run_comparison(npz, tmp_path, view, ("fedavg",))
    with pytest.raises(UserError, match="of a comparison or a search, repeat the command"):
        runs.resume(tmp_path)


def test_what_a_run_was_told_is_not_what_it_does_untold(npz: Path, tmp_path: Path, view: PlainView) -> None:
    run_comparison(npz, tmp_path, view, ("fedavg",), augment=True)
    with pytest.raises(UserError, match="holds a run with augment = True, not None"):
        run_comparison(npz, tmp_path, view, ("fedavg",))


def test_a_comparison_in_which_nothing_can_run_is_an_error_and_writes_nothing(
    npz: Path, tmp_path: Path, view: PlainView
) -> None:
    with pytest.raises(UserError, match="has no client ids"):
        run_comparison(npz, tmp_path / "out", view, ("fedavg", "local"), partition="natural", clients=None)
    assert not (tmp_path / "out").exists()


def test_settings_of_an_algorithm_table_reach_their_method(npz: Path) -> None:
    table = {**tiny_table(npz), "algorithm": {"name": "fedgela", "E_W": 3.0}}
    assert experiments_of(table, ["fedavg", "fedgela"], "config")["fedgela"].algorithm == FedGELA(E_W=3.0)
    unnamed = {**table, "algorithm": {"E_W": 3.0}}
    assert experiments_of(unnamed, ["fedge"], "config")["fedge"].algorithm == FedGE(E_W=3.0)
    with pytest.raises(UserError, match=r"write methods\.NAME\.KEY instead of algorithm\.KEY"):
        experiments_of(unnamed, ["fedavg", "fedge"], "config")


@pytest.mark.parametrize("name", ["seeds.toml", "table.json", "trials.json"])
def test_a_folder_of_several_runs_takes_no_single_run(npz: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("")
    with pytest.raises(UserError, match="this folder holds a"):
        runs.run(tiny(npz), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(("kind", "name"), list(itertools.permutations(SEVERAL, 2)))
def test_runs_of_two_kinds_do_not_share_a_folder(
    npz: Path, tmp_path: Path, view: PlainView, kind: str, name: str
) -> None:
    (tmp_path / name).write_text("")
    start = {
        "seeds.toml": lambda: run_seeds(tiny(npz), [0, 1], tmp_path, view),
        "table.json": lambda: run_comparison(npz, tmp_path, view, ("fedavg",)),
        "trials.json": lambda: tune({"fedavg": tiny(npz)}, [0], 1, 0.2, "GA", tmp_path, view),
    }[kind]
    with pytest.raises(UserError, match=r"this folder (already )?holds a"):
        start()
    assert [path.name for path in tmp_path.iterdir() if path.name != ".lock"] == [name]


def test_runs_of_other_lengths_do_not_stand_in_one_table(npz: Path, tmp_path: Path, view: PlainView) -> None:
    run_comparison(npz, tmp_path, view, ("fedavg",), rounds=1)
    comparison = run_comparison(npz, tmp_path, view, ("fedge",), rounds=2)
    assert [row.method for row in comparison.rows] == ["fedge"]
    comparison = run_comparison(npz, tmp_path, view, ("local",), rounds=2, data_dir=str(tmp_path))
    assert [row.method for row in comparison.rows] == ["fedge", "local"]


def test_a_diverged_run_is_marked(npz: Path, tmp_path: Path, view: PlainView) -> None:
    comparison = run_comparison(npz, tmp_path, view, ("fedavg",), lr=1e30)
    assert comparison.rows[0].results[0]["diverged_round"] == 1
    assert "| fedavg † |" in (tmp_path / "table.md").read_text()
    assert "†: the training loss became infinite or NaN" in (tmp_path / "table.txt").read_text()
    assert json.loads((tmp_path / "table.json").read_text())[0]["diverged_seeds"] == [0]


def test_what_only_concerns_the_hardware_may_change(npz: Path, tmp_path: Path, view: PlainView) -> None:
    run_comparison(npz, tmp_path, view, ("fedavg",))
    before = listing(tmp_path / "fedavg")
    comparison = run_comparison(npz, tmp_path, view, ("fedavg",), threads=2, checkpoint_every=7)
    assert comparison.rows[0].errors == {}
    assert listing(tmp_path / "fedavg") == before


def test_a_method_may_stand_in_a_comparison_twice(npz: Path) -> None:
    table = tiny(npz).model_dump() | {
        "methods": {"long": {"name": "fedgela", "E_W": 100.0}, "fedge": {"E_W": 4.0}}
    }
    experiments = experiments_of(table, [], "config")
    assert list(experiments) == ["long", "fedge"]
    assert experiments["long"].algorithm == ALGORITHMS["fedgela"](E_W=100.0)
    assert experiments["fedge"].algorithm == ALGORITHMS["fedge"](E_W=4.0)
