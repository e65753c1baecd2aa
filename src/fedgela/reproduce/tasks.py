"""Runs of cells: which there are to do, and doing them one after another into folders and the ledger.

OUT/DATASET-SETTING-METHOD-HASH/seed-0/    a run's folder, found by the hash of its settings
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedgela.config import Experiment, parse_experiment, set_key
from fedgela.errors import UserError
from fedgela.failures import forget_failure, keep_failure
from fedgela.paper import Cell
from fedgela.progress import View
from fedgela.reproduce.budget import Budget, OutOfBudget, WithinBudget, slowest
from fedgela.reproduce.counting import cells_of
from fedgela.reproduce.entries import entry_of_run, federation_at_hand
from fedgela.reproduce.ledger import Entry, append, read_ledger, with_variant
from fedgela.reproduce.measurements import REPETITIONS, measure_burden, measure_partition
from fedgela.reproduce.rates import Rates
from fedgela.reproduce.settings import hash_of, method_of
from fedgela.reproduce.sizes import images_of_a_round
from fedgela.resolve import data_read_once, device_of
from fedgela.result import device_name
from fedgela.runfolder import METRICS, RunFolder
from fedgela.runs import run_or_resume
from fedgela.saved.runs import read_records

TRACKED_SUFFIX = "-tracked"  # of a folder whose run records more than others of the same settings


@dataclass(frozen=True)
class Task:
    cell: Cell
    experiment: Experiment  # with the changes that the command asks for
    repetitions: int = REPETITIONS  # of a measurement of time

    @property
    def hash(self) -> str:
        return hash_of(self.experiment)

    @property
    def seed(self) -> int:
        return self.experiment.seed

    @property
    def device(self) -> str:
        """By the name that the ledger has it by."""
        return device_name(device_of(self.experiment.device))

    @property
    def label(self) -> str:
        return f"{self.cell.id} seed {self.seed}"

    def done(self, entries: Iterable[Entry]) -> bool:
        """Whether the ledger has it, of the data that is at hand, if any is. Settings alone do not tell: they
        are also those of a run that did not record the angles that the cell is about."""
        lines = [
            entry
            for entry in entries
            if self.cell.id in cells_of(entry)
            and entry.seed == self.seed
            and self.experiment.precision in (None, entry.precision)
            and entry.settings_hash() == self.hash
        ]
        federation = federation_at_hand(self.experiment) if lines else None
        if federation is None:
            return bool(lines)
        return any(line.data.fingerprint == federation.data.fingerprint for line in lines)

    def folder(self, out: Path) -> Path:
        """Where the run lies, perhaps by the name of another table's cell, or where it is to be."""
        tracked = bool(self.experiment.track)
        endings = [TRACKED_SUFFIX] if tracked else ["", TRACKED_SUFFIX]
        for ending in endings:
            for path in sorted(out.glob(f"*-{self.hash}{ending}")):
                held = RunFolder(path / f"seed-{self.seed}")
                # what tracked more gives all that is asked for, but only once it is finished
                if held.exists() and (tracked == bool(ending) or held.result() is not None):
                    return held.path
        cell = self.cell
        name = f"{cell.dataset}-{cell.setting}-{cell.method}-{self.hash}{endings[0]}"
        return out / name / f"seed-{self.seed}"


Change = Callable[[dict[str, Any]], None]


def tasks_of(
    cells: Sequence[Cell],
    seeds: Sequence[int],
    changes: Sequence[str] = (),
    change: Change = lambda table: None,
) -> list[Task]:
    """Seed by seed, so that what a budget cuts short is still fair to all methods. `changes` are key=value
    as of --set; `change` does as it likes to a cell's table."""
    tasks = []
    for seed in seeds:
        for cell in cells:
            table: dict[str, Any] = {**cell.config, "seed": seed}
            if needs_tracking(cell):
                table["track"] = "angles"
            change(table)
            for assignment in changes:
                if assignment.partition("=")[0].strip() in ("algorithm", "algorithm.name"):
                    raise UserError(f"--set {assignment}: a cell's method is chosen by --methods")
                set_key(table, assignment)
            experiment = parse_experiment(table, cell.id)
            method = method_of(experiment)
            if method != cell.config["algorithm"]["name"]:
                raise UserError(f"{' '.join(changes)}: makes {cell.id} another method: --methods {method}")
            tasks.append(Task(cell, experiment))
    return tasks


