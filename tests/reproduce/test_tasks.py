"""Cells are run once, stop within a budget, and go on where they stopped."""

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from fedgela import runs
from fedgela.config import Experiment
from fedgela.errors import UserError
from fedgela.evaluation import Record
from fedgela.listener import Listener
from fedgela.paper import experiment_of, find_cell
from fedgela.progress import View
from fedgela.reproduce import budget as budgets
from fedgela.reproduce import tasks
from fedgela.reproduce.adding import gather, recognise
from fedgela.reproduce.budget import Budget, OutOfBudget, WithinBudget
from fedgela.reproduce.ledger import Data, append, read_ledger
from fedgela.reproduce.settings import hash_of
from fedgela.reproduce.sizes import finetuning_rounds, images_of_a_round
from fedgela.reproduce.smoke import tiny_tasks
from fedgela.reproduce.tasks import Task, run_tasks
from fedgela.runfolder import RunFolder
from fedgela.runs import run
from helpers import outcome_of

CELL = "main/cifar10/full-dir0.1/fedgela"


def test_a_split_of_its_own_is_another_setting() -> None:
    experiment = experiment_of(find_cell(CELL)).with_(seed=1)
    hashes = {hash_of(experiment.with_(partition_seed=seed)) for seed in (None, 0, 2)}
    assert len(hashes) == 3
    assert hash_of(experiment.with_(partition_seed=1)) == hash_of(experiment)


class Clock:
    """Time that passes only when told."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(budgets, "time", clock)
    return clock


class Ticking(View):
    """Every round takes ten seconds."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(Console(file=io.StringIO()))
        self.clock = clock
        self.rounds: list[int] = []

    def round(self, record: Record) -> None:
        self.clock.now += 10
        self.rounds.append(record["round"])


def quiet() -> View:
    return View(Console(file=io.StringIO()))


def with_rounds(task: Task, rounds: int) -> Task:
    return Task(task.cell, task.experiment.with_(rounds=rounds))


def test_a_budget_stops_between_rounds_and_the_next_call_goes_on(
    tiny_data: Path, tmp_path: Path, clock: Clock
) -> None:
    whole = with_rounds(tiny_tasks([find_cell(CELL)], tiny_data)[0], 5)
    task = Task(whole.cell, whole.experiment.with_(checkpoint_every=1000))
    ledger, out = tmp_path / "ledger.jsonl", tmp_path / "runs"
    view = Ticking(clock)
    # the third round would end at 30 seconds
    first = run_tasks([task], out, ledger, view, Budget(29.0))
    assert view.rounds == [1, 2]
    assert (first.added, first.left) == ([], [task])
    assert "round 3 of 5 takes about 10 s" in first.stopped
    assert read_ledger(ledger) == []
    second = run_tasks([task], out, ledger, view, Budget(25.0))
    assert view.rounds == [1, 2, 3, 4]
    assert second.stopped
    third = run_tasks([task], out, ledger, view, Budget(25.0))
    assert view.rounds == [1, 2, 3, 4, 5]
    assert not third.stopped
    assert [entry.rounds_run for entry in third.added] == [5]
    # as if it had never been stopped, but for what the checkpoint before the last still refers to
    run(task.experiment, tmp_path / "whole")
    stopped, expected = outcome_of(task.folder(out)), outcome_of(tmp_path / "whole")
    assert stopped.pop("clients") > expected.pop("clients")
    assert stopped == expected


def test_a_run_that_was_killed_while_it_wrote_a_round_goes_on(
    tiny_data: Path, tmp_path: Path, clock: Clock
) -> None:
    task = with_rounds(tiny_tasks([find_cell(CELL)], tiny_data)[0], 3)
    ledger, out = tmp_path / "ledger.jsonl", tmp_path / "runs"
    assert run_tasks([task], out, ledger, Ticking(clock), Budget(25.0)).left == [task]
    with (task.folder(out) / "metrics.jsonl").open("a") as file:
        file.write('{"round": 3, "sec')
    outcome = run_tasks([task], out, ledger, quiet())
    assert (outcome.failed, len(outcome.added)) == ({}, 1)


