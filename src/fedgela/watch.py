"""`fedgela watch`: how far the runs in a folder have come, as their files say."""

import contextlib
import json
import statistics
import time
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from fedgela.errors import UserError, first_line
from fedgela.evaluation import Record, best_and_last
from fedgela.failures import ERROR
from fedgela.runfolder import ASKED, METRICS, SEEDS, TABLE, RunFolder
from fedgela.saved.runs import Run, failed_runs, read_records, read_result, run_folders

RECENT = 10  # the last rounds, from which the time of a round is estimated
QUIET = 15.0  # seconds without any process after which the command on several runs is taken to have ended

Stage = Literal["running", "finishing", "finished", "damaged", "stopped", "failed"]


@dataclass(frozen=True, kw_only=True)
class Seen(Run):
    """A run at one moment, called by its folder, relative to the one that is watched."""

    stage: Stage
    checkpoints: dict[int, float]  # by round, the time of writing; the newest last

    @property
    def alive(self) -> bool:
        return self.stage in ("running", "finishing")

    @property
    def seconds_a_round(self) -> float | None:
        held = [r["seconds"] for r in self.records[-RECENT:] if isinstance(r.get("seconds"), int | float)]
        return statistics.median(held) if held else None

    @property
    def seconds_left(self) -> float | None:
        """Until the last round; fine-tuning takes more time after it."""
        each = self.seconds_a_round
        return None if each is None else each * (self.experiment.rounds - self.rounds_done)

    @property
    def loss(self) -> float | None:
        """The training loss of the last round that has one."""
        held = (r["train_loss"] for r in reversed(self.records) if r.get("train_loss") is not None)
        return next(held, None)

    def accuracies(self) -> dict[str, Record]:
        """Best and last values with their rounds, from the result or the rounds so far, by label: of GA, and
        of PA or, until a fine-tuned PA is known, of the local models. What is not known is left out."""
        held = self.result or {}
        found = {
            label: held.get(name) or best_and_last(self.records, name)
            for label, name in (("GA", "GA"), ("PA", "PA"), ("local", "local_accuracy"))
        }
        del found["local" if found["PA"] else "PA"]
        return {label: summary for label, summary in found.items() if summary is not None}


@dataclass
class Look:
    """All that a folder shows at one moment."""

    runs: list[Seen] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)  # those whose turn has not come
    notes: list[str] = field(default_factory=list)  # what is damaged, each with its file
    more_may_come: bool = False  # whether further runs may begin

    @property
    def alive(self) -> bool:
        return any(run.alive for run in self.runs)


class Watcher:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._held: dict[Path, tuple[object, list[Record], list[str]]] = {}

    def look(self) -> Look:
        """Read the folder. A UserError where it has no run, or none that can be read."""
        found = Look()
        problems: list[UserError] = []
        for folder in run_folders(self.path):
            try:
                found.runs.append(self._see(RunFolder(folder), found.notes))
            except UserError as error:
                problems.append(error)
        if not found.runs:
            raise problems[0]
        found.notes += [first_line(problem) for problem in problems]
        there = {run.name for run in found.runs}
        for method, seed, why in failed_runs(self.path / TABLE):
            if (name := f"{method}/seed-{seed}") not in there:  # it failed before it had a folder
                there.add(name)
                found.notes.append(f"{method}, seed {seed}: failed: {why}")
        asked = self._asked()
        found.waiting = [name for name in asked if name not in there]
        # a search does not say how many runs it will have; no further run begins after one that was stopped
        several = bool(found.waiting) or (not asked and all(run.path != self.path for run in found.runs))
        found.more_may_come = several and all(
            run.stage in ("finished", "damaged", "failed") for run in found.runs
        )
        return found

    def _see(self, folder: RunFolder, notes: list[str]) -> Seen:
        experiment = folder.experiment()
        # look at the lock before the result: a run that ends in between is then seen as finished, not stopped
        alive = folder.is_locked()
        unusable: list[str] = []  # what is wrong with the result
        result = read_result(folder, unusable.append)
        records, damaged = self._records(folder.path / METRICS, alive)
        notes += unusable + damaged
        done = int(records[-1]["round"]) if records else 0
        stage: Stage
        if result is not None:
            stage = "finished"
        elif alive:
            stage = "running" if done < experiment.rounds else "finishing"
        elif unusable:
            stage = "damaged"
        else:
            stage = "failed" if (folder.path / ERROR).exists() else "stopped"
        inside = folder.path.relative_to(self.path)
        name = str(inside) if inside.parts else folder.path.resolve().name
        return Seen(
            folder.path,
            name,
            experiment,
            records,
            result,
            stage=stage,
            checkpoints=folder.checkpoints.times(),
        )

    def _records(self, path: Path, alive: bool) -> tuple[list[Record], list[str]]:
        """The rounds in a metrics file, and notes of damage; read again only if the file has changed."""
        try:
            now = path.stat()
        except OSError:
            return [], []
        key = (now.st_mtime_ns, now.st_size, alive)
        if path not in self._held or self._held[path][0] != key:
            notes: list[str] = []
            records = read_records(path, notes.append, being_written=alive)
            self._held[path] = (key, records, notes)
        _, records, notes = self._held[path]
        return records, notes

    def _asked(self) -> list[str]:
        """The names of all runs that there will be, of several seeds or a comparison; empty if not known."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            seeds = tomllib.loads((self.path / SEEDS).read_text())["seeds"]
            return [f"seed-{int(seed)}" for seed in seeds]
        with contextlib.suppress(OSError, ValueError, TypeError):
            return [str(name) for name in json.loads((self.path / ASKED).read_text())]
        return []


def follow(watcher: Watcher, show: Callable[[Look], None], every: float) -> None:
    """Show the folder again and again until no process works in it any more. Between two of several runs none
    does for a while, so the end is only certain after some time without any."""
    last_alive = None
    while True:
        look = watcher.look()
        show(look)
        if look.alive:
            last_alive = time.monotonic()
        elif last_alive is None or not look.more_may_come or time.monotonic() - last_alive > QUIET:
            return
        time.sleep(every)
