"""A run's folder on disk.

config.toml      the resolved experiment
own_code.json    checksums of a user's own method and net, where it has any
metrics.jsonl    one line a round, appended
checkpoints/     the last two (checkpoints.py)
clients/         the last local models, those that a checkpoint refers to
models/          the finished global model, of the last round and of the best GA
result.json      written last: a folder that has it is a finished run
"""

import contextlib
import fcntl
import json
import os
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from fedgela.checkpoints import Checkpoints
from fedgela.config import Experiment, parse_experiment, read_toml
from fedgela.errors import UserError
from fedgela.evaluation import Record
from fedgela.files import TEMPORARY, named, write_atomically, write_json
from fedgela.own_code import OWN_CODE, own_code

CONFIG, METRICS, RESULT, LOCK = "config.toml", "metrics.jsonl", "result.json", ".lock"
# a folder of several runs, on several seeds, of a comparison or of a search, has one of these
SEEDS, TABLE, TRIALS = "seeds.toml", "table.json", "trials.json"
ASKED = "asked.json"  # beside a comparison's table: its runs' folders, in the order of the runs
LOCK_WAITS = (0.0, 0.05, 0.1)  # seconds before each try: is_locked elsewhere holds it for an instant


class RunFolder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.clients = path / "clients"
        self.models = path / "models"
        self.checkpoints = Checkpoints(path / "checkpoints", self.clients, path / METRICS)

    def exists(self) -> bool:
        return (self.path / CONFIG).exists()

    @property
    def own(self) -> list[Path]:
        """The files and folders that the run itself has written; a user may have put a report beside them."""
        return [*self._folders, *(f for f in self.path.iterdir() if f.suffix in (".toml", ".json", ".jsonl"))]

    def result(self) -> Record | None:
        """The result, or None where there is none yet; a UserError where it is damaged."""
        path = self.path / RESULT
        try:
            result: Record = json.loads(path.read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            damage = f"cannot be read ({error})"
        else:
            # one of the two is enough: a federation does not know GA of local models
            if isinstance(result, dict) and any(isinstance(result.get(n), dict) for n in ("GA", "PA")):
                return result
            damage = "has neither GA nor PA"
        raise UserError(
            f"{path}: {damage}\ndelete it, and 'fedgela resume {self.path}' measures the end of the run again"
        )

    def experiment(self) -> Experiment:
        path = self.path / CONFIG
        return parse_experiment(read_toml(path), str(path))

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from working in this folder. The lock is released however the process ends."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = (self.path / LOCK).open("w")
        except OSError as error:
            raise UserError(f"{self.path}: cannot be written to ({error.strerror})") from None
        with lock:
            if not any(_taken(lock, fcntl.LOCK_EX, wait) for wait in LOCK_WAITS):
                raise UserError(f"{self.path}: another process is working in this folder")
            _held.add(lock)
            yield

    def is_locked(self) -> bool:
        """Whether a process works in this folder. To find out, a shared lock is held for an instant."""
        try:
            with (self.path / LOCK).open("rb") as lock:
                return not _taken(lock, fcntl.LOCK_SH)
        except OSError:
            return False

    @property
    def _folders(self) -> tuple[Path, ...]:
        return self.checkpoints.folder, self.clients, self.models

    def make_folders(self) -> None:
        """Make those within it, and delete what a killed process has left half-written there."""
        for folder in self._folders:
            folder.mkdir(exist_ok=True)
            for leftover in folder.glob(f"*{TEMPORARY}"):
                leftover.unlink(missing_ok=True)

    def create(self, experiment: Experiment) -> None:
        if code := own_code(experiment):
            write_json(self.path / OWN_CODE, code)
        self.write_config(experiment)

    def write_config(self, experiment: Experiment) -> None:
        write_atomically(self.path / CONFIG, experiment.to_toml())

    # -- metrics -----------------------------------------------------------------------------------

    def append(self, record: Record) -> None:
        path = self.path / METRICS
        with named(path), path.open("a") as file:
            file.write(json.dumps(record, allow_nan=False) + "\n")

    def cut_metrics(self, size: int) -> None:
        """Cut off the rounds after a checkpoint, which will be run again."""
        with (self.path / METRICS).open("ab") as file:
            file.truncate(size)

    def records(self) -> list[Record]:
        path = self.path / METRICS
        try:
            return [json.loads(line) for line in path.read_text().splitlines()]
        except (OSError, ValueError) as error:
            raise UserError(
                f"{path}: cannot be read ({error}); mend it, or make this run again elsewhere"
            ) from None


# a forked process inherits the lock: it must close it, or the lock would outlive the process that took it
_held: "weakref.WeakSet[IO[str]]" = weakref.WeakSet()
os.register_at_fork(after_in_child=lambda: [lock.close() for lock in _held])


def _taken(lock: IO[Any], kind: int, wait: float = 0.0) -> bool:
    """Try to take the lock after so many seconds; whether that worked."""
    time.sleep(wait)
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
