"""Running an experiment into a folder, and resuming it: the life of a run."""

import contextlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from fedgela.checkpoints import Checkpoint, FolderStore
from fedgela.config import Experiment, parse_experiment, plain_table
from fedgela.data import Federation
from fedgela.errors import UserError
from fedgela.evaluation import Record, diverged
from fedgela.failures import forget_failure
from fedgela.files import write_json, write_tensors
from fedgela.listener import Listener
from fedgela.memory import forget_peak, peak_memory
from fedgela.notes import worth_knowing
from fedgela.own_code import changed_modules, check_own_code
from fedgela.resolve import resolve
from fedgela.result import summarise
from fedgela.rounds import ClientStore, Progress
from fedgela.runfolder import CONFIG, RESULT, SEEDS, TABLE, TRIALS, RunFolder
from fedgela.saving import Saver
from fedgela.server import Server
from fedgela.tensorboard import Events

# keys that do not decide a result: a command may go on with a run that has other values of these
HARDWARE = (
    "device",
    "engine",
    "lanes",
    "width",
    "compile",
    "threads",
    "data_dir",
    "checkpoint_every",
    "tensorboard",
)


def check_vacant(path: Path, kind: str | None = None) -> None:
    """A UserError where a folder holds a run, on one seed or several, or several runs of another kind than
    `kind` (TABLE, TRIALS), which would be mixed up."""
    if RunFolder(path).exists() or (path / SEEDS).exists():
        raise already_holds_a_run(path)
    for name, what in ((TABLE, "a comparison"), (TRIALS, "a search")):
        if name != kind and (path / name).exists():
            raise UserError(f"{path}: this folder holds {what} ({name}); choose another --out")


def already_holds_a_run(path: Path) -> UserError:
    command = command_of_a_federation(path) or f"fedgela resume {path}"
    return UserError(
        f"{path}: this folder already holds a run; continue it with '{command}', or choose another --out"
    )


def command_of_a_federation(path: Path) -> str | None:
    """The command that resumes the run in this folder, if it is one of a federation of sites, else None."""
    from fedgela.flower.terms import TERMS

    if not (path / TERMS).exists():
        return None
    federation = "DIR"
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        federation = json.loads((path / TERMS).read_text())["folder"]
    return f"fedgela federation run {federation} --resume --out {path}"


def run(experiment: Experiment, path: str | Path, listener: Listener | None = None) -> Record:
    """Run an experiment in a new folder, and return its result."""
    path = Path(path)
    folder = RunFolder(path)
    check_vacant(path)
    if path.exists() and not path.is_dir():
        raise UserError(f"{path}: is a file, not a folder")
    listener = listener or Listener()
    forget_peak()
    resolved, federation = resolve(experiment)
    store = FolderStore(folder.clients)
    # made before anything is written, since it may turn out to be impossible
    server = make_server(resolved, federation, store, listener.note)
    with contextlib.closing(server), folder.locked():
        if folder.exists():  # another process was faster
            raise already_holds_a_run(path)
        for line in worth_knowing(experiment, resolved, federation):
            listener.note(line)
        folder.create(server.experiment)
        return go_on(folder, server, store, None, listener)


def resume(path: str | Path, listener: Listener | None = None, tensorboard: bool | None = None) -> Record:
    """Continue a run from its last checkpoint, and return its result, as of a run that is finished already.
    `tensorboard` says whether events are written; None leaves that to the run's config."""
    path, listener = Path(path), listener or Listener()
    folder = RunFolder(path)
    if command := command_of_a_federation(path):
        raise UserError(f"{path}: is a run of a federation; its sites go on with it by '{command}'")
    if not folder.exists():
        several = any(path.glob(f"*/{CONFIG}")) or any(path.glob(f"*/*/{CONFIG}"))
        hint = "; of a comparison or a search, repeat the command: it goes on" if several else ""
        raise UserError(f"{path}: there is no run in this folder (no {CONFIG}){hint}")
    with folder.locked():
        result = folder.result()
        held = folder.experiment()
        if result is not None:
            _note_finished(folder, held, result, listener)
            if tensorboard:
                events = Events(folder, Listener())
                events.started(held, held.rounds)
                events.finished(result)
            listener.finished(result)
            return result
        check_own_code(path, held)
        if tensorboard not in (None, held.tensorboard):  # it is what the run is resumed with later, too
            held = held.with_(tensorboard=tensorboard)
            folder.write_config(held)
        return _go_on_from_checkpoint(folder, held, listener)


