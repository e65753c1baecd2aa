"""fedgela reproduce, from the command line."""

import json
from functools import partial
from pathlib import Path

import pytest
import torch

from fedgela.config import Experiment
from fedgela.reproduce import tasks
from fedgela.reproduce.budget import OutOfBudget, WithinBudget
from fedgela.reproduce.ledger import Data, append, read_ledger
from fedgela.result import device_name
from helpers import Cli

ONE = ["main", "--dataset", "cifar10", "--setting", "full-dir0.1"]
QUICK = ["--set", "min_samples=0", "--set", "engine=eager", "--set", "threads=1"]


@pytest.fixture
def command(command: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """`fedgela reproduce` in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return partial(command, "reproduce")


MISTAKES = {
    "no table": (["mian"], "no table 'mian' .did you mean 'main'"),
    "nothing named": ([], "name a table, such as main"),
    "no such setting": (["main", "--setting", "ful-iid"], "no setting 'ful-iid' .did you mean 'full-iid'"),
    "no such method": (["main", "--methods", "fedge"], "main has no method 'fedge' .did you mean 'fedgen'"),
    "no such data set": (["isic", "--dataset", "cifar10"], "isic has no data set 'cifar10'"),
    "two at once": (["--list", "--table"], "--list and --table: one at a time"),
    "add nothing": (["--add"], "--add: name folders"),
    "add what is not there": (["--add", "nowhere"], "there is no such file or folder"),
    "cell alone": (["main", "--cell", "x"], "--cell goes with --add"),
    "no such cell": (["--add", ".", "--cell", "main/svhn/full-iid/fedgla"], "did you mean 'main/"),
    "no such key": ([*ONE, "--set", "ronds=1"], "no key 'ronds' .did you mean 'rounds'"),
    "no such model": (["main", "--plan", "--images-per-second", "resnet19=9"], "did you mean 'resnet18'"),
    "no rate": (["main", "--plan", "--images-per-second", "resnet18=fast"], "write model=value"),
    "one table's page": (["main", "--table"], "--table writes all tables on one page: leave out main"),
    "page in no folder": (["--table"], "is to be a file in a folder that exists"),
    "page of no ledger": (["--table", "--page", "page.md"], "ledger.jsonl: there is no run in this ledger"),
    "table of no ledger": (["--table", "--ledger", "ledgr.jsonl"], "--ledger: there is no file ledgr.jsonl"),
    "list of no ledger": (["--list", "--ledger", "ledgr.jsonl"], "--ledger: there is no file ledgr.jsonl"),
    "plan of no ledger": ([*ONE, "--plan", "--ledger", "ledgr.jsonl"], "--ledger: there is no file ledgr"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_a_line_or_two(mistake: str, command: Cli) -> None:
    arguments, complaint = MISTAKES[mistake]
    code, _, err = command(*arguments)
    assert code == 2
    assert complaint.replace(" .", " (") in err
    assert len(err.splitlines()) <= 2


def test_a_page_is_not_replaced_by_one_of_nothing(command: Cli, tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("mine")
    (tmp_path / "empty.jsonl").touch()
    for ledger in ([], ["--ledger", "empty.jsonl"], ["--ledger", "ledgr.jsonl"]):
        code, _, _ = command("--table", "--page", "page.md", "--html", "page.html", *ledger)
        assert code == 2
    assert (tmp_path / "page.md").read_text() == "mine" and not (tmp_path / "page.html").exists()


def test_a_damaged_ledger_is_told_before_anything_runs(command: Cli, tmp_path: Path) -> None:
    (tmp_path / "ledger.jsonl").write_text("{}\n")
    code, _, err = command(*ONE, "--ledger", "ledger.jsonl")
    assert code == 2
    assert "ledger.jsonl, line 1: damaged" in err
    assert not (tmp_path / "runs").exists()


def test_the_list_counts_cells_and_what_the_ledger_has(command: Cli, tmp_path: Path, make_entry) -> None:
    append(tmp_path / "results/ledger.jsonl", [make_entry("main/cifar10/full-dir0.1/fedavg")])
    code, out, _ = command("--list")
    assert code == 0
    (main,) = [line.split() for line in out.splitlines() if line.startswith("main ")]
    assert main[3:5] == ["198", "1"]
    assert "918 cells, 577 different runs, 1 of them in the ledger" in out
    _, out, _ = command("--list", "main")
    (setting,) = [line for line in out.splitlines() if line.startswith("cifar10 ") and "full-dir0.1" in line]
    assert "1 of 11" in setting
    assert "fedavg*, fedprox," in setting


def test_the_plan_is_images_over_images_per_second(command: Cli, tmp_path: Path, make_entry) -> None:
    arguments = [*ONE, "--methods", "fedavg,fedgela", "--plan", "--data-dir", tmp_path / "nothing"]
    _, out, _ = command(*arguments, "--images-per-second", "resnet18=100000")
    # 50 rounds of 10 epochs of 50,000 images, and two rounds' worth of fine-tuning for FedAvg
    assert "260 s  main/cifar10/full-dir0.1/fedavg seed 0" in out
    assert "250 s  main/cifar10/full-dir0.1/fedgela seed 0" in out
    assert "510 s in all for 2 runs" in out
    _, out, _ = command(*arguments)
    assert "2 cannot be told: --images-per-second resnet18=VALUE\n" in out
    append(tmp_path / "results/ledger.jsonl", [make_entry("main/cifar10/full-dir0.1/fedavg")])
    _, out, _ = command(*arguments)  # 70,000 images a second in the ledger, on another machine
    assert "in the ledger  main/cifar10/full-dir0.1/fedavg" in out
    assert "1 cannot be told" in out
    here = {"device": device_name(torch.device("cpu"))}
    append(
        tmp_path / "results/ledger.jsonl", [make_entry("main/cifar10/full-dir0.1/fedavg", seed=1, line=here)]
    )
    _, out, _ = command(*arguments, "--device", "cpu")
    assert "357 s  main/cifar10/full-dir0.1/fedgela" in out
    _, out, _ = command(*arguments, "--images-per-second", "resnet18=100000", "--set", "dataset=other.npz")
    assert "2 cannot be told: the data set 'other.npz' is not on this machine, to count its samples\n" in out
    assert not (tmp_path / "runs").exists()


def test_a_plan_takes_rates_of_like_runs_and_tells_them(command: Cli, tmp_path: Path, make_entry) -> None:
    """Small nets on images of several sizes, by several methods, on one machine."""

    def seen(cell: str, shape: tuple[int, ...], rate: float) -> None:
        here = {"device": device_name(torch.device("cpu")), "images_per_second": rate}
        data = Data(name=cell.split("/")[1], fingerprint="f" * 16, shape=shape)
        entry = make_entry(cell, seed=1, model="simple-cnn", line={**here, "data": data})
        append(tmp_path / "results/ledger.jsonl", [entry])

    def planned(methods: str) -> tuple[list[str], list[str]]:
        """Seconds, and what they rest on."""
        small = ["--set", "model=simple-cnn", "--device", "cpu", "--data-dir", tmp_path / "nothing"]
        code, out, _ = command(*ONE, "--methods", methods, "--plan", *small)
        assert code == 0
        lines = out.splitlines()
        return [line.split()[0] for line in lines if " seed 0" in line], lines[len(methods.split(",")) + 2 :]

    seen("realworld/femnist/natural/fedavg", (1, 28, 28), 100_000)
    seen("isic/fed-isic2019/natural/fedavg", (3, 200, 200), 100)
    # by the nearest size: 50 rounds of 10 epochs of 50,000 images
    seconds, told = planned("fedgela")
    assert seconds == [f"{25e6 / (100_000 * 28**2 / 32**2):.0f}"]
    assert told == [
        "fedgela, simple-cnn: by fedavg, 100,000 images of 1x28x28 a second; for 3x32x32 a guess, by the "
        "number of pixels"
    ]
    # runs with the same size of images, though of other data and methods, count for more
    for method, rate in (("fedavg", 40_000), ("fedprox", 50_000), ("moon", 10_000)):
        seen(f"main/svhn/full-dir0.1/{method}", (3, 32, 32), rate)
    seconds, told = planned("fedgela,moon")
    assert seconds == ["2600", "625"]  # MOON is fine-tuned
    assert told == [
        "moon, simple-cnn: by its one run, 10,000 images of 3x32x32 a second",
        "fedgela, simple-cnn: by 3 other methods, 10,000 to 50,000 images of 3x32x32 a second",
    ]


def test_cells_of_several_tables_at_once(command: Cli) -> None:
    chosen = ["main", "ablation", *ONE[1:], "--methods", "fedavg,fedge", "--plan"]
    _, out, _ = command(*chosen, "--images-per-second", "resnet18=100000")
    assert "the same run  ablation/cifar10/full-dir0.1/fedavg" in out
    assert "s  ablation/cifar10/full-dir0.1/fedge" in out


def test_a_cell_runs_is_skipped_and_shown(command: Cli, tmp_path: Path, tiny_data: Path) -> None:
    (tmp_path / "docs").mkdir()
    small = ["--rounds", 2, "--set", "epochs=1", "--set", "model=simple-cnn", *QUICK]
    arguments = [
        *ONE,
        "--methods",
        "fedgela",
        "--seeds",
        "0,1",
        *small,
        "--data-dir",
        tiny_data,
        "--device",
        "cpu",
    ]
    code, out, _ = command(*arguments, "--data-note", "noise")
    assert code == 0
    assert "main/cifar10/full-dir0.1/fedgela seed 1  PA best" in out
    assert "2 added to results/ledger.jsonl, 0 there already" in out
    entries = read_ledger(tmp_path / "results/ledger.jsonl")
    assert [entry.seed for entry in entries] == [0, 1]
    assert (
        len(list((tmp_path / "runs/reproduce").glob("cifar10-full-dir0.1-fedgela-*/seed-*/result.json"))) == 2
    )
    code, out, _ = command(*arguments)
    assert "0 added to results/ledger.jsonl, 2 there already" in out
    code, out, _ = command("--table", "--html", "page.html")
    assert code == 0
    text = (tmp_path / "docs/reproduction.md").read_text()
    assert "1. 2 of 50 rounds; model = simple-cnn, not resnet18; " in text
    assert "data: noise" in text
    assert "<table>" in (tmp_path / "page.html").read_text()
    code, out, _ = command(
        *ONE,
        "--methods",
        "fedgela",
        "--data-dir",
        tmp_path / "nowhere",
        "--device",
        "cpu",
        "--set",
        "dataset=nothing",
    )
    assert code == 1  # a failed run is told, and is no line
    assert "failed: main/cifar10/full-dir0.1/fedgela seed 0: dataset: 'nothing'" in out


def test_a_command_stopped_by_its_budget_says_so(
    command: Cli, tiny_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = [*ONE, "--methods", "fedgela", "--data-dir", tiny_data, "--device", "cpu"]
    code, _, err = command(*chosen, "--budget", 0)
    assert code == 2
    assert "the budget is spent before it begins" in err and "a --budget above 0 s gets on" in err

    def stopped(experiment: Experiment, folder: Path, listener: WithinBudget) -> None:
        listener.budget.advanced = True
        raise OutOfBudget("there is no time left")

    monkeypatch.setattr(tasks, "run_or_resume", stopped)
    code, out, _ = command(*chosen, "--budget", 1000)
    assert code == 3  # so that a loop knows
    assert "there is no time left; the same command goes on, 1 left" in out


def test_a_ledger_that_cannot_be_written_to_is_told_before_training(
    command: Cli, tiny_data: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    chosen = [*ONE, "--methods", "fedgela", "--data-dir", tiny_data, "--device", "cpu"]
    code, _, err = command(*chosen, "--ledger", tmp_path / "file/ledger.jsonl")
    assert code == 2
    assert "ledger.jsonl: cannot be " in err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("change", ["algorithm=fedavg", "algorithm.name=fedavg"])
def test_a_cells_method_is_its_own(command: Cli, change: str) -> None:
    code, _, err = command(*ONE, "--methods", "fedgela", "--set", change)
    assert code == 2
    assert f"--set {change}: a cell's method is chosen by --methods" in err


def test_an_ablation_is_not_fedgela(command: Cli) -> None:
    code, _, err = command(*ONE, "--methods", "fedgela", "--set", "algorithm.adapt=false")
    assert code == 2
    assert "another method: --methods fedge" in err


def test_a_page_does_not_replace_the_ledger(command: Cli, tmp_path: Path, make_entry) -> None:
    ledger = tmp_path / "ledger.jsonl"
    append(ledger, [make_entry("main/cifar10/full-dir0.1/fedavg")])
    before = ledger.read_bytes()
    (tmp_path / "link.md").symlink_to(ledger)
    for option, page in (("--page", "ledger.jsonl"), ("--page", "link.md"), ("--html", "ledger.jsonl")):
        code, _, err = command("--table", "--ledger", ledger, option, page)
        assert code == 2
        assert f"{option}: " in err and "is read by this command, and would be overwritten" in err
    code, _, err = command("--table", "--ledger", ledger, "--page", "x.md", "--html", "x.md")
    assert code == 2
    assert "--page and --html are the same file" in err
    assert ledger.read_bytes() == before and not (tmp_path / "x.md").exists()


def test_a_line_of_a_cell_that_the_paper_has_not_is_told(command: Cli, tmp_path: Path, make_entry) -> None:
    strange = make_entry("main/cifar10/full-dir0.1/fedavg", line={"cells": ("main/cifar10/iid/fedfoo",)})
    append(tmp_path / "a.jsonl", [make_entry("main/cifar10/full-dir0.1/fedavg"), strange])
    code, _, err = command("--table", "--ledger", "a.jsonl", "--page", "a.md")
    assert code == 0
    assert "a.jsonl: the paper has no cell 'main/cifar10/iid/fedfoo'; left out" in err
    assert "fedfoo" not in (tmp_path / "a.md").read_text()


def test_smoke_of_a_part(command: Cli) -> None:
    code, out, _ = command("phi", "--smoke", "--methods", "fedgela-exp", "--setting", "full-iid,full-dir0.1")
    assert code == 0
    assert "of 2 runs 0 failed" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["main", "--html", "x.html"], "--html goes with --table, not with a run"),
        (["--table", "--seeds", "1"], "--seeds goes with a run or --plan, not with --table"),
        (["--smoke", "main", "--budget", "9"], "--budget goes with a run or --plan, not with --smoke"),
        (["--smoke", "main", "--ledger", "x"], "--ledger goes with a run or --plan or --list or "),
        (["main", "--images-per-second", "resnet18=1"], "--images-per-second goes with --plan"),
    ],
)
def test_an_option_that_does_nothing_is_refused(command: Cli, arguments: list[str], said: str) -> None:
    code, _, err = command(*arguments)
    assert code == 2
    assert said in err


def test_the_list_is_of_what_is_chosen(command: Cli) -> None:
    _, out, _ = command("--list", "main", "--dataset", "svhn", "--methods", "fedavg")
    assert "cifar10" not in out
    assert "fedprox" not in out
    assert "0 of 1 " in out


def test_lines_of_other_ledgers_must_be_of_cells(command: Cli, tmp_path: Path, make_entry) -> None:
    good = make_entry("main/cifar10/full-dir0.1/fedavg")
    strange = good.model_copy(update={"cells": ("foo/bar/baz/qux",)})
    (tmp_path / "other.jsonl").write_text(good.line() + strange.line())
    code, out, _ = command("--add", "other.jsonl")
    assert code == 1
    assert "added: main/cifar10/full-dir0.1/fedavg seed 0" in out
    assert "the paper has no cell 'foo/bar/baz/qux'" in out
    code, _, err = command("--add", "other.jsonl", "--data-note", "noise")
    assert code == 2
    assert "--cell and --data-note are for runs" in err
    nothing = json.loads(good.line()) | {"cells": []}
    (tmp_path / "other.jsonl").write_text(json.dumps(nothing) + "\n")
    code, _, err = command("--add", "other.jsonl")
    assert code == 2
    assert "other.jsonl, line 1: damaged, or no line of a ledger (cells: " in err
