"""A run's checkpoints: the last two, and the clients' last local models that these refer to.

checkpoints/round-000012.CHECKSUM.safetensors
clients/000003.round-000012.CHECKSUM.safetensors
"""

import contextlib
import json
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from fedgela.algorithms import ServerState
from fedgela.errors import UserError
from fedgela.files import checksum, named, read_entries, read_tensors, write_tensors
from fedgela.measures import state_bytes
from fedgela.models import State, on_device
from fedgela.rounds import TALLIES, Progress

KEPT = 2
# what reading a checkpoint may raise where it is damaged
DAMAGED = (OSError, ValueError, KeyError, SafetensorError)


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
        return sum(map(state_bytes, self.changed.values()))


@dataclass(frozen=True)
class Reached:
    """Where a run stands after a round: what a checkpoint of it needs. The next round leaves it as it is."""

    progress: Progress
    changed: dict[int, State]  # the clients' models that no checkpoint has yet
    metrics_bytes: int
    seconds: float


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


class Checkpoints:
    def __init__(self, folder: Path, clients: Path, metrics: Path) -> None:
        self.folder, self.clients, self.metrics = folder, clients, metrics

    # -- writing -----------------------------------------------------------------------------------

    def reached(self, progress: Progress, store: FolderStore, seconds: float) -> Reached:
        return Reached(progress.held(), dict(store.changed), self.metrics.stat().st_size, seconds)

    def snapshot(self, reached: Reached, store: FolderStore, origin: Mapping[str, Any]) -> Snapshot:
        """`origin` is what the run began with: the `data` and `settings` of a Checkpoint."""
        progress, server = reached.progress, reached.progress.server
        groups = {"model": server.model, "extra": server.extra, "private": server.private}
        for name, model in (("best", progress.best_model), ("averaged", progress.averaged)):
            # a fixed ETF is the same in all, and the last round may be the best
            groups[name] = {key: value for key, value in model.items() if value is not server.model[key]}
        groups["best_norms"] = _flat({str(client): norm for client, norm in progress.best_norms.items()})
        groups["tally"] = {name: getattr(progress, name) for name in TALLIES}
        metrics = self.metrics.read_bytes()[: reached.metrics_bytes]
        note = {
            "round": progress.round,
            "best_round": progress.best_round,
            "best_GA": progress.best_GA,
            "averages": bool(progress.averaged),
            "metrics_bytes": len(metrics),
            "metrics_checksum": checksum(metrics),
            "seconds": reached.seconds,
            **origin,
        }
        # with those of a snapshot that was never written: a run may be interrupted in here, too
        clients = store.leaving | {client: _copied(model) for client, model in reached.changed.items()}
        store.leaving = clients
        store.changed = {
            k: model for k, model in store.changed.items() if reached.changed.get(k) is not model
        }
        return Snapshot(progress.round, _copied(_flat(groups)), note, clients)

    def save(self, snapshot: Snapshot, store: FolderStore) -> None:
        """Write metrics, then clients, then the checkpoint that refers to both; delete what is outdated."""
        with self.metrics.open("rb+") as file:
            os.fsync(file.fileno())
        visited = snapshot.tensors["tally/visited"]
        for client, model in snapshot.clients.items():
            stem = f"{client:06d}.round-{int(visited[client]):06d}"
            store.saved[client] = write_tensors(self.clients, stem, model)
        note = json.dumps({**snapshot.note, "clients": store.saved})
        write_tensors(self.folder, f"round-{snapshot.round:06d}", snapshot.tensors, note)
        store.leaving = {}
        self._sweep()

    def _sweep(self) -> None:
        """Delete checkpoints beyond the last two, and clients' models that neither of these refers to."""
        newest_first = self._paths()
        for path in newest_first[KEPT:]:
            path.unlink()
        referred: set[str] = set()
        for path in newest_first[:KEPT]:
            try:
                referred.update(_read_note(path)["clients"].values())
            except DAMAGED:
                return  # a damaged checkpoint: its clients' models are not known, so none are deleted
        for path in self.clients.glob("*.round-*.safetensors"):
            if path.name not in referred:
                path.unlink()

    # -- reading -----------------------------------------------------------------------------------

    def load(self, device: torch.device, note: Callable[[str], None]) -> Checkpoint | None:
        """The newest sound checkpoint. A damaged one is noted and renamed, and the one before it is tried."""
        paths = self._paths()
        if not paths and self.metrics.exists() and self.metrics.stat().st_size:
            note("there is no checkpoint, none was written yet or they are gone: starting from round 0")
        for path in paths:
            try:
                checkpoint = self._read(path, device)
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
        for path in self._paths():
            with contextlib.suppress(*DAMAGED):
                return self._read(path, torch.device("cpu"))
        return None

    def data_fingerprint(self) -> str | None:
        """The data's fingerprint in the newest readable checkpoint, whose tensors are not read."""
        for path in self._paths():
            with contextlib.suppress(*DAMAGED):
                return str(_read_note(path)["data"])
        return None

    def times(self) -> dict[int, float]:
        """When each was written, by its round; the newest last."""
        times: dict[int, float] = {}
        for path in reversed(self._paths()):
            with contextlib.suppress(OSError, ValueError):  # just deleted by the run, or named otherwise
                times[int(path.name.split(".")[0].removeprefix("round-"))] = path.stat().st_mtime
        return times

    def _paths(self) -> list[Path]:
        """The newest first."""
        return sorted(self.folder.glob("round-*.safetensors"), reverse=True)

    def _read(self, path: Path, device: torch.device) -> Checkpoint:
        tensors, text = read_tensors(path)
        note = json.loads(text)
        with named(self.metrics), self.metrics.open("rb") as file:
            if checksum(file.read(note["metrics_bytes"])) != note["metrics_checksum"]:
                raise ValueError(f"{self.metrics.name} is not what it was")
        clients = {int(k): name for k, name in note["clients"].items()}
        for name in clients.values():
            read_tensors(self.clients / name)  # raises where a client's model is damaged
        groups = _nested(tensors)
        tally = groups.pop("tally")
        groups = {name: on_device(group, device) for name, group in groups.items()}
        model = groups["model"]
        progress = Progress(
            server=ServerState(model, groups.get("extra", {}), groups.get("private", {})),
            round=note["round"],
            best_round=note["best_round"],
            best_GA=note["best_GA"],
            best_model={**model, **groups.get("best", {})} if note["best_round"] else {},
            best_norms={int(k): norm for k, norm in _nested(groups.get("best_norms", {})).items()},
            averaged={**model, **groups.get("averaged", {})} if note.get("averages") else {},
            **tally,
        )
        settings = note.get("settings", {})
        return Checkpoint(progress, clients, note["metrics_bytes"], note["seconds"], note["data"], settings)


def _flat(groups: Mapping[str, State]) -> State:
    """Groups of tensors as one, whose names begin with the group's: `model/head.weight`."""
    return {f"{group}/{name}": value for group, state in groups.items() for name, value in state.items()}


def _nested(tensors: State) -> dict[str, State]:
    groups: dict[str, State] = {}
    for key, value in tensors.items():
        group, name = key.split("/", 1)
        groups.setdefault(group, {})[name] = value
    return groups


def _copied(tensors: State) -> State:
    return {name: value.detach().to("cpu", copy=True) for name, value in tensors.items()}


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
