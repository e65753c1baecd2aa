"""A run that was interrupted, by whatever and as often as you like, ends as if it had never been."""

import hashlib
import json
import os
import pickle
import random
import re
import signal
import time
from collections.abc import Callable
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch

from fedgela import runs
from fedgela.algorithms import ALGORITHMS
from fedgela.checkpoints import Checkpoints
from fedgela.errors import UserError
from fedgela.files import read_tensors
from fedgela.saving import Saver
from fedgela.server import Server
from fedgela.watch import Watcher
from helpers import Notes, listing, outcome_of, run_cut, start_command, tiny, tiny_table


class Killed(Exception):
    pass


def kill_at(patch: pytest.MonkeyPatch, round: int) -> None:
    """Let `round` rounds pass; in the next step, or else at the end, the process is as good as killed: what
    is not on its way to the disk by then does not get there."""
    step = Server.step

    def killed(*_: Any) -> Any:
        patch.setattr(Saver, "save", lambda saver: None)
        raise Killed

    def stepping(server: Server, progress: Any) -> Any:
        return killed() if progress.round == round else step(server, progress)

    patch.setattr(Server, "step", stepping)
    patch.setattr(Server, "finish", killed)


def run_killed(experiment: Any, folder: Path, after: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        kill_at(patch, after)
        with pytest.raises(Killed):
            runs.run(experiment, folder)


# -- killed processes ------------------------------------------------------------------------------


def wait_for(condition: Callable[[], bool], process: ForkProcess) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert process.is_alive(), f"the run ended, with {process.exitcode}, before it could be killed"
        assert time.monotonic() < end, "the run does not get anywhere"
        time.sleep(0.0002)


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def kill_after(seconds: float) -> Callable[[Path, ForkProcess], None]:
    """Some time after the process has written its first round."""

    def when(out: Path, process: ForkProcess) -> None:
        before = size(out / "metrics.jsonl")
        wait_for(lambda: size(out / "metrics.jsonl") > before, process)
        time.sleep(seconds)

    return when


def kill_while_writing(folder: str) -> Callable[[Path, ForkProcess], None]:
    """While a file of this folder is being written: it stands there under its temporary name."""

    def when(out: Path, process: ForkProcess) -> None:
        place = out / folder

        def written() -> set[tuple[int, int]]:
            try:
                found = [entry for entry in os.scandir(place) if entry.name.endswith(".writing")]
                return {(entry.inode(), entry.stat().st_mtime_ns) for entry in found}
            except FileNotFoundError:
                return set()

        before = written()  # may be a former kill's
        wait_for(lambda: bool(written() - before), process)

    return when


RNG = random.Random(20231210)
MODEL = {"name": "fedgela", "E_W": 25.0}
KILLED = {
    "fedavg with server momentum": (
        {"algorithm": "fedavg", "server_momentum": 0.9, "server_lr": 0.5},
        [kill_after(RNG.uniform(0, 0.3)), kill_while_writing("checkpoints")],
    ),
    "fedgela with partial participation": (
        {"algorithm": MODEL, "sample": 2, "eval_every": 2},
        [kill_while_writing("clients"), kill_after(RNG.uniform(0, 0.3)), kill_while_writing("checkpoints")],
    ),
    "averaged over rounds": (
        {"algorithm": MODEL, "sample": 2, "server_average": 0.8},
        [kill_while_writing("checkpoints"), kill_after(RNG.uniform(0, 0.3))],
    ),
    "local": (
        {"algorithm": "local", "sample": 3, "checkpoint_every": 3},
        [kill_after(RNG.uniform(0, 0.3)), kill_while_writing("checkpoints")],
    ),
}


@pytest.mark.parametrize("case", KILLED)
def test_a_killed_process_ends_as_if_it_had_never_been_killed(npz: Path, tmp_path: Path, case: str) -> None:
    changes, kills = KILLED[case]
    table = tiny_table(npz, rounds=60, **changes)
    runs.run(tiny(npz, rounds=60, **changes), tmp_path / "whole")

    config, out, said = tmp_path / "config.toml", tmp_path / "killed", tmp_path / "said.txt"
    config.write_text(tomli_w.dumps(table))
    for i, when in enumerate(kills):
        process = start_command(*(("run", config, "--out", out) if i == 0 else ("resume", out)), log=said)
        if i == 0:  # while we are here: a living process has its folder for itself
            wait_for((out / "config.toml").exists, process)
            with pytest.raises(UserError, match="another process is working in this folder"):
                runs.resume(out)
        when(out, process)
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL, said.read_text()
    assert not (out / "result.json").exists()
    runs.resume(out)
    assert outcome_of(out) == outcome_of(tmp_path / "whole")
    assert list(out.rglob("*.writing")) == []


# -- interrupted between rounds --------------------------------------------------------------------


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_interruption_before_any_round_or_at_the_end_changes_nothing(
    npz: Path, tmp_path: Path, name: str
) -> None:
    # every second round has a checkpoint, so that half of the interruptions lose a round
    changes = {"algorithm": name, "sample": 2, "server_momentum": 0.5, "checkpoint_every": 2, "rounds": 4}
    experiment = tiny(npz, **changes)
    runs.run(experiment, tmp_path / "whole")
    for round in range(5):
        folder = tmp_path / str(round)
        run_killed(experiment, folder, round)
        listener = Notes()
        runs.resume(folder, listener)
        assert listener.began_at == round - round % 2
        told = [note for note in listener.notes if "checkpoint" in note]
        assert len(told) == (round == 1)  # a round that no checkpoint has is lost, and nothing else
        assert outcome_of(folder) == outcome_of(tmp_path / "whole")


@pytest.mark.parametrize("changes", [{}, {"server_average": 0.9}, {"aggregation": "median", "sample": 3}])
def test_a_run_interrupted_in_every_round_still_ends_the_same(
    npz: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    experiment = tiny(npz, **{"sample": 2, "rounds": 4} | changes)
    runs.run(experiment, tmp_path / "whole")
    run_killed(experiment, tmp_path / "cut", 0)
    for round in range(1, 5):
        with pytest.MonkeyPatch.context() as patch:
            kill_at(patch, round)
            with pytest.raises(Killed):
                runs.resume(tmp_path / "cut")
    runs.resume(tmp_path / "cut")
    assert outcome_of(tmp_path / "cut") == outcome_of(tmp_path / "whole")


def test_models_of_an_interrupted_end_are_replaced(npz: Path, tmp_path: Path) -> None:
    experiment = tiny(npz)
    runs.run(experiment, tmp_path / "whole")
    run_killed(experiment, tmp_path / "cut", 3)
    (tmp_path / "cut/models/global-best.0123456789abcdef.safetensors").write_text("of a killed process")
    runs.resume(tmp_path / "cut")
    assert outcome_of(tmp_path / "cut") == outcome_of(tmp_path / "whole")


def test_a_kill_between_the_last_checkpoint_and_its_sweep_leaves_nothing_behind(
    npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = Checkpoints._sweep

    def killed_at_last(folder: Checkpoints) -> None:
        if folder._paths()[0].name.startswith("round-000004"):
            raise RuntimeError("killed")
        sweep(folder)

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "_sweep", killed_at_last)
        with pytest.raises(RuntimeError, match="killed"):
            runs.run(tiny(npz, rounds=4), tmp_path)
    runs.resume(tmp_path)
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2


# -- damaged files ---------------------------------------------------------------------------------


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)


def checkpoint(folder: Path, which: int) -> Path:
    return sorted((folder / "checkpoints").glob("*.safetensors"))[which]


def client_of_newest_alone(folder: Path) -> Path:
    """A client's model that only the newest checkpoint refers to."""
    older, newer = (
        set(json.loads(read_tensors(checkpoint(folder, i))[1])["clients"].values()) for i in (0, 1)
    )
    return folder / "clients" / sorted(newer - older)[0]


def client_of_both(folder: Path) -> Path:
    older, newer = (
        set(json.loads(read_tensors(checkpoint(folder, i))[1])["clients"].values()) for i in (0, 1)
    )
    return folder / "clients" / sorted(newer & older)[0]


@pytest.fixture(scope="module")
def whole(npz: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("whole") / "run"
    runs.run(damaged_experiment(npz), folder)
    return outcome_of(folder)


def damaged_experiment(npz: Path) -> Any:
    return tiny(npz, sample=2, rounds=6, seed=1)


@pytest.fixture
def cut(npz: Path, tmp_path: Path) -> Path:
    """A run that was interrupted after round 4: checkpoints of rounds 3 and 4."""
    run_killed(damaged_experiment(npz), tmp_path / "run", 4)
    return tmp_path / "run"


DAMAGE: dict[str, Callable[[Path], None]] = {
    "checkpoint truncated": lambda folder: truncate(checkpoint(folder, 1)),
    "checkpoint emptied": lambda folder: checkpoint(folder, 1).write_bytes(b""),
    "byte flipped": lambda folder: flip(checkpoint(folder, 1)),
    "client deleted": lambda folder: client_of_newest_alone(folder).unlink(),
    "client truncated": lambda folder: truncate(client_of_newest_alone(folder)),
    "metrics truncated": lambda folder: truncate(folder / "metrics.jsonl"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(
    cut: Path, whole: dict[str, Any], damage: str
) -> None:
    newest = checkpoint(cut, 1).name
    DAMAGE[damage](cut)
    listener = Notes()
    runs.resume(cut, listener)
    assert listener.began_at == 3
    assert len(listener.notes) == 1
    assert newest in listener.notes[0]
    assert outcome_of(cut) == whole


def test_a_config_that_was_changed_meanwhile_is_refused_and_hardware_and_length_are_not(
    cut: Path, whole: dict[str, Any]
) -> None:
    config = cut / "config.toml"
    text = config.read_text()
    config.write_text(text.replace("lr = 0.05", "lr = 0.5"))
    with pytest.raises(UserError, match=r"config\.toml: lr is 0\.5 now, and was 0\.05 when the run began"):
        runs.resume(cut)
    config.write_text("augment = true\n" + text)
    with pytest.raises(UserError, match="augment is True now, and was None when the run began"):
        runs.resume(cut)
    config.write_text(text.replace("rounds = 6", "rounds = 7").replace("threads = 1", "threads = 2"))
    assert runs.resume(cut)["rounds"] == 7


def test_a_key_that_a_later_version_gives_a_method_counts_as_its_default(npz: Path, tmp_path: Path) -> None:
    began = runs._settings(tiny(npz))
    del began["algorithm"]["phi_floor"]
    runs._check_settings(tmp_path, began, runs._settings(tiny(npz)))
    changed = tiny(npz, algorithm={"name": "fedgela", "phi_floor": 0.5})
    with pytest.raises(UserError, match=r"algorithm is .* now, and was"):
        runs._check_settings(tmp_path, began, runs._settings(changed))
    unknown = {**began, "forgotten": 1}
    with pytest.raises(UserError, match="forgotten is None now, and was 1"):
        runs._check_settings(tmp_path, unknown, {**began})


def test_a_run_whose_learning_rates_are_those_of_its_length_keeps_it(npz: Path, tmp_path: Path) -> None:
    run_killed(tiny(npz, rounds=4, schedule="cosine"), tmp_path, 3)
    config = tmp_path / "config.toml"
    config.write_text(config.read_text().replace("rounds = 4", "rounds = 8"))
    with pytest.raises(UserError, match="rounds is 8 now, and was 4 when the run began"):
        runs.resume(tmp_path)


UNREADABLE: dict[str, Callable[[Path], Path]] = {
    "checkpoint": lambda folder: checkpoint(folder, 1),
    "client": client_of_both,
    "metrics": lambda folder: folder / "metrics.jsonl",
}


@pytest.mark.parametrize("file", UNREADABLE)
def test_a_file_that_cannot_be_read_for_now_is_not_taken_for_damaged(
    cut: Path, whole: dict[str, Any], file: str
) -> None:
    path = UNREADABLE[file](cut)
    aside = path.rename(cut.parent / "aside")
    path.symlink_to(path)  # which no system reads
    there = sorted(cut.rglob("*"))
    with pytest.raises(UserError, match=f"{path.name}: cannot be read .*\n.* or delete it"):
        runs.resume(cut)
    assert sorted(cut.rglob("*")) == there
    path.unlink()
    aside.rename(path)
    listener = Notes()
    runs.resume(cut, listener)
    assert (listener.began_at, listener.notes) == (4, [])
    assert outcome_of(cut) == whole


BOTH: dict[str, Callable[[Path], object]] = {
    "both truncated": lambda folder: [truncate(checkpoint(folder, i)) for i in (0, 1)],
    "shared client flipped": lambda folder: flip(client_of_both(folder)),
    "metrics deleted": lambda folder: (folder / "metrics.jsonl").unlink(),
}


@pytest.mark.parametrize("damage", BOTH)
def test_without_a_sound_checkpoint_a_run_starts_again(cut: Path, whole: dict[str, Any], damage: str) -> None:
    names = [checkpoint(cut, i).name for i in (0, 1)]
    BOTH[damage](cut)
    listener = Notes()
    runs.resume(cut, listener)
    assert listener.began_at == 0
    what_then = ("trying the one before it", "starting again from round 0")
    for name, note, then in zip(reversed(names), listener.notes, what_then, strict=True):
        assert name in note and note.endswith(then)
    assert outcome_of(cut) == whole


def test_checkpoints_that_are_gone_are_told_of(cut: Path, whole: dict[str, Any]) -> None:
    for path in (cut / "checkpoints").iterdir():
        path.unlink()
    listener = Notes()
    runs.resume(cut, listener)
    assert listener.began_at == 0
    assert listener.notes == [
        "there is no checkpoint, none was written yet or they are gone: starting from round 0"
    ]
    assert outcome_of(cut) == whole


def test_a_flipped_byte_in_the_metrics_is_noticed(cut: Path, whole: dict[str, Any]) -> None:
    flip(cut / "metrics.jsonl")
    runs.resume(cut)
    assert outcome_of(cut) == whole


def test_metrics_longer_than_the_checkpoint_are_cut(cut: Path, whole: dict[str, Any]) -> None:
    # a kill after a round's line, before its checkpoint; and half a line
    with (cut / "metrics.jsonl").open("a") as file:
        file.write('{"round": 5, "GA": 99.0}\n{"round": 6, "G')
    listener = Notes()
    runs.resume(cut, listener)
    assert listener.notes == []
    assert outcome_of(cut) == whole


def test_a_run_is_not_made_shorter_than_it_is(cut: Path) -> None:
    config = (cut / "config.toml").read_text()
    (cut / "config.toml").write_text(re.sub(r"^rounds = \d+", "rounds = 1", config, flags=re.M))
    with pytest.raises(UserError, match=r"rounds is 1 now, but \d+ are done"):
        runs.resume(cut)


@pytest.mark.parametrize("name", ["fedavg", "fedgela"])
def test_a_run_does_not_end_in_a_round_that_was_not_evaluated(npz: Path, tmp_path: Path, name: str) -> None:
    run_cut(tiny(npz, algorithm=name, rounds=5, eval_every=3), tmp_path, 2)
    config = tmp_path / "config.toml"
    config.write_text(config.read_text().replace("rounds = 5", "rounds = 2"))
    with pytest.raises(UserError, match="rounds is 2 now, and so many are done, but the last was not"):
        runs.resume(tmp_path)
    config.write_text(config.read_text().replace("rounds = 2", "rounds = 3"))
    assert runs.resume(tmp_path)["GA"]["last_round"] == 3


def test_a_run_that_goes_on_has_not_failed_any_more(cut: Path) -> None:
    (cut / "error.txt").write_text("Traceback of an earlier attempt")
    (failed,) = Watcher(cut).look().runs
    with pytest.MonkeyPatch.context() as patch:
        kill_at(patch, 5)
        with pytest.raises(Killed):
            runs.resume(cut)
    (stopped,) = Watcher(cut).look().runs
    assert (failed.stage, stopped.stage) == ("failed", "stopped")
    assert not (cut / "error.txt").exists()


def test_half_written_files_are_removed(cut: Path, whole: dict[str, Any]) -> None:
    for folder in ("checkpoints", "clients", "models"):
        (cut / folder / "round-000009.0123456789abcdef.safetensors.writing").write_text("half")
    runs.resume(cut)
    assert list(cut.rglob("*.writing")) == []
    assert outcome_of(cut) == whole


# -- nothing is unpickled --------------------------------------------------------------------------


def test_nothing_is_ever_unpickled(cut: Path, whole: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("unpickled")

    monkeypatch.setattr(pickle, "load", refuse)
    monkeypatch.setattr(pickle, "loads", refuse)
    monkeypatch.setattr(pickle, "Unpickler", refuse)
    monkeypatch.setattr(torch, "load", refuse)
    runs.resume(cut)
    assert outcome_of(cut) == whole


class Exploit:
    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


def test_a_pickle_in_a_checkpoints_place_is_refused_unread(
    cut: Path, whole: dict[str, Any], tmp_path: Path
) -> None:
    content = pickle.dumps(Exploit(tmp_path / "hacked"))
    checksum = hashlib.sha256(content).hexdigest()[:16]
    (cut / "checkpoints" / f"round-000005.{checksum}.safetensors").write_bytes(content)
    listener = Notes()
    runs.resume(cut, listener)
    assert f"round-000005.{checksum}" in listener.notes[0]
    assert not (tmp_path / "hacked").exists()
    assert outcome_of(cut) == whole


# -- folders that cannot be resumed ----------------------------------------------------------------


def test_a_folder_without_a_run_is_refused_and_untouched(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(UserError, match=r"there is no run in this folder \(no config.toml\)"):
            runs.resume(folder)
    assert list(tmp_path.iterdir()) == []


def test_a_finished_run_gives_its_result_again_and_stays_as_it_is(npz: Path, tmp_path: Path) -> None:
    result = runs.run(tiny(npz), tmp_path)
    before = listing(tmp_path)
    listener = Notes()
    assert runs.resume(tmp_path, listener) == result
    assert listener.notes == ["this run is finished"]
    assert listing(tmp_path) == before


def test_a_finished_run_that_is_to_be_longer_tells_how(npz: Path, tmp_path: Path) -> None:
    runs.run(tiny(npz), tmp_path / "run")
    config, result = tmp_path / "run/config.toml", tmp_path / "run/result.json"
    config.write_text(config.read_text().replace("rounds = 3", "rounds = 5"))
    listener = Notes()
    runs.resume(tmp_path / "run", listener)
    assert listener.notes[1:] == [
        f"{config}: rounds is 5 now, and the result is of 3: without {result} the run goes on"
    ]
    result.unlink()
    runs.resume(tmp_path / "run")
    runs.run(tiny(npz, rounds=5), tmp_path / "whole")
    assert outcome_of(tmp_path / "run") == outcome_of(tmp_path / "whole")


def test_a_damaged_config_or_result_is_named(npz: Path, tmp_path: Path) -> None:
    runs.run(tiny(npz), tmp_path)
    (tmp_path / "result.json").write_text("{")
    with pytest.raises(UserError, match=r"result.json: cannot be read"):
        runs.resume(tmp_path)
    (tmp_path / "result.json").write_text("{}")
    for go_on in (runs.resume, lambda folder: runs.run_or_resume(tiny(npz), folder)):
        with pytest.raises(
            UserError, match=r"result.json: has neither GA nor PA\ndelete it, and 'fedgela res"
        ):
            go_on(tmp_path)
    (tmp_path / "result.json").unlink()
    (tmp_path / "config.toml").write_text("rounds = ")
    with pytest.raises(UserError, match=r"config.toml: not valid TOML"):
        runs.resume(tmp_path)
