"""Finds runs in folders and reads them. What is damaged is noted by its file, and the rest is read."""

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fedgela.algorithms import name_of
from fedgela.config import Experiment
from fedgela.data.sources import place_of
from fedgela.errors import UserError, first_line
from fedgela.evaluation import Record, diverged
from fedgela.flower import FEDERATION
from fedgela.runfolder import CONFIG, METRICS, TABLE, RunFolder
from fedgela.saved.sites import Sites, read_sites

DEPTH = 4  # folders below the one that is given: a folder of comparisons has runs at 3
Note = Callable[[str], None]


@dataclass(frozen=True)
class Run:
    """One seed of one method, as far as it has come."""

    path: Path
    name: str  # what it is called: the method's folder in a comparison, else the method
    experiment: Experiment
    records: list[Record]
    result: Record | None  # None: not finished
    sites: Sites | None = None  # None: a local run

    @property
    def seed(self) -> int:
        return self.experiment.seed

    @property
    def rounds_done(self) -> int:
        return int(self.records[-1]["round"]) if self.records else 0

    @cached_property
    def data_fingerprint(self) -> str | None:
        """Of the data that it was trained on; None where neither the result nor a checkpoint has it."""
        told = (self.result or {}).get("data_fingerprint")
        return told or RunFolder(self.path).checkpoints.data_fingerprint()

    @property
    def files(self) -> list[Path]:
        """What nobody may overwrite: the run's own files, and the data that it was trained on."""
        e, folder = self.experiment, RunFolder(self.path)
        data = place_of(e.dataset, e.data_dir, e.image_size) if self.sites is None else None
        return [*folder.own, *([data] if data is not None else [])]

    @property
    def diverged_round(self) -> int | None:
        """The first round whose training loss was no finite number."""
        lost = (record["round"] for record in self.records if diverged(record))
        return (self.result or {}).get("diverged_round") or next(lost, None)


def find_runs(paths: Sequence[Path], note: Note) -> list[Run]:
    """Every run in these folders, each once. A UserError where a folder holds none; a run that cannot be
    read is noted and left out, unless it is the only one."""
    runs: list[Run] = []
    seen: set[Path] = set()
    problems: list[UserError] = []
    for path in paths:
        folders = run_folders(path)
        for folder in folders:
            if folder.resolve() in seen:
                continue
            seen.add(folder.resolve())
            try:
                runs.append(_read(folder, note))
            except UserError as error:
                problems.append(error)
    if not runs:
        raise problems[0]
    for problem in problems:
        note(first_line(problem))
    for table in dict.fromkeys(run.path.parent.parent / TABLE for run in runs):
        for method, seed, why in failed_runs(table):
            note(f"{method}, seed {seed}: failed: {why}")
    return runs


def run_folders(path: Path) -> list[Path]:
    """The folders of all runs below one, in order; a UserError where there is none."""
    if not path.exists():
        # a run on one seed lies in its folder itself, one on several in seed-0, seed-1, ...
        is_run = path.name.startswith("seed-") and (path.parent / CONFIG).exists()
        hint = f"; {path.parent} is a run by itself" if is_run else ""
        raise UserError(f"{path}: there is no such folder{hint}")
    if not path.is_dir():
        raise UserError(f"{path}: is a file, not the folder of a run")
    try:
        found = sorted(_descend(path, DEPTH), key=_in_order)
    except OSError as error:
        raise UserError(f"{error.filename}: cannot be read ({error.strerror})") from None
    if not found:
        raise UserError(f"{path}: there is no run in this folder (no {CONFIG})")
    return found


def _descend(path: Path, depth: int) -> Iterator[Path]:
    if (path / FEDERATION).exists() and (path / "runs").is_dir():
        path = path / "runs"  # beside them are Flower's own files
    if RunFolder(path).exists():
        yield path
    elif depth:
        for inner in os.scandir(path):
            if inner.is_dir(follow_symlinks=False) and not inner.name.startswith("."):
                yield from _descend(Path(inner.path), depth - 1)


def _in_order(path: Path) -> list[tuple[int, str]]:
    """A sort key by which seed-10 comes after seed-9."""
    return [(int(n), "") if n.isdecimal() else (-1, n) for n in re.split(r"(\d+)", str(path))]


def _read(path: Path, note: Note) -> Run:
    folder = RunFolder(path)
    experiment = folder.experiment()
    result = read_result(folder, note)
    name = name_of(experiment.algorithm).rpartition(":")[2]
    # OUT/METHOD/seed-S: the table of a comparison stands beside METHOD
    if path.name == f"seed-{experiment.seed}" and (path.parent.parent / TABLE).exists():
        name = path.parent.name
    records = read_records(path / METRICS, note)
    rounds = [record["round"] for record in records]
    if len(set(rounds)) < len(rounds):
        note(f"{path / METRICS}: holds a round twice")
    elif result is not None and len(rounds) < experiment.rounds:
        note(f"{path / METRICS}: holds {len(rounds)} of the run's {experiment.rounds} rounds")
    return Run(path, name, experiment, records, result, read_sites(path, note))


def read_result(folder: RunFolder, note: Note) -> Record | None:
    """A run's result, or None: where there is none yet, or where it cannot be used, which is noted."""
    try:
        return folder.result()
    except UserError as error:
        note(f"{error}; the run is shown as unfinished")
        return None


def read_records(path: Path, note: Note, being_written: bool = False) -> list[Record]:
    """The records of a metrics.jsonl, one a round; other lines are noted by number. In a file that is being
    written, a last line without a newline is incomplete, and is left out."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return []
    except OSError as error:
        note(f"{path}: cannot be read ({error.strerror})")
        return []
    if being_written:
        text = text[: text.rfind("\n") + 1]
    records: list[Record] = []
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if isinstance(record, dict) and isinstance(record.get("round"), int):
            records.append(record)
        else:
            note(f"{path}, line {number}: is no round's record; it is left out")
    return records


def failed_runs(table: Path) -> list[tuple[str, str, str]]:
    """The failed runs that a comparison's table names, as (method, seed, error): a run may have failed before
    it had a folder."""
    try:
        rows = json.loads(table.read_text())
        return [(row["algorithm"], *item) for row in rows for item in row.get("errors", {}).items()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []  # no comparison, or a table of something else
