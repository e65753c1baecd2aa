"""A run's folder on disk: config, metrics, checkpoints, the clients' models.

config.toml      the resolved experiment
own_code.json    checksums of a user's own method and net, where it has any
metrics.jsonl    one line a round, appended
checkpoints/     the last two: round-000012.CHECKSUM.safetensors
clients/         last local models that a checkpoint refers to: 000003.round-000012.CHECKSUM...
models/          the finished global model, of the last round and of the best GA
result.json      written last: a folder that has it is a finished run
"""

import contextlib
import fcntl
import json
import os
import time
import weakref
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import torch
from safetensors import SafetensorError, safe_open

from fedgela.algorithms import ServerState
from fedgela.config import Experiment, parse_experiment, read_toml
from fedgela.errors import UserError
from fedgela.evaluation import Record
from fedgela.files import (
    TEMPORARY,
    checksum,
    named,
    read_entries,
    read_tensors,
    write_atomically,
    write_json,
    write_tensors,
)
from fedgela.models import State
from fedgela.own_code import OWN_CODE, own_code
from fedgela.rounds import TALLIES, Progress

KEPT_CHECKPOINTS = 2
# what reading a checkpoint may raise where it is damaged
DAMAGED = (OSError, ValueError, KeyError, SafetensorError)
CONFIG, METRICS, RESULT, LOCK = "config.toml", "metrics.jsonl", "result.json", ".lock"
# a folder of several runs has one of these
SEEDS, TABLE, TRIALS = "seeds.toml", "table.json", "trials.json"
ASKED = "asked.json"  # beside a comparison's table: its runs' folders, in the order of the runs
SEVERAL = {SEEDS: "a run on several seeds", TABLE: "a comparison", TRIALS: "a search"}
LOCK_WAITS = (0.0, 0.05, 0.1)  # seconds before each try: is_locked elsewhere holds it for an instant


def refuse_other_kinds(path: Path, own: str | None = None) -> None:
    """A UserError where a folder holds several runs of another kind than `own`, which would be mixed up."""
    for name, what in SEVERAL.items():
        if name != own and (path / name).exists():
            raise UserError(f"{path}: this folder holds {what} ({name}); choose another --out")


@dataclass
class FolderStore:
    """The clients' last local models: on disk, except those that have changed since the last checkpoint."""

    folder: Path
    saved: dict[int, str] = field(default_factory=dict)  # file names, by the last checkpoint
    changed: dict[int, State] = field(default_factory=dict)  # since the last checkpoint
    leaving: dict[int, State] = field(default_factory=dict)  # being written for a checkpoint

    def get(self, client: int, entries: Collection[str] | None = None) -> State | None:
        for models in (self.changed, self.leaving):
            if client in models:
                return models[client]
        if client not in self.saved:
            return None
        path = self.folder / self.saved[client]
        return read_tensors(path)[0] if entries is None else read_entries(path, entries)

    def put(self, client: int, model: State) -> None:
        self.changed[client] = model

    @property
    def waiting_bytes(self) -> int:
        """The size of the models that the next checkpoint will write."""
        return sum(value.nbytes for model in self.changed.values() for value in model.values())


@dataclass(frozen=True)
class Reached:
    """Where a run stands after a round: what a checkpoint of it needs. The next round leaves it as it is."""

    progress: Progress
    changed: dict[int, State]  # the clients' models that no checkpoint has yet
    metrics_bytes: int
    seconds: float
    data: str  # the data set's fingerprint
    settings: dict[str, Any]


@dataclass(frozen=True)
class Snapshot:
    """What a checkpoint is to hold, copied so that the run can go on while it is written."""

    round: int
    tensors: State
    note: dict[str, Any]
    clients: dict[int, State]  # those that changed since the last one


@dataclass
class Checkpoint:
    progress: Progress
    clients: dict[int, str]
    metrics_bytes: int
    seconds: float
    data: str  # the data set's fingerprint
    settings: dict[str, Any]  # the config's keys that decide the result; empty if an older version wrote it