def _note_finished(folder: RunFolder, held: Experiment, result: Record, listener: Listener) -> None:
    listener.note("this run is finished")
    if held.rounds > result.get("rounds", held.rounds):
        listener.note(
            f"{folder.path / CONFIG}: rounds is {held.rounds} now, and the result is of {result['rounds']}: "
            f"without {folder.path / RESULT} the run goes on"
        )
    for module in changed_modules(folder.path, held):
        listener.note(f"the source of {module} has been changed since it began")


def _go_on_from_checkpoint(folder: RunFolder, held: Experiment, listener: Listener) -> Record:
    """The result of an unfinished run; a UserError where its data or its settings are not what they were."""
    forget_peak()
    experiment, federation = resolve(held)
    store = FolderStore(folder.clients)
    with contextlib.closing(make_server(experiment, federation, store, listener.note)) as server:
        checkpoint = folder.checkpoints.load(torch.device(experiment.device), listener.note)
        if checkpoint:
            config, done, data = folder.path / CONFIG, checkpoint.progress.round, experiment.dataset
            if checkpoint.data != federation.data.fingerprint:
                raise UserError(f"{folder.path}: the data set {data!r} is not what it was when the run began")
            if done > experiment.rounds:
                raise UserError(f"{config}: rounds is {experiment.rounds} now, but {done} are done")
            _check_settings(config, checkpoint.settings, _settings(server.experiment))
        return go_on(folder, server, store, checkpoint, listener)


def _settings(experiment: Experiment) -> dict[str, Any]:
    """The keys of a config, as JSON has them, that must not change while a run goes on. `rounds` may, unless
    the learning rates depend on it."""
    free = HARDWARE if experiment.schedule == "cosine" else (*HARDWARE, "rounds")
    table = {key: value for key, value in plain_table(experiment).items() if key not in free}
    plain: dict[str, Any] = json.loads(json.dumps(table))
    return plain


def _check_settings(config: Path, began: dict[str, Any], found: dict[str, Any]) -> None:
    """A UserError where settings have changed since the run began. Those that did not exist then count as
    their defaults; a checkpoint of an older version may have no settings at all."""
    if not began:
        return
    with contextlib.suppress(UserError):  # a setting of an older version that is no longer known
        began = _settings(parse_experiment(began))
    for key in sorted(began.keys() | found.keys()):
        was, now = began.get(key), found.get(key)
        if was != now:
            raise UserError(f"{config}: {key} is {now!r} now, and was {was!r} when the run began")


def run_or_resume(experiment: Experiment, folder: Path, listener: Listener | None = None) -> Record:
    """Run an experiment, or go on with it where its folder already holds it."""
    held = RunFolder(folder)
    if not held.exists():
        return run(experiment, folder, listener)
    check_same(experiment, held)
    result = held.result()
    return result if result is not None else resume(folder, listener, experiment.tensorboard or None)


def check_same(experiment: Experiment, held: RunFolder) -> None:
    """A UserError where a folder's run is not the one that is asked for, apart from where it is computed."""
    resolved, federation = resolve(experiment)
    wanted, found = resolved.model_dump(), held.experiment().model_dump()
    for key in sorted(wanted.keys() - set(HARDWARE)):
        # a precision of None was chosen when the run began; any other None has a meaning of its own
        if wanted[key] != found[key] and not (key == "precision" and wanted[key] is None):
            raise UserError(
                f"{held.path}: holds a run with {key} = {found[key]!r}, not {wanted[key]!r}; "
                "choose another --out"
            )
    check_own_code(held.path, experiment)
    # the data of an unfinished run is checked when it is resumed
    if (result := held.result()) and not is_of(result, federation):
        raise UserError(
            f"{held.path}: holds a run of other data: {experiment.dataset!r} has changed since; "
            "choose another --out"
        )


