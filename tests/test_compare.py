"""Several methods on one federation: their table, what is run again, what is refused."""

import csv
import io
import itertools
import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from fedgela import resolve, runs
from fedgela.algorithms import ALGORITHMS
from fedgela.algorithms.fedgela import FedGE, FedGELA
from fedgela.compare import compare
from fedgela.data import load_dataset
from fedgela.errors import UserError
from fedgela.methods import experiments_of
from fedgela.progress import PlainView
from fedgela.runfolder import SEEDS, TABLE, TRIALS
from fedgela.runs import RunFolder
from fedgela.seeds import run_seeds
from fedgela.tables import Comparison
from fedgela.tune import tune
from helpers import listing, tiny, tiny_table


def run_comparison(
    npz: Path,
    out: Path,
    view: PlainView,
    names: tuple[str, ...],
    seeds: tuple[int, ...] = (0,),
    **changes: Any,
) -> Comparison:
    table = tiny(npz, **changes).model_dump()
    return compare(experiments_of(table, names, "config"), seeds, out, view)


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


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"partition": "iid"}, "its partition is 'iid', and that of mine 'dirichlet:0.5'"),
        ({"clients": 3}, "its clients is 3, and that of mine 4"),
        ({"partition_seed": 0}, "its partition_seed is 0, and that of mine None"),
        ({"batch_size": 2}, r"its min_samples \(unless set, batch_size\) is 2, and that of mine 5"),
    ],
    ids=str,
)
def test_nor_from_python_can_a_method_have_a_federation_of_its_own(
    npz: Path, tmp_path: Path, view: PlainView, changes: dict[str, Any], told: str
) -> None:
    mine = tiny(npz, partition="dirichlet:0.5")
    both = {"mine": mine, "other": mine.with_(**changes)}
    with pytest.raises(UserError, match=f"^other: methods share one federation, but {told}$"):
        compare(both, [0], tmp_path / "out", view)
    with pytest.raises(UserError, match=r"^other: methods share one federation"):
        tune(both, [0], 1, 0.2, "GA", tmp_path / "out", view)
    assert not (tmp_path / "out").exists()


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
    with pytest.raises(UserError, match=r"write methods\.NAME\.E_W, NAME one of fedavg, fedge"):
        experiments_of(unnamed, ["fedavg", "fedge"], "config")