class RunFolder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.clients = path / "clients"
        self.models = path / "models"

    def exists(self) -> bool:
        return (self.path / CONFIG).exists()

    @property
    def own(self) -> list[Path]:
        """The files and folders that the run itself has written; a user may have put a report beside them."""
        folders = [self.checkpoints, self.clients, self.models]
        return [*folders, *(f for f in self.path.iterdir() if f.suffix in (".toml", ".json", ".jsonl"))]

    def result(self) -> Record | None:
        try:
            result: Record = json.loads((self.path / RESULT).read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise UserError(
                f"{self.path / RESULT}: cannot be read ({error})\n"
                f"delete it, and 'fedgela resume {self.path}' measures the end of the run again"
            ) from None
        return result

    def sound_result(self) -> Record | None:
        """The result, or None; a UserError where it has no accuracy in it, as a damaged one."""
        result = self.result()
        # one of the two is enough: a federation does not know GA of local models
        known = isinstance(result, dict) and any(isinstance(result.get(n), dict) for n in ("GA", "PA"))
        if result is not None and not known:
            raise UserError(
                f"{self.path / RESULT}: has neither GA nor PA\n"
                f"delete it, and 'fedgela resume {self.path}' measures the end of the run again"
            )
        return result

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

    def create(self, experiment: Experiment) -> None:
        for folder in (self.checkpoints, self.clients, self.models):
            folder.mkdir(exist_ok=True)
        if code := own_code(experiment):
            write_json(self.path / OWN_CODE, code)
        self.write_config(experiment)

    def write_config(self, experiment: Experiment) -> None:
        write_atomically(self.path / CONFIG, experiment.to_toml())

    # -- checkpoints -------------------------------------------------------------------------------

    def reached(
        self, progress: Progress, store: FolderStore, seconds: float, data: str, settings: dict[str, Any]
    ) -> Reached:
        size = (self.path / METRICS).stat().st_size
        return Reached(progress.held(), dict(store.changed), size, seconds, data, settings)

    def snapshot(self, reached: Reached, store: FolderStore) -> Snapshot:
        progress, server = reached.progress, reached.progress.server
        groups = {"model": server.model, "extra": server.extra, "private": server.private}
        for name, model in (("best", progress.best_model), ("averaged", progress.averaged)):
            # a fixed ETF is the same in all, and the last round may be the best
            groups[name] = {key: value for key, value in model.items() if value is not server.model[key]}
        groups["best_norms"] = {
            f"{client}/{name}": value
            for client, norm in progress.best_norms.items()
            for name, value in norm.items()
        }
        groups["tally"] = {name: getattr(progress, name) for name in TALLIES}
        tensors = {f"{g}/{name}": value for g, s in groups.items() for name, value in s.items()}
        metrics = (self.path / METRICS).read_bytes()[: reached.metrics_bytes]
        note = {
            "round": progress.round,
            "best_round": progress.best_round,
            "best_GA": progress.best_GA,
            "averages": bool(progress.averaged),
            "metrics_bytes": len(metrics),
            "metrics_checksum": checksum(metrics),
            "seconds": reached.seconds,
            "data": reached.data,
            "settings": reached.settings,
        }
        # with those of a snapshot that was never written: a run may be interrupted in here, too
        clients = store.leaving | {client: _copied(model) for client, model in reached.changed.items()}
        store.leaving = clients
        store.changed = {
            k: model for k, model in store.changed.items() if reached.changed.get(k) is not model
        }
        return Snapshot(progress.round, _copied(tensors), note, clients)

    def save(self, snapshot: Snapshot, store: FolderStore) -> None:
        """Write metrics, then clients, then the checkpoint that refers to both; delete what is outdated."""
        with (self.path / METRICS).open("rb+") as file:
            os.fsync(file.fileno())
        visited = snapshot.tensors["tally/visited"]
        for client, model in snapshot.clients.items():
            stem = f"{client:06d}.round-{int(visited[client]):06d}"
            store.saved[client] = write_tensors(self.clients, stem, model)
        note = json.dumps({**snapshot.note, "clients": store.saved})
        write_tensors(self.checkpoints, f"round-{snapshot.round:06d}", snapshot.tensors, note)
        store.leaving = {}
        self._sweep()

    def _sweep(self) -> None:
        """Delete checkpoints beyond the last two, and clients' models that neither of these refers to."""
        newest_first = self._checkpoint_paths()
        for path in newest_first[KEPT_CHECKPOINTS:]:
            path.unlink()
        referred: set[str] = set()
        for path in newest_first[:KEPT_CHECKPOINTS]:
            try:
                referred.update(_read_note(path)["clients"].values())
            except DAMAGED:
                return  # a damaged checkpoint: its clients' models are not known, so none are deleted
        for path in self.clients.glob("*.round-*.safetensors"):
            if path.name not in referred:
                path.unlink()

    def checkpoint_times(self) -> dict[int, float]:
        """When each checkpoint was written, by its round; the newest last."""
        times: dict[int, float] = {}
        for path in reversed(self._checkpoint_paths()):
            with contextlib.suppress(OSError, ValueError):  # just deleted by the run, or named otherwise
                times[int(path.name.split(".")[0].removeprefix("round-"))] = path.stat().st_mtime
        return times

    def _checkpoint_paths(self) -> list[Path]:
        return sorted(self.checkpoints.glob("round-*.safetensors"), reverse=True)

    def load(self, device: torch.device, note: Callable[[str], None]) -> Checkpoint | None:
        """The newest sound checkpoint. A damaged one is noted and renamed, and the one before it is tried."""
        for folder in (self.checkpoints, self.clients, self.models):
            folder.mkdir(exist_ok=True)
            for leftover in folder.glob(f"*{TEMPORARY}"):
                leftover.unlink(missing_ok=True)
        paths = self._checkpoint_paths()
        if not paths and (self.path / METRICS).exists() and (self.path / METRICS).stat().st_size:
            note("there is no checkpoint, none was written yet or they are gone: starting from round 0")
        for path in paths:
            try:
                checkpoint = self._read_checkpoint(path, device)
            except DAMAGED as error:
                _check_readable(error)
                then = "trying the one before it"
                if path == paths[-1]:
                    then = "no sound one is left: starting again from round 0"
                note(f"checkpoint {path.name} cannot be used ({error}); {then}")
                path.rename(path.with_name(path.name + ".damaged"))
            else:
                self._sweep()  # a process that was killed may not have got to its own
                return checkpoint
        return None

    def newest(self) -> Checkpoint | None:
        """The newest sound checkpoint, on the CPU. Unlike `load` this changes nothing in the folder."""
        for path in self._checkpoint_paths():
            with contextlib.suppress(*DAMAGED):
                return self._read_checkpoint(path, torch.device("cpu"))
        return None

    def data_fingerprint(self) -> str | None:
        """The data's fingerprint in the newest readable checkpoint, whose tensors are not read."""
        for path in self._checkpoint_paths():
            with contextlib.suppress(*DAMAGED):
                return str(_read_note(path)["data"])
        return None

    def _read_checkpoint(self, path: Path, device: torch.device) -> Checkpoint:
        tensors, text = read_tensors(path)
        note = json.loads(text)
        metrics = self.path / METRICS
        with named(metrics), metrics.open("rb") as file:
            if checksum(file.read(note["metrics_bytes"])) != note["metrics_checksum"]:
                raise ValueError(f"{METRICS} is not what it was")
        clients = {int(k): name for k, name in note["clients"].items()}
        for name in clients.values():
            read_tensors(self.clients / name)  # raises where a client's model is damaged
        groups: dict[str, State] = {}
        for key, value in tensors.items():
            group, name = key.split("/", 1)
            groups.setdefault(group, {})[name] = value if group == "tally" else value.to(device)
        model = groups["model"]
        norms: dict[int, State] = {}
        for key, value in groups.get("best_norms", {}).items():
            client, name = key.split("/", 1)
            norms.setdefault(int(client), {})[name] = value
        progress = Progress(
            server=ServerState(model, groups.get("extra", {}), groups.get("private", {})),
            round=note["round"],
            best_round=note["best_round"],
            best_GA=note["best_GA"],
            best_model={**model, **groups.get("best", {})} if note["best_round"] else {},
            best_norms=norms,
            averaged={**model, **groups.get("averaged", {})} if note.get("averages") else {},
            **groups["tally"],
        )
        settings = note.get("settings", {})
        return Checkpoint(progress, clients, note["metrics_bytes"], note["seconds"], note["data"], settings)

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


def _copied(tensors: State) -> State:
    return {name: value.detach().to("cpu", copy=True) for name, value in tensors.items()}


def _taken(lock: IO[Any], kind: int, wait: float = 0.0) -> bool:
    """Try to take the lock after so many seconds; whether that worked."""
    time.sleep(wait)
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _check_readable(error: Exception) -> None:
    """A UserError where a file that may be sound cannot be read for now, as on a share that is away for a
    while: to do without it would throw away what the run has done."""
    if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
        raise UserError(
            f"{error.filename}: cannot be read ({error.strerror})\n"
            "go on when it can be; or delete it, and the run goes on from the checkpoint before it, if any"
        ) from None


def _read_note(path: Path) -> dict[str, Any]:
    """A checkpoint's note, read without its tensors."""
    with safe_open(path, "pt") as file:
        note: dict[str, Any] = json.loads((file.metadata() or {})["note"])
    return note