def is_of(result: Record, federation: Federation) -> bool:
    """Whether a result was measured on this data; results of earlier versions do not say."""
    return result.get("data_fingerprint") in (None, federation.data.fingerprint)


def make_server(
    experiment: Experiment, federation: Federation, store: ClientStore, note: Callable[[str], None]
) -> Server:
    """The server of a resolved experiment, with its clients trained here or in Flower's simulation."""
    if experiment.engine == "flower-simulation":
        from fedgela.flower import require_flower

        require_flower(simulation=True)
        from fedgela.flower.simulation import SimulatedServer

        return SimulatedServer(experiment, federation, store, note)
    return Server(experiment, federation, store, note)


def go_on(
    folder: RunFolder,
    server: Server,
    store: FolderStore,
    checkpoint: Checkpoint | None,
    listener: Listener,
) -> Record:
    """Run all rounds, from a checkpoint or from the beginning, and write the result."""
    forget_failure(folder.path)  # of an earlier try: what comes of this one is not known yet
    folder.make_folders()
    if checkpoint:
        store.saved = checkpoint.clients
    experiment = server.experiment
    if experiment.tensorboard:
        listener = Events(folder, listener)
    origin = {"data": server.federation.data.fingerprint, "settings": _settings(experiment)}
    with Saver(folder.checkpoints, store, origin, experiment.checkpoint_every, listener.note) as saver:
        progress, seconds = _rounds(folder, server, saver, checkpoint, listener)
        listener.finishing()
        began = time.perf_counter()
        finetuned = server.finish(progress)
        saver.wait()
    seconds += time.perf_counter() - began
    result = summarise(server, progress, folder.records(), finetuned, seconds)
    result["peak_memory_bytes"] = peak_memory(experiment.device) + server.engine.workers_memory
    for old in folder.models.glob("global-*.safetensors"):  # left by a process that was killed right here
        old.unlink()
    if server.algorithm.GA_of == "global":
        result["models"] = {
            "last": write_tensors(folder.models, "global-last", progress.global_model),
            "best": write_tensors(folder.models, "global-best", progress.best_model),
        }
    write_json(folder.path / RESULT, result)
    listener.finished(result)
    return result


def _rounds(
    folder: RunFolder,
    server: Server,
    saver: Saver,
    checkpoint: Checkpoint | None,
    listener: Listener,
) -> tuple[Progress, float]:
    """Run the rounds that are left; where the run stands after the last, and the seconds that it took."""
    experiment = server.experiment
    progress = checkpoint.progress if checkpoint else server.begin()
    seconds = checkpoint.seconds if checkpoint else 0.0
    folder.cut_metrics(checkpoint.metrics_bytes if checkpoint else 0)
    if progress.round == experiment.rounds and "GA" not in folder.records()[-1]:
        raise UserError(
            f"{folder.path / CONFIG}: rounds is {progress.round} now, and so many are done, but the last was "
            "not evaluated, as the end of a run is: give it more"
        )
    listener.started(experiment, progress.round)
    shared = experiment.algorithm.shares()
    if shared is not None:
        listener.note(f"{experiment.algorithm.title} shares more than weights: {shared}")
    while progress.round < experiment.rounds:
        began = time.perf_counter()
        record = server.step(progress)
        folder.append(record)
        saver.reached(progress, seconds + time.perf_counter() - began)
        listener.round(record)
        if diverged(record):
            listener.note(f"round {progress.round}: the training loss is no finite number any more")
        if saver.is_due(progress.round) or progress.round == experiment.rounds:
            saver.save()
        seconds += time.perf_counter() - began
    return progress, seconds
