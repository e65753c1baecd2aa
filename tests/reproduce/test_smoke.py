"""Every cell of the paper can be run: shown at tiny size."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from fedgela.models import make_backbone
from fedgela.paper import Cell, cells, distinct, same_run
from fedgela.progress import View
from fedgela.reproduce.document import to_markdown
from fedgela.reproduce.ledger import read_ledger
from fedgela.reproduce.page import page
from fedgela.reproduce.smoke import DEEP, tiny_tasks
from fedgela.reproduce.tasks import run_tasks, tasks_of
from fedgela.resolve import resolve

CLASSES = {
    "svhn": 10,
    "cifar10": 10,
    "cifar100": 100,
    "fed-isic2019": 8,
    "femnist": 62,
    "shakespeare": 80,
}


def test_all_runs_are_experiments_at_full_size_and_tiny(tiny_data: Path) -> None:
    runs = distinct(cells())
    assert len(runs) == 577
    assert len({(task.hash, task.cell.measures == "burden") for task in tasks_of(runs, [0])}) >= 566
    for task in tiny_tasks(runs, tiny_data):
        assert task.experiment.rounds == 1
        assert task.experiment.clients == task.cell.config["clients"]
        assert task.experiment.projection == task.cell.config["projection"]
        assert task.experiment.partition == task.cell.config["partition"]


def test_every_partition_can_be_drawn_with_the_papers_clients(tiny_data: Path) -> None:
    seen = set()
    for task in tiny_tasks(distinct(cells()), tiny_data):
        e = task.experiment
        if (e.dataset, e.partition, e.clients) not in seen:
            seen.add((e.dataset, e.partition, e.clients))
            _, federation = resolve(e)
            assert federation.clients == e.clients
            assert federation.data.classes == CLASSES[e.dataset]
    assert len(seen) == 26


def test_the_nets_that_are_stood_in_for_can_be_made(tiny_data: Path) -> None:
    made = set()
    for cell in distinct(cells()):
        model = cell.config["model"]
        if model in DEEP and model not in made and model != "efficientnet-b0":  # the hub's
            _, federation = resolve(tiny_tasks([cell], tiny_data)[0].experiment)
            assert make_backbone(model, federation.data.spec).width > 0
            made.add(model)
    assert made == {"resnet18", "resnet50", "lstm"}


def one_of_each() -> list[Cell]:
    """Few cells whose runs cover every table with every one of its data sets and methods."""
    chosen, covered = [], set()
    for cell in cells():
        if kind(cell) not in covered:
            chosen.append(cell)
            covered |= {kind(other) for other in same_run(cell)}
    return chosen


def kind(cell: Cell) -> tuple[str, str, str]:
    return cell.table, cell.dataset, cell.method


def test_a_few_cells_cover_every_table_data_set_and_method() -> None:
    covered = {kind(other) for cell in one_of_each() for other in same_run(cell)}
    assert covered == {kind(cell) for cell in cells()}


# in parts, for processes to share
PARTS: dict[str, list[Cell]] = {}
for cell in one_of_each():
    PARTS.setdefault(f"{cell.table}/{cell.dataset}", []).append(cell)


@pytest.mark.parametrize("part", PARTS)
def test_cells_run_and_are_shown(part: str, tiny_data: Path, tmp_path: Path) -> None:
    chosen = PARTS[part]
    tasks = tiny_tasks(chosen, tiny_data)
    ledger = tmp_path / "ledger.jsonl"
    outcome = run_tasks(tasks, tmp_path / "runs", ledger, View(Console(file=io.StringIO())))
    assert outcome.failed == {}
    assert len(outcome.added) == len(chosen)
    entries = read_ledger(ledger)
    for cell in chosen:
        assert any(cell.id in entry.cells for entry in entries)
    shown = to_markdown(page(entries))
    if chosen[0].measures not in ("burden", "partition"):
        assert f"1 of {chosen[0].config['rounds']} rounds" in shown
    again = run_tasks(tasks, tmp_path / "runs", ledger, View(Console(file=io.StringIO())))
    assert (again.added, again.skipped) == ([], len(chosen))