def needs_tracking(cell: Cell) -> bool:
    """Angles of class means are recorded only where a run is asked to, those of classifiers always."""
    return cell.measures == "angles" and any(name.startswith("class_mean") for name in cell.metrics)


@dataclass
class Outcome:
    """What became of a command's tasks."""

    added: list[Entry] = field(default_factory=list)
    skipped: int = 0  # in the ledger already
    failed: dict[str, str] = field(default_factory=dict)  # label -> why
    left: list[Task] = field(default_factory=list)  # for the next command
    stopped: str = ""  # by the budget, why


@data_read_once()
def run_tasks(
    tasks: Sequence[Task],
    out: Path,
    ledger: Path,
    view: View,
    budget: Budget | None = None,
    variant: str | None = None,
) -> Outcome:
    """Do what the ledger lacks, and add each line as soon as it is there. A UserError where the budget ends
    before anything was done. `variant` is what differs in the data from what the paper names."""
    budget = budget or Budget(None)
    outcome = Outcome()
    rates = Rates(read_ledger(ledger), tasks[0].device if tasks else "")
    for number, task in enumerate(tasks):
        view.label = task.label
        held = read_ledger(ledger)  # other processes add to it too
        if task.done(held):
            outcome.skipped += 1
        else:
            try:
                budget.require(0, "it begins")
                entry = with_variant(_do(task, out, view, budget, rates), variant, held)
            except OutOfBudget as stop:
                if not budget.advanced:
                    raise UserError(
                        f"{task.label}: {stop}; reading the data and starting took too much of it, and would "
                        f"again: a --budget above {budget.seconds:g} s gets on"
                    ) from None
                outcome.stopped, outcome.left = f"{task.label}: {stop}", list(tasks[number:])
                break
            except Exception as error:
                outcome.failed[task.label] = keep_failure(error, task.folder(out), view.note)
            else:
                added = append(ledger, [entry])
                outcome.added += added
                outcome.skipped += not added  # another process was faster
                budget.advanced = True
                rates.learn(entry)
                forget_failure(task.folder(out))
        view.advance()
    view.label = ""
    return outcome


def _do(task: Task, out: Path, view: View, budget: Budget, rates: Rates) -> Entry:
    if task.cell.measures == "burden":
        return measure_burden(task.cell, task.experiment, task.repetitions)
    folder = task.folder(out)
    if task.cell.measures == "partition":
        return measure_partition(task.cell, task.experiment, folder)
    listener = WithinBudget(view, budget, _round_seconds(task, folder, rates))
    if not (folder.parent.name.endswith(TRACKED_SUFFIX) and RunFolder(folder).result() is not None):
        run_or_resume(task.experiment, folder, listener)
    entry = entry_of_run(folder, task.cell)
    if task.cell.id not in entry.cells:
        raise UserError(
            f"{task.cell.id}: the run did not record {', '.join(task.cell.metrics)}, "
            "which this table is about"
        )
    return entry


def _round_seconds(task: Task, folder: Path, rates: Rates) -> float | None:
    """What a round is expected to take: as the rounds before, or as images of this size took elsewhere."""
    # a line cut off by a kill is left out: the run itself mends that
    held = read_records(folder / METRICS, lambda text: None)
    if seconds := [record["seconds"] for record in held if "seconds" in record]:
        return slowest(seconds)
    images, rate = images_of_a_round(task.experiment), rates.of(task.experiment)
    return None if images is None or rate is None or rate.is_guess else images / rate.images_per_second