def test_a_spent_budget_starts_nothing(tiny_data: Path, tmp_path: Path, clock: Clock) -> None:
    first, second = tiny_tasks([find_cell(CELL), find_cell("main/svhn/full-iid/fedgela")], tiny_data)
    out = tmp_path / "runs"

    class Late(Ticking):
        def finished(self, result: Record) -> None:
            self.clock.now += 10

    outcome = run_tasks([first, second], out, tmp_path / "ledger.jsonl", Late(clock), Budget(15.0))
    assert [entry.cells[0] for entry in outcome.added] == [CELL]
    assert outcome.left == [second]
    assert outcome.stopped == f"{second.label}: the budget is spent before it begins"
    assert not second.folder(out).exists()


@pytest.mark.parametrize(
    ("budget", "told"),
    [(11.0, "the budget is spent before round 1 of 5"), (30.0, "round 1 of 5 takes about 20 s, which")],
)
def test_a_budget_that_reading_the_data_takes_up_is_an_error(
    tiny_data: Path,
    tmp_path: Path,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    make_entry,
    budget: float,
    told: str,
) -> None:
    """It would never get on, however often it is repeated."""

    def slowly(*arguments: object) -> object:
        clock.now += 12
        return runs.run_or_resume(*arguments)

    monkeypatch.setattr(tasks, "run_or_resume", slowly)
    task = with_rounds(tiny_tasks([find_cell(CELL)], tiny_data)[0], 5)
    ledger, out = tmp_path / "ledger.jsonl", tmp_path / "runs"
    data = Data(name="svhn", fingerprint="f" * 16, shape=(3, 32, 32))
    line = {"device": task.device, "images_per_second": 10.0, "data": data}  # of the 200 of a round
    append(ledger, [make_entry("main/svhn/full-iid/fedgela", model=task.experiment.model, line=line)])
    view = Ticking(clock)
    with pytest.raises(UserError, match=rf"{told}.*a --budget above {budget:g} s gets on"):
        run_tasks([task], out, ledger, view, Budget(budget))
    assert view.rounds == []
    outcome = run_tasks([task], out, ledger, view, Budget(33.0))
    assert view.rounds == [1] and outcome.left == [task]


def test_fine_tuning_must_fit_too(clock: Clock) -> None:
    experiment = Experiment(algorithm="fedavg", clients=50, sample=10, rounds=1)  # type: ignore[arg-type]
    assert finetuning_rounds(experiment) == 10  # all clients, from the best model and the last
    listener = WithinBudget(Listener(), Budget(111.0), round_seconds=11.0)
    listener.started(experiment, done=0)
    clock.now = 11.0
    with pytest.raises(OutOfBudget, match="final models takes about 110 s"):
        listener.finishing()


def test_what_no_command_of_this_budget_could_do_is_an_error(clock: Clock) -> None:
    listener = WithinBudget(Listener(), Budget(10.0), round_seconds=11.0)
    with pytest.raises(UserError, match="round 1 of 2 takes about 11 s, more than the whole budget of 10 s"):
        listener.started(Experiment(rounds=2), done=0)
    listener.started(Experiment(rounds=2), done=2)  # nothing left to train


def test_runs_of_other_data_are_run_again(tiny_data: Path, tmp_path: Path) -> None:
    (task,) = tiny_tasks([find_cell(CELL)], tiny_data)
    ledger = tmp_path / "ledger.jsonl"
    (entry,) = run_tasks([task], tmp_path / "runs", ledger, quiet()).added
    assert task.done([entry])
    other = entry.model_copy(update={"data": entry.data.model_copy(update={"fingerprint": "f" * 16})})
    assert not task.done([other])
    elsewhere = Task(task.cell, task.experiment.with_(data_dir=str(tmp_path / "nothing")))
    assert elsewhere.done([other])  # without data nobody can tell


def test_a_budget_that_loading_has_used_up_is_said_to_be_spent(clock: Clock) -> None:
    listener = WithinBudget(Listener(), Budget(3.0))
    clock.now = 4.0
    with pytest.raises(OutOfBudget, match="the budget is spent before round 1 of 9"):
        listener.started(Experiment(rounds=9), done=0)


