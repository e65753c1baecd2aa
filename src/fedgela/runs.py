"""A run's folder: config, metrics, checkpoints, the clients' models, the result; and resuming it.

config.toml      the resolved experiment
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
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fedgela
from fedgela.algorithms import ServerState, name_of
from fedgela.config import Experiment, parse_experiment, read_toml
from fedgela.errors import UserError
from fedgela.evaluation import Record, client_accuracies
from fedgela.files import (
    TEMPORARY,
    checksum,
    read_tensors,
    write_atomically,
    write_json,
    write_tensors,
)
from fedgela.models import State
from fedgela.server import Progress, Server, resolve

KEPT_CHECKPOINTS = 2
# what reading a damaged checkpoint raises, by where the damage lies
DAMAGED = (OSError, ValueError, KeyError, OverflowError, MemoryError)
# what may differ between a folder's run and the command that finds it there
HARDWARE = ("device", "threads", "data_dir", "checkpoint_every")
CONFIG, METRICS, RESULT = "config.toml", "metrics.jsonl", "result.json"


class Listener:
    """Hears how a run goes; progress views override what they show."""

    def started(self, experiment: Experiment, done: int) -> None: ...

    def round(self, record: Record) -> None: ...

    def finishing(self) -> None: ...

    def note(self, text: str) -> None: ...

    def finished(self, result: Record) -> None: ...


@dataclass
class FolderStore:
    """The clients' models: on disk, but for those that changed since the last checkpoint."""

    folder: Path
    saved: dict[int, str] = field(default_factory=dict)  # file names, as the last checkpoint has them
    changed: dict[int, State] = field(default_factory=dict)

    def get(self, client: int) -> State | None:
        if client in self.changed:
            return self.changed[client]
        if client in self.saved:
            return read_tensors(self.folder / self.saved[client])[0]
        return None

    def put(self, client: int, model: State) -> None:
        self.changed[client] = model

    def save(self, round: int) -> None:
        for client, model in self.changed.items():
            self.saved[client] = write_tensors(self.folder, f"{client:06d}.round-{round:06d}", model)
        self.changed.clear()


@dataclass
class Checkpoint:
    progress: Progress
    clients: dict[int, str]
    metrics_bytes: int
    seconds: float
    data: str  # the data set's fingerprint