@pytest.mark.parametrize("name", [SEEDS, TABLE, TRIALS])
def test_a_folder_of_several_runs_takes_no_single_run(npz: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("")
    with pytest.raises(UserError, match=r"this folder (already )?holds a"):
        runs.run(tiny(npz), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(("kind", "name"), list(itertools.permutations((SEEDS, TABLE, TRIALS), 2)))
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


def test_data_is_read_once_for_all_runs(
    npz: Path, tmp_path: Path, view: PlainView, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = []
    monkeypatch.setattr(resolve, "load_dataset", lambda *a, **k: read.append(a) or load_dataset(*a, **k))
    run_comparison(npz, tmp_path / "a", view, ("fedavg", "fedgela"), seeds=(0, 1))
    assert len(read) == 1
    run_comparison(npz, tmp_path / "b", view, ("fedavg",))  # by then the file may be another
    assert len(read) == 2


def test_runs_of_another_split_do_not_stand_in_one_table(npz: Path, tmp_path: Path, view: PlainView) -> None:
    run_comparison(npz, tmp_path, view, ("fedavg",), (0, 1), rounds=1, partition_seed=0)
    both = run_comparison(npz, tmp_path, view, ("fedge",), (0, 1), rounds=1, partition_seed=0)
    assert {row.method: sorted(row.results) for row in both.rows} == {"fedavg": [0, 1], "fedge": [0, 1]}
    other = run_comparison(npz, tmp_path, view, ("local",), (0, 1), rounds=1, partition_seed=7)
    assert [row.method for row in other.rows] == ["local"]


def test_data_that_has_changed_is_not_mixed_with_what_it_was(npz: Path, tmp_path: Path) -> None:
    told = io.StringIO()
    view = PlainView(Console(file=told, width=1000))
    own = tmp_path / "own.npz"
    arrays = dict(np.load(npz))
    np.savez(own, **arrays)
    run_comparison(own, tmp_path / "out", view, ("fedavg",), rounds=1)
    np.savez(own, **arrays | {"x_train": 255 - arrays["x_train"]})
    before = listing(tmp_path / "out")
    with pytest.raises(UserError, match=r"holds a run of other data: '.*own\.npz' has changed since"):
        run_comparison(own, tmp_path / "out", view, ("fedavg", "fedge"), rounds=1)
    assert listing(tmp_path / "out") == before
    alone = run_comparison(own, tmp_path / "out", view, ("fedge",), rounds=1)
    assert [row.method for row in alone.rows] == ["fedge"]
    assert "seed-0: is of other data of the same name, and is left out of the table" in told.getvalue()


def test_a_table_tells_what_is_not_the_same_for_all_methods(
    npz: Path, tmp_path: Path, view: PlainView
) -> None:
    own = {"fedavg": {"rounds": 1, "batch_size": 3}, "local": {"lr": 0.5}, "fedgela": {"E_W": 3.0}}
    table = tiny_table(npz, rounds=2) | {"methods": own}
    del table["algorithm"]
    compared = compare(experiments_of(table, [], "config"), [0], tmp_path / "own", view)
    told = (
        "; not the same for all methods: rounds 1 (fedavg), 2 (local, fedgela); "
        "batch_size 3 (fedavg), 5 (local, fedgela); lr 0.05 (fedavg, fedgela), 0.5 (local)"
    )
    assert told in compared.to_text()
    assert told in (tmp_path / "own/table.md").read_text()
    local = json.loads((tmp_path / "own/table.json").read_text())[1]
    assert local["settings"] == {"rounds": "2", "batch_size": "5", "lr": "0.5"}
    lines = list(csv.DictReader((tmp_path / "own/table.csv").open()))
    assert lines[1]["settings"] == "rounds 2; batch_size 5; lr 0.5"
    alike = compare(
        {name: tiny(npz, rounds=1, algorithm=name) for name in ("fedavg", "local")}, [0], tmp_path, view
    )
    assert "not the same" not in alike.to_text()
    assert all("settings" not in entry for entry in alike.to_json())


def test_a_table_tells_what_is_not_the_same_for_earlier_methods(
    npz: Path, tmp_path: Path, view: PlainView
) -> None:
    compare({"fedavg": tiny(npz, rounds=1, algorithm="fedavg")}, [0], tmp_path, view)
    same = compare({"fedgela": tiny(npz, rounds=1)}, [0], tmp_path, view)
    assert len(same.rows) == 2 and "not the same" not in same.to_text()
    other = compare({"local": tiny(npz, rounds=1, lr=0.5, algorithm="local")}, [0], tmp_path, view)
    assert "not the same for all methods: lr 0.05 (fedavg, fedgela), 0.5 (local)\n" in other.to_text()


def test_a_damaged_run_of_another_method_is_left_out(npz: Path, tmp_path: Path) -> None:
    told = io.StringIO()
    view = PlainView(Console(file=told, width=1000))
    run_comparison(npz, tmp_path, view, ("fedavg",), rounds=1)
    (tmp_path / "fedavg/seed-0/result.json").write_text("[]")
    assert [row.method for row in run_comparison(npz, tmp_path, view, ("fedge",), rounds=1).rows] == ["fedge"]
    assert "is left out of the table" in told.getvalue()


def test_a_methods_table_cannot_be_another_methods(npz: Path) -> None:
    table = tiny_table(npz) | {"methods": {"fedavg": {"algorithm": "fedprox"}}}
    with pytest.raises(UserError, match="algorithm"):
        experiments_of(table, [], "config")