def test_what_a_round_asks_for_is_counted_in_the_data_at_hand(tiny_data: Path, tmp_path: Path) -> None:
    (task,) = tiny_tasks([find_cell(CELL)], tiny_data)
    assert images_of_a_round(task.experiment) == 200  # an epoch of all clients
    assert images_of_a_round(task.experiment.with_(data_dir=str(tmp_path / "nothing"))) == 50_000


def test_a_budget_is_not_held_against_a_guess(
    tiny_data: Path, tmp_path: Path, clock: Clock, make_entry
) -> None:
    """Images of another size that took long stop no run before its first round."""
    (task,) = tiny_tasks([find_cell(CELL)], tiny_data)
    ledger = tmp_path / "ledger.jsonl"
    for shape, fits in (((3, 99, 99), True), ((3, 32, 32), False)):
        data = Data(name="svhn", fingerprint="f" * 16, shape=shape)
        line = {"device": task.device, "images_per_second": 1.0, "data": data}
        slow = make_entry("main/svhn/full-iid/fedgela", model=task.experiment.model, line=line)
        ledger.unlink(missing_ok=True)
        append(ledger, [slow])
        outcome = run_tasks([task], tmp_path / f"{fits}", ledger, quiet(), Budget(60.0))
        assert bool(outcome.added) == fits


def test_one_failure_leaves_the_others(tiny_data: Path, tmp_path: Path) -> None:
    good, bad = tiny_tasks([find_cell(CELL), find_cell("main/svhn/full-iid/fedgela")], tiny_data)
    bad = Task(bad.cell, bad.experiment.with_(partition="natural"))  # svhn has no natural clients
    outcome = run_tasks([bad, good], tmp_path / "runs", tmp_path / "ledger.jsonl", quiet())
    assert list(outcome.failed) == [bad.label]
    assert len(outcome.added) == 1


def test_the_same_run_of_two_tables_is_done_once(tiny_data: Path, tmp_path: Path) -> None:
    both = [find_cell(CELL), find_cell("ablation/cifar10/full-dir0.1/fedgela")]
    tasks = tiny_tasks(both, tiny_data)
    outcome = run_tasks(tasks, tmp_path / "runs", tmp_path / "ledger.jsonl", quiet())
    assert (len(outcome.added), outcome.skipped) == (1, 1)
    assert {cell.id for cell in both} <= set(outcome.added[0].cells)
    entry = outcome.added[0]
    assert (entry.rounds_paper, entry.rounds_run) == (50, 1)
    assert entry.data.train == 200
    result = RunFolder(tasks[0].folder(tmp_path / "runs")).result()
    assert result is not None
    for metric in ("PA_balanced", "GA_balanced"):
        assert getattr(entry, metric).best == pytest.approx(result[metric]["best"], abs=0.001)
    assert str(tiny_data) not in entry.line()  # no paths of this machine


def test_what_another_process_added_meanwhile_is_counted_as_there(tiny_data: Path, tmp_path: Path) -> None:
    tasks, ledger = tiny_tasks([find_cell(CELL)], tiny_data), tmp_path / "ledger.jsonl"
    theirs = run_tasks(tasks, tmp_path / "theirs", tmp_path / "other.jsonl", quiet()).added

    class Slow(View):
        def finished(self, result: Record) -> None:
            append(ledger, theirs)

    outcome = run_tasks(tasks, tmp_path / "mine", ledger, Slow(Console(file=io.StringIO())))
    assert (outcome.added, outcome.skipped) == ([], 1)
    assert read_ledger(ledger) == theirs


# -- runs made elsewhere ---------------------------------------------------------------------------


def test_a_run_is_recognised_by_its_settings(tmp_path: Path) -> None:
    cell = find_cell("pcdd/cifar10/p10c2/fedgela")
    made = experiment_of(cell).with_(seed=3, min_samples=100, partition_seed=3, device="cpu", lanes=2)
    assert recognise(made, tmp_path).id == cell.id
    with pytest.raises(
        UserError, match=r"nearest is pcdd/cifar10/p10c2/fedgela: lr is 0\.02, not 0\.01\n.*--cell"
    ):
        recognise(made.with_(lr=0.02), tmp_path)
    short = experiment_of(find_cell(CELL)).with_(rounds=3)  # as near to Table 9, where rounds are more
    with pytest.raises(UserError, match=rf"nearest is {CELL}: rounds is 3, not 50\n"):
        recognise(short, tmp_path)