class RunFolder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.clients = path / "clients"
        self.models = path / "models"

    def exists(self) -> bool:
        return (self.path / CONFIG).exists()

    def result(self) -> Record | None:
        try:
            result: Record = json.loads((self.path / RESULT).read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise UserError(f"{self.path / RESULT}: cannot be read ({error})") from None
        return result

    def experiment(self) -> Experiment:
        path = self.path / CONFIG
        return parse_experiment(read_toml(path), str(path))

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Only one process works in a folder; the lock goes with the process, however it ends."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = (self.path / ".lock").open("w")
        except OSError as error:
            raise UserError(f"{self.path}: cannot be written to ({error.strerror})") from None
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise UserError(f"{self.path}: another process is working in this folder") from None
            yield

    def create(self, experiment: Experiment) -> None:
        for folder in (self.checkpoints, self.clients, self.models):
            folder.mkdir(exist_ok=True)
        write_atomically(self.path / CONFIG, experiment.to_toml())

    # -- checkpoints -------------------------------------------------------------------------------

    def save(self, progress: Progress, store: FolderStore, seconds: float, data: str) -> None:
        """Metrics, then clients, then the checkpoint that refers to both; then what is out of date goes."""
        metrics = self.path / METRICS
        with metrics.open("rb+") as file:
            os.fsync(file.fileno())
        store.save(progress.round)
        server = progress.server
        groups = {"model": server.model, "extra": server.extra, "private": server.private}
        groups["best"] = {
            name: value
            for name, value in progress.best_model.items()
            if value is not progress.server.model[name]  # a fixed ETF, or the last round is the best
        }
        for name in ("visited", "right", "right_on_union"):
            groups.setdefault("tally", {})[name] = getattr(progress, name)
        note = {
            "round": progress.round,
            "best_round": progress.best_round,
            "best_GA": progress.best_GA,
            "metrics_bytes": metrics.stat().st_size,
            "metrics_checksum": checksum(metrics.read_bytes()),
            "seconds": seconds,
            "data": data,
            "clients": store.saved,
        }
        tensors = {f"{g}/{name}": value for g, s in groups.items() for name, value in s.items()}
        write_tensors(self.checkpoints, f"round-{progress.round:06d}", tensors, json.dumps(note))
        self._sweep()

    def _sweep(self) -> None:
        """Remove checkpoints beyond the last two, and clients' models that no checkpoint refers to."""
        newest_first = self._checkpoint_paths()
        for path in newest_first[KEPT_CHECKPOINTS:]:
            path.unlink()
        referred: set[str] = set()
        for path in newest_first[:KEPT_CHECKPOINTS]:
            try:
                referred.update(_read_note(path)["clients"].values())
            except DAMAGED:
                return  # what a damaged checkpoint referred to cannot be told
        for path in self.clients.glob("*.round-*.safetensors"):
            if path.name not in referred:
                path.unlink()

    def _checkpoint_paths(self) -> list[Path]:
        return sorted(self.checkpoints.glob("round-*.safetensors"), reverse=True)

    def load(self, device: torch.device, note: Callable[[str], None]) -> Checkpoint | None:
        """The newest sound checkpoint; a damaged one is named, moved aside, and the one before is used."""
        for folder in (self.checkpoints, self.clients, self.models):
            folder.mkdir(exist_ok=True)
            for leftover in folder.glob(f"*{TEMPORARY}"):
                leftover.unlink()
        paths = self._checkpoint_paths()
        for path in paths:
            try:
                checkpoint = self._read_checkpoint(path, device)
            except DAMAGED as error:
                last = path == paths[-1]
                then = (
                    "no sound one is left: starting again from round 0"
                    if last
                    else "trying the one before it"
                )
                note(f"checkpoint {path.name} cannot be used ({error}); {then}")
                path.rename(path.with_name(path.name + ".damaged"))
            else:
                self._sweep()  # what a process killed before its own sweep has left
                return checkpoint
        return None

    def _read_checkpoint(self, path: Path, device: torch.device) -> Checkpoint:
        tensors, text = read_tensors(path)
        note = json.loads(text)
        with (self.path / METRICS).open("rb") as file:
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
        progress = Progress(
            server=ServerState(model, groups.get("extra", {}), groups.get("private", {})),
            round=note["round"],
            best_round=note["best_round"],
            best_GA=note["best_GA"],
            best_model={**model, **groups.get("best", {})} if note["best_round"] else {},
            **groups["tally"],
        )
        return Checkpoint(progress, clients, note["metrics_bytes"], note["seconds"], note["data"])

    # -- metrics -----------------------------------------------------------------------------------

    def append(self, record: Record) -> None:
        with (self.path / METRICS).open("a") as file:
            file.write(json.dumps(record, allow_nan=False) + "\n")

    def cut_metrics(self, size: int) -> None:
        """Forget the rounds after a checkpoint: they will be run again."""
        with (self.path / METRICS).open("ab") as file:
            file.truncate(size)

    def records(self) -> list[Record]:
        return [json.loads(line) for line in (self.path / METRICS).read_text().splitlines()]


def _read_note(path: Path) -> dict[str, Any]:
    """A checkpoint's note, without its tensors."""
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    note: dict[str, Any] = json.loads(header["__metadata__"]["note"])
    return note


def already_holds_a_run(path: Path) -> UserError:
    return UserError(
        f"{path}: this folder already holds a run; continue it with 'fedgela resume {path}', "
        "or choose another --out"
    )


def run(experiment: Experiment, path: Path, listener: Listener | None = None) -> Record:
    """Run an experiment into a new folder; its result comes back."""
    folder = RunFolder(path)
    if folder.exists():
        raise already_holds_a_run(path)
    for name in ("seeds.toml", "table.json", "trials.json"):
        if (path / name).exists():
            raise UserError(f"{path}: this folder holds {name} of several runs; choose another --out")
    if path.exists() and not path.is_dir():
        raise UserError(f"{path}: is a file, not a folder")
    resolved, federation = resolve(experiment)
    store = FolderStore(folder.clients)
    server = Server(resolved, federation, store)  # before anything is written: it may be impossible
    with folder.locked():
        if folder.exists():  # another process was faster
            raise already_holds_a_run(path)
        folder.create(resolved)
        return _go_on(folder, server, store, None, listener or Listener())


def resume(path: Path, listener: Listener | None = None) -> Record:
    """Continue a run where its last checkpoint stands; a finished run only gives its result again."""
    listener = listener or Listener()
    folder = RunFolder(path)
    if not folder.exists():
        raise UserError(f"{path}: there is no run in this folder (no {CONFIG})")
    with folder.locked():
        result = folder.result()
        if result is not None:
            listener.note("this run is finished")
            listener.finished(result)
            return result
        experiment, federation = resolve(folder.experiment())
        store = FolderStore(folder.clients)
        server = Server(experiment, federation, store)
        checkpoint = folder.load(torch.device(experiment.device), listener.note)
        if checkpoint and checkpoint.data != federation.data.fingerprint:
            raise UserError(
                f"{path}: the data set {experiment.dataset!r} is not what it was when the run began"
            )
        return _go_on(folder, server, store, checkpoint, listener)


def run_or_resume(experiment: Experiment, folder: Path, listener: Listener | None = None) -> Record:
    """Run an experiment, or go on with it where its folder already holds it."""
    held = RunFolder(folder)
    if not held.exists():
        return run(experiment, folder, listener)
    check_same(experiment, held)
    result = held.result()
    return result if result is not None else resume(folder, listener)


def check_same(experiment: Experiment, held: RunFolder) -> None:
    """A folder's run must be the one that is asked for, but for where it is computed."""
    wanted, found = resolve(experiment)[0].model_dump(), held.experiment().model_dump()
    for key in wanted.keys() - set(HARDWARE):
        if wanted[key] != found[key]:
            raise UserError(
                f"{held.path}: holds a run with {key} = {found[key]!r}, not {wanted[key]!r}; "
                "choose another --out"
            )


def _go_on(
    folder: RunFolder,
    server: Server,
    store: FolderStore,
    checkpoint: Checkpoint | None,
    listener: Listener,
) -> Record:
    experiment = server.experiment
    progress = checkpoint.progress if checkpoint else server.begin()
    seconds = checkpoint.seconds if checkpoint else 0.0
    if checkpoint:
        store.saved = checkpoint.clients
    folder.cut_metrics(checkpoint.metrics_bytes if checkpoint else 0)

    listener.started(experiment, progress.round)
    shared = experiment.algorithm.shares()
    if shared is not None:
        listener.note(f"{experiment.algorithm.title} shares more than weights: {shared}")
    while progress.round < experiment.rounds:
        began = time.perf_counter()
        record = server.step(progress)
        folder.append(record)
        listener.round(record)
        if record["train_loss"] is None:
            listener.note(f"round {progress.round}: the training loss is no finite number any more")
        seconds += time.perf_counter() - began
        if progress.round % experiment.checkpoint_every == 0 or progress.round == experiment.rounds:
            folder.save(progress, store, seconds, server.federation.data.fingerprint)
    listener.finishing()
    began = time.perf_counter()
    finetuned = server.finish(progress)
    seconds += time.perf_counter() - began
    result = summarise(server, progress, folder.records(), finetuned, seconds)
    for old in folder.models.glob("global-*.safetensors"):  # of a process that was killed right here
        old.unlink()
    if server.algorithm.GA_of == "global":
        result["models"] = {
            "last": write_tensors(folder.models, "global-last", progress.server.model),
            "best": write_tensors(folder.models, "global-best", progress.best_model),
        }
    write_json(folder.path / RESULT, result)
    listener.finished(result)
    return result


def best_and_last(records: list[Record], name: str) -> Record | None:
    """The largest value over rounds, and the last, each with its round."""
    values = [(r[name], r["round"]) for r in records if r.get(name) is not None]
    if not values:
        return None
    best, best_round = max(values, key=lambda v: (v[0], -v[1]))  # the first of equals
    last, last_round = values[-1]
    return {"best": best, "best_round": best_round, "last": last, "last_round": last_round}


def summarise(
    server: Server, progress: Progress, records: list[Record], finetuned: Record, seconds: float
) -> Record:
    """result.json."""
    e, algorithm = server.experiment, server.algorithm
    result: Record = {
        "algorithm": name_of(algorithm),
        "dataset": e.dataset,
        "data_fingerprint": server.federation.data.fingerprint,
        "partition": e.partition,
        "model": e.model,
        "clients": e.clients,
        "sample": e.sample,
        "rounds": e.rounds,
        "seed": e.seed,
        "unit": "percent",
        "measured_on": "validation data" if e.validation > 0 else "test data",
        "best_is": "the maximum over rounds, chosen on the data it is measured on"
        + ("; PA's is fine-tuned from the round of the best GA" if algorithm.PA_of == "finetuned" else ""),
        "GA_of": algorithm.GA_of,
        "PA_of": algorithm.PA_of,
    }
    for name in ("GA", "PA", "GA_locals", "local_accuracy"):
        summary = best_and_last(records, name)
        if summary is not None:
            result[name] = summary
    if finetuned:
        # fine-tuned from the global model of the best GA, and from the last
        name = "PA" if algorithm.PA_of == "finetuned" else "PA_finetuned"
        best, last = finetuned["best"], finetuned["last"]
        result[name] = {
            "best": best[name],
            "best_round": best["round"],
            "last": last[name],
            "last_round": last["round"],
        }
        result["finetuned"] = finetuned
    if not algorithm.pooled:
        totals = server.federation.test_counts
        result["local_accuracy_by_client"] = client_accuracies(progress.right, totals)
    result["shares"] = algorithm.shares()
    lost = [record["round"] for record in records if record["train_loss"] is None]
    result["diverged_round"] = lost[0] if lost else None  # the first whose loss is no finite number
    result["wall_seconds"] = round(seconds, 3)
    result["device"] = device_name(torch.device(e.device))
    result["threads"] = e.threads
    result["versions"] = {
        "fedgela": fedgela.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }
    return result


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type} ({platform.machine()}, {os.cpu_count()} cores)"
