"""A run's folder: what is in it, what is refused, and several seeds."""

import contextlib
import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedgela import runs
from fedgela.algorithms import ALGORITHMS
from fedgela.compare import compare
from fedgela.errors import UserError
from fedgela.evaluation import best_and_last
from fedgela.files import read_tensors
from fedgela.progress import PlainView
from fedgela.runs import RunFolder
from fedgela.seeds import resume_seeds, run_seeds
from fedgela.server import Server
from helpers import Notes, listing, metrics_of, outcome_of, tiny, tiny_arrays

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


@pytest.mark.parametrize(
    ("part", "told"),
    [
        ("train", "classes that are tested, but that nobody has training samples of: cat"),
        ("test", "classes without a test sample are never measured, neither by GA nor by PA: cat"),
    ],
)
def test_classes_that_are_not_trained_on_or_not_tested_are_named(
    tmp_path: Path, part: str, told: str
) -> None:
    arrays = tiny_arrays()
    left = arrays[f"y_{part}"] != 2
    arrays |= {name: arrays[name][left] for name in (f"x_{part}", f"y_{part}")}
    np.savez(tmp_path / "gap.npz", **arrays, class_names=["ant", "bee", "cat", "dog"])
    listener = Notes()
    runs.run(tiny(tmp_path / "gap.npz", partition="iid", rounds=1), tmp_path / "run", listener)
    assert told in listener.notes


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


def test_seeds_go_on_from_any_folder(
    npz: Path, tmp_path: Path, view: PlainView, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(npz.parent)
    summary = run_seeds(tiny(Path(npz.name), rounds=1), [0, 1], tmp_path, view)
    monkeypatch.chdir(tmp_path)
    assert resume_seeds(tmp_path, view) == summary


def test_a_folder_of_seeds_is_refused(npz: Path, tmp_path: Path, view: PlainView) -> None:
    run_seeds(tiny(npz, rounds=1), [0, 1], tmp_path, view)
    before = listing(tmp_path)
    with pytest.raises(UserError, match="already holds a run"):
        run_seeds(tiny(npz), [0, 1], tmp_path, view)
    assert listing(tmp_path) == before


@pytest.mark.parametrize("seeds", [[], [0, 0], [-1]])
def test_seeds_are_different_numbers(npz: Path, tmp_path: Path, seeds: list[int]) -> None:
    told = re.escape(f"seeds: {seeds} must be different numbers from 0 on")
    with pytest.raises(UserError, match=told):
        run_seeds(tiny(npz), seeds, tmp_path / "out")
    with pytest.raises(UserError, match=told):
        compare({"fedgela": tiny(npz)}, seeds, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_impossible_seeds_leave_no_folder(npz: Path, tmp_path: Path, view: PlainView) -> None:
    # else the corrected command is refused: the folder "already holds a run"
    with pytest.raises(UserError):
        run_seeds(tiny(npz, partition="classes:5"), [0, 1], tmp_path / "a", view)
    assert not (tmp_path / "a").exists()