def test_folders_and_ledgers_are_gathered(tiny_data: Path, tmp_path: Path) -> None:
    cell = find_cell(CELL)
    (task,) = tiny_tasks([cell], tiny_data)
    run(task.experiment, tmp_path / "runs" / "a")
    unfinished = tmp_path / "runs" / "b"
    run(task.experiment.with_(seed=1), unfinished)
    (unfinished / "result.json").unlink()

    found, reasons = gather(tmp_path / "runs", [])
    assert found == []  # tiny runs are no cell of the paper
    assert "no cell of the paper is this run" in reasons[0]
    assert "not finished" in reasons[1]

    found, _ = gather(tmp_path / "runs" / "a", [], cell, "made-up images")
    assert found[0].cells[0] == cell.id
    assert found[0].data.variant == "made-up images"
    found, reasons = gather(tmp_path / "runs" / "a", [], find_cell(CELL.replace("fedgela", "fedavg")))
    assert found == [] and "is a run of fedgela, and cannot count for " in reasons[0]
    found, _ = gather(tmp_path / "runs" / "a", [], cell, "made-up images")
    append(tmp_path / "ledger.jsonl", found)
    assert gather(tmp_path / "ledger.jsonl", [])[0] == found
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no run in or below"):
        gather(tmp_path / "empty", [])
    with pytest.raises(UserError, match=r"nothing\.jsonl: there is no such file or folder"):
        gather(tmp_path / "nothing.jsonl", [])


@pytest.mark.parametrize(
    ("file", "content", "told"),
    [
        ("metrics.jsonl", '{"round', r"metrics\.jsonl: cannot be read \(Unterminated string"),
        ("metrics.jsonl", None, r"metrics\.jsonl: cannot be read .* No such file"),
        ("result.json", "{}", r"result\.json: has neither GA nor PA"),
    ],
)
def test_a_damaged_run_gives_no_line_and_leaves_the_others(
    tiny_data: Path, tmp_path: Path, file: str, content: str | None, told: str
) -> None:
    cell = find_cell(CELL)
    (task,) = tiny_tasks([cell], tiny_data)
    for name in ("damaged", "whole"):
        run(task.experiment, tmp_path / "runs" / name)
    damaged = tmp_path / "runs" / "damaged" / file
    damaged.unlink()
    if content is not None:
        damaged.write_text(content)
    found, reasons = gather(tmp_path / "runs", [], cell)
    assert len(found) == len(reasons) == 1
    assert re.search(told, reasons[0])


def test_a_tracked_run_serves_who_asks_for_less(tiny_data: Path, tmp_path: Path) -> None:
    angles, accuracy = find_cell("angles/cifar10/full-dir0.1/fedgela"), find_cell(CELL)
    tracked, plain = tiny_tasks([angles, accuracy], tiny_data)
    out = tmp_path / "runs"
    outcome = run_tasks([tracked], out, tmp_path / "one.jsonl", quiet())
    assert outcome.failed == {}
    assert {angles.id, accuracy.id} <= set(outcome.added[0].cells)
    assert outcome.added[0].angles["class_mean_angle_all_server"] is not None
    assert plain.folder(out) == tracked.folder(out)
    again = run_tasks([plain], out, tmp_path / "two.jsonl", quiet())  # only its line is missing
    assert len(again.added) == 1
    assert len(list(out.glob("*"))) == 1


def test_a_run_that_tracked_nothing_does_not_count_for_angles(tiny_data: Path, tmp_path: Path) -> None:
    (plain,) = tiny_tasks([find_cell(CELL)], tiny_data)
    outcome = run_tasks([plain], tmp_path / "runs", tmp_path / "ledger.jsonl", quiet())
    assert "angles/cifar10/full-dir0.1/fedgela" not in outcome.added[0].cells
    assert RunFolder(plain.folder(tmp_path / "runs")).result() is not None
