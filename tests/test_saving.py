"""A run does not wait for its disk, and what it writes beside its rounds is as safe as before."""

import errno
import multiprocessing
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from fedgela import runs
from fedgela.algorithms import ALGORITHMS
from fedgela.checkpoints import Checkpoints, FolderStore, Snapshot
from fedgela.evaluation import Record
from fedgela.files import read_entries, read_tensors
from fedgela.listener import Listener
from fedgela.models import State
from fedgela.resolve import resolve
from fedgela.runfolder import METRICS, RunFolder
from fedgela.saving import Saver
from fedgela.server import Server
from helpers import Notes, outcome_of, play, same, serve, tiny

SECONDS = 20.0  # far more than anything here takes


def test_the_next_round_trains_while_a_checkpoint_is_written(
    npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # FedRep's clients read, in every round, what they left in the one before
    experiment = tiny(npz, algorithm="fedrep", rounds=4)
    runs.run(experiment, tmp_path / "whole")
    save, step = Checkpoints.save, Server.step
    next_round = [threading.Event() for _ in range(6)]

    def save_after_the_next_round(folder: Checkpoints, snapshot: Snapshot, store: FolderStore) -> None:
        assert next_round[snapshot.round + 1].wait(SECONDS), "the run waits for its disk"
        save(folder, snapshot, store)

    def stepping(server: Server, progress: Any) -> Any:
        record = step(server, progress)
        next_round[progress.round].set()
        if progress.round == experiment.rounds:
            next_round[progress.round + 1].set()
        return record

    monkeypatch.setattr(Checkpoints, "save", save_after_the_next_round)
    monkeypatch.setattr(Server, "step", stepping)
    runs.run(experiment, tmp_path / "slow")
    assert outcome_of(tmp_path / "slow") == outcome_of(tmp_path / "whole")


def test_by_default_a_tenth_of_the_time_at_most_goes_into_checkpoints(
    npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("fedgela.saving.time.monotonic", lambda: now)
    written = threading.Event()
    begun = threading.Event()

    def save_when_told(folder: Checkpoints, snapshot: Snapshot, store: FolderStore) -> None:
        begun.set()
        assert written.wait(SECONDS)

    monkeypatch.setattr(Checkpoints, "save", save_when_told)
    monkeypatch.setattr(Checkpoints, "reached", lambda *_: "something")
    monkeypatch.setattr(Checkpoints, "snapshot", lambda *_: None)
    monkeypatch.setattr("fedgela.saving.HELD", 100)
    store = FolderStore(tmp_path)
    with Saver(RunFolder(tmp_path).checkpoints, store, {}, None, pytest.fail) as saver:
        assert saver.is_due(1)
        saver.reached(None, 0.0)  # type: ignore[arg-type]
        saver.save()
        assert begun.wait(SECONDS)
        now = 1002.0
        assert not saver.is_due(2)  # it is still being written
        written.set()
        saver.wait()
        assert not saver.is_due(3)
        now = 1019.9
        store.put(0, {"w": torch.zeros(5, 5)})
        assert not saver.is_due(4)
        store.put(1, {"w": torch.zeros(1)})
        assert saver.is_due(4)  # memory is bounded, whatever the time
        store.changed = {}
        now = 1020.0
        assert saver.is_due(5)


class Stopped(Exception):
    pass


# what a run is doing in its sixth round when it is interrupted
MOMENTS = {
    "training": (Server, "visits"),
    "averaging": (Server, "_aggregate"),  # the clients' models of this round are kept by then
    "evaluating": (Server, "_evaluate"),
    "writing metrics": (RunFolder, "append"),
    "looking at a checkpoint": (Saver, "is_due"),
    "making a checkpoint": (Checkpoints, "snapshot"),
    "handing it over": (ThreadPoolExecutor, "submit"),
}


@pytest.mark.usefixtures("norm_net")
@pytest.mark.parametrize("every", [None, 3, 100])
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_run_that_is_interrupted_loses_the_round_that_goes_on_and_no_other(
    npz: Path, tmp_path: Path, moment: str, every: int | None
) -> None:
    experiment = tiny(npz, model="norm", algorithm="moon", batchnorm="local", sample=2, rounds=8)
    experiment = experiment.with_(checkpoint_every=every)
    runs.run(experiment, tmp_path / "whole")
    place, name = MOMENTS[moment]
    work, steps = getattr(place, name), Server.step
    progress: list[Any] = []
    interrupted = False

    def stepping(server: Server, now: Any) -> Any:
        progress.append(now)
        return steps(server, now)

    def interrupt(*arguments: Any) -> Any:
        nonlocal interrupted
        if progress and progress[-1].round >= 6 and not interrupted:
            interrupted = True
            raise KeyboardInterrupt
        return work(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedgela.saving.SPARING", 1e9)  # the first checkpoint by default is the only one
        patch.setattr(Server, "step", stepping)
        patch.setattr(place, name, interrupt)
        with pytest.raises(KeyboardInterrupt):
            runs.run(experiment, tmp_path / "cut")
    rounds = len((tmp_path / "cut" / METRICS).read_text().splitlines())
    listener = Notes()
    runs.resume(tmp_path / "cut", listener)
    assert listener.began_at == rounds >= 5
    cut, whole = outcome_of(tmp_path / "cut"), outcome_of(tmp_path / "whole")
    del cut["clients"], whole["clients"]  # which checkpoint the last but one is differs
    assert cut == whole


def test_what_ends_a_run_after_a_round_costs_nothing(npz: Path, tmp_path: Path) -> None:
    class Stop(Listener):
        def round(self, record: Record) -> None:
            if record["round"] == 5:
                raise Stopped

    experiment = tiny(npz, algorithm="moon", sample=2, rounds=8, checkpoint_every=None)
    runs.run(experiment, tmp_path / "whole")
    with pytest.raises(Stopped):
        runs.run(experiment, tmp_path / "cut", Stop())
    listener = Notes()
    runs.resume(tmp_path / "cut", listener)
    assert listener.began_at == 5  # where it was stopped
    cut, whole = outcome_of(tmp_path / "cut"), outcome_of(tmp_path / "whole")
    del cut["clients"], whole["clients"]  # which checkpoint the last but one is, time tells
    assert cut == whole


@pytest.mark.usefixtures("norm_net")
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_round_leaves_what_was_reached_before_as_it_is(npz: Path, tmp_path: Path, algorithm: str) -> None:
    experiment = tiny(
        npz, model="norm", algorithm=algorithm, batchnorm="local", sample=2, server_momentum=0.5
    )
    folder, store = RunFolder(tmp_path), FolderStore(tmp_path / "clients")
    server = Server(*resolve(experiment), store)
    progress = server.begin()
    folder.append(server.step(progress))
    for _ in range(4):
        reached = folder.checkpoints.reached(progress, store, 0.0)
        before = folder.checkpoints.snapshot(reached, FolderStore(tmp_path), {})
        folder.append(server.step(progress))
        after = folder.checkpoints.snapshot(reached, FolderStore(tmp_path), {})
        assert after.note == before.note
        assert same(after.tensors, before.tensors)
        assert after.clients.keys() == before.clients.keys()
        assert all(same(after.clients[k], before.clients[k]) for k in before.clients)


@pytest.mark.parametrize("algorithm", ["fedgela", "fedrep", "fedproto", "moon"])
def test_a_visit_reads_what_it_needs_of_a_model_on_disk(
    npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algorithm: str
) -> None:
    experiment = tiny(npz, algorithm=algorithm, rounds=3)
    _, expected = play(serve(experiment))
    folder = RunFolder(tmp_path)
    store = FolderStore(folder.clients)
    server = Server(*resolve(experiment), store)
    folder.make_folders()
    read: list[set[str]] = []

    def entries(path: Path, names: set[str]) -> State:
        read.append(set(names))
        return read_entries(path, names)

    def whole(path: Path) -> tuple[State, str]:
        tensors, note = read_tensors(path)
        read.append(set(tensors))
        return tensors, note

    monkeypatch.setattr("fedgela.checkpoints.read_entries", entries)
    monkeypatch.setattr("fedgela.checkpoints.read_tensors", whole)
    progress, records = server.begin(), []
    for _ in range(3):
        records.append(server.step(progress))
        folder.append(records[-1])
        reached = folder.checkpoints.reached(progress, store, 0.0)
        folder.checkpoints.save(folder.checkpoints.snapshot(reached, store, {}), store)
    for record in (*records, *expected):
        del record["seconds"], record["training_seconds"]
    assert records == expected
    every = set(server.net.state_dict())
    needed = {"fedgela": {"head.classifier.weight"}, "fedrep": {"head.weight", "head.bias"}}
    assert read == [needed.get(algorithm, every)] * 8  # by four clients in the second round and the third


def test_a_full_disk_ends_the_run(npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Checkpoints, "save", full)
    with pytest.raises(OSError, match="No space left"):
        runs.run(tiny(npz), tmp_path / "run")
    assert not (tmp_path / "run" / "result.json").exists()
    with pytest.raises(OSError, match="No space left"):  # the only checkpoint is that of the last round
        runs.run(tiny(npz, rounds=1), tmp_path / "short")
    assert not (tmp_path / "short" / "result.json").exists()


@pytest.mark.parametrize("every", [None, 50])
def test_a_full_disk_ends_the_run_before_the_next_checkpoint_is_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int | None
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Checkpoints, "save", full)
    monkeypatch.setattr(Checkpoints, "reached", lambda *_: "something")
    monkeypatch.setattr(Checkpoints, "snapshot", lambda *_: None)
    saver = Saver(RunFolder(tmp_path).checkpoints, FolderStore(tmp_path), {}, every, pytest.fail)
    saver._took = 60.0  # of the one before
    saver.reached(None, 0.0)  # type: ignore[arg-type]
    saver.save()
    with pytest.raises(OSError, match="No space left"):
        for _ in range(int(SECONDS / 0.01)):
            assert not saver.is_due(7)
            time.sleep(0.01)
    saver._thread.shutdown()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full on this system")
def test_a_full_disk_is_told_with_the_file(tmp_path: Path) -> None:
    (tmp_path / METRICS).symlink_to("/dev/full")
    with pytest.raises(OSError, match=METRICS) as error:
        RunFolder(tmp_path).append({"round": 1})
    assert error.value.errno == errno.ENOSPC


def test_a_run_that_is_stopped_waits_for_its_checkpoint(
    npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stopping(Listener):
        def round(self, record: Record) -> None:
            raise KeyboardInterrupt

    save = Checkpoints.save

    def slowly(folder: Checkpoints, snapshot: Snapshot, store: FolderStore) -> None:
        time.sleep(0.2)
        save(folder, snapshot, store)

    monkeypatch.setattr(Checkpoints, "save", slowly)
    with pytest.raises(KeyboardInterrupt):
        runs.run(tiny(npz), tmp_path, Stopping())
    checkpoint = RunFolder(tmp_path).checkpoints.load(torch.device("cpu"), pytest.fail)
    assert checkpoint is not None and checkpoint.progress.round == 1


@pytest.mark.parametrize("took", [0.1, 60.0])
def test_a_last_checkpoint_that_takes_long_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, took: float
) -> None:
    monkeypatch.setattr(Checkpoints, "reached", lambda *_: "something")
    monkeypatch.setattr(Checkpoints, "snapshot", lambda *_: None)
    told = threading.Event()
    monkeypatch.setattr(Checkpoints, "save", lambda *_: took < 1 or told.wait(SECONDS))
    notes: list[str] = []

    def hear(text: str) -> None:
        notes.append(text)
        told.set()

    with (
        pytest.raises(Stopped),
        Saver(RunFolder(tmp_path).checkpoints, FolderStore(tmp_path), {}, 5, hear) as saver,
    ):
        saver._took = took
        saver.reached(None, 0.0)  # type: ignore[arg-type]
        raise Stopped
    expected = "a last checkpoint is being written; the one before took 60 s"
    assert notes == ([expected] if took == 60.0 else [])


def test_a_full_disk_does_not_hide_why_a_run_ended(
    npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stopping(Notes):
        def round(self, record: Record) -> None:
            raise KeyboardInterrupt

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Checkpoints, "save", full)
    listener = Stopping()
    with pytest.raises(KeyboardInterrupt):
        runs.run(tiny(npz), tmp_path, listener)
    assert (
        listener.notes[-1] == "the last checkpoint could not be written ([Errno 28] No space left on device)"
    )


def test_what_a_checkpoint_is_to_hold_does_not_change_with_the_run(tmp_path: Path, npz: Path) -> None:
    runs.run(tiny(npz), tmp_path)
    folder = RunFolder(tmp_path)
    checkpoint = folder.checkpoints.load(torch.device("cpu"), pytest.fail)
    assert checkpoint is not None
    progress, store = checkpoint.progress, FolderStore(folder.clients, checkpoint.clients)
    store.put(0, {"w": torch.zeros(3)})
    model = store.get(0)
    assert model is not None
    snapshot = folder.checkpoints.snapshot(folder.checkpoints.reached(progress, store, 0.0), store, {})
    for tensor in (progress.visited, *progress.server.model.values(), model["w"]):
        tensor.fill_(-1)
    assert torch.equal(snapshot.clients[0]["w"], torch.zeros(3))
    assert all(bool((value != -1).any()) for value in snapshot.tensors.values() if value.numel())
    assert store.get(0) is snapshot.clients[0]  # until it is on disk


@pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="there is no forking on this system"
)
def test_a_forked_worker_does_not_keep_the_lock(tmp_path: Path) -> None:
    """A worker ends a little later than the process that was killed: `resume` need not wait for it."""
    folder = RunFolder(tmp_path)
    with folder.locked():
        worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(SECONDS,), daemon=True)
        worker.start()
        assert folder.is_locked()
    try:
        with folder.locked():  # nobody has it any more
            assert worker.is_alive()
    finally:
        worker.kill()
        worker.join()
