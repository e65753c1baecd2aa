"""Events are what metrics.jsonl says, each round once, however often the run was interrupted."""

import errno
import json
import sys
import time
from pathlib import Path

import pytest
import tomli_w

from fedgela import runs
from fedgela.compare import compare
from fedgela.config import parse_experiment
from fedgela.errors import UserError
from fedgela.listener import Listener
from fedgela.methods import experiments_of
from fedgela.progress import PlainView
from fedgela.resolve import resolve
from fedgela.runfolder import RunFolder
from fedgela.seeds import resume_seeds, run_seeds
from fedgela.tensorboard import Events, tag_of
from helpers import Cli, Cutting, Notes, outcome_of, run_cut, start_command, tiny, tiny_table

pytest.importorskip("tensorboard")
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

Scalars = dict[str, list[tuple[int, float]]]


def events_of(run: Path) -> Scalars:
    """As TensorBoard reads them."""
    read = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0})
    read.Reload()
    return {tag: [(e.step, e.value) for e in read.Scalars(tag)] for tag in read.Tags()["scalars"]}


def expected_of(run: Path) -> Scalars:
    """Every number of every round, by its tag."""
    scalars: Scalars = {}
    for line in (run / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        for key, value in record.items():
            if isinstance(value, int | float) and key != "round":
                scalars.setdefault(tag_of(key), []).append((record["round"], pytest.approx(value, rel=1e-6)))
    return scalars


def test_every_number_of_every_round_is_there(npz: Path, tmp_path: Path) -> None:
    runs.run(tiny(npz, tensorboard=True, track="angles,collapse,gradients"), tmp_path / "run")
    events = events_of(tmp_path / "run")
    assert events == expected_of(tmp_path / "run")
    assert {
        "accuracy/GA",
        "accuracy/PA",
        "training/train_loss",
        "angles/angle_all_server",
        "angles/class_mean_angle_existing_clients",
        "collapse/nc1_server",
        "models/drift",
        "models/gradient_norm",
    } <= events.keys()


def test_a_fine_tuned_PA_comes_with_the_last_round(npz: Path, tmp_path: Path) -> None:
    result = runs.run(tiny(npz, tensorboard=True, algorithm="fedavg"), tmp_path / "run")
    assert events_of(tmp_path / "run")["accuracy/PA"] == [(3, pytest.approx(result["PA"]["last"]))]


def test_events_change_nothing_else(npz: Path, tmp_path: Path) -> None:
    notes = Notes()
    runs.run(tiny(npz), tmp_path / "without")
    runs.run(tiny(npz, tensorboard=True), tmp_path / "with", notes)
    with_events, without = outcome_of(tmp_path / "with"), outcome_of(tmp_path / "without")
    assert with_events.pop("config") != without.pop("config")
    assert with_events == without and notes.began_at == 0
    assert not (tmp_path / "without/tensorboard").exists()


def test_a_resumed_run_has_every_round_once(npz: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    run_cut(tiny(npz, rounds=7, checkpoint_every=2, tensorboard=True), out, at=5)
    assert [step for step, _ in events_of(out)["accuracy/GA"]] == [1, 2, 3, 4, 5]
    interrupted_again = Cutting(6)
    with pytest.raises(KeyboardInterrupt):
        runs.resume(out, interrupted_again)
    runs.resume(out)
    events = events_of(out)
    assert [step for step, _ in events["accuracy/GA"]] == [1, 2, 3, 4, 5, 6, 7]
    assert events == expected_of(out)


def test_a_run_that_was_killed_for_real_has_every_round_once(npz: Path, tmp_path: Path) -> None:
    config, out = tmp_path / "config.toml", tmp_path / "run"
    config.write_text(tomli_w.dumps(tiny_table(npz, rounds=400, checkpoint_every=3)))
    process = start_command("run", config, "--out", out, "--tensorboard")
    end = time.monotonic() + 60
    while not list(out.glob("checkpoints/round-*.safetensors")):
        assert process.is_alive() and time.monotonic() < end
        time.sleep(0.01)
    process.kill()
    process.join()
    (out / "config.toml").write_text(  # it need not run all of them for this
        (out / "config.toml").read_text().replace("rounds = 400", f"rounds = {lines_of(out) + 4}")
    )
    runs.resume(out)
    assert events_of(out) == expected_of(out)


def lines_of(run: Path) -> int:
    return len((run / "metrics.jsonl").read_text().splitlines())


def test_events_can_begin_when_a_run_is_resumed(npz: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    run_cut(tiny(npz), out, at=2)
    runs.resume(out, tensorboard=True)
    assert events_of(out) == expected_of(out)  # from the first round on

    later = tmp_path / "later"
    run_cut(tiny(npz), later, at=1)
    with pytest.raises(KeyboardInterrupt):
        runs.resume(later, Cutting(2), tensorboard=True)
    runs.resume(later)  # what began it goes on with it
    assert events_of(later) == expected_of(later)

    off = tmp_path / "off"
    run_cut(tiny(npz, tensorboard=True), off, at=2)
    runs.resume(off, tensorboard=False)
    assert [step for step, _ in events_of(off)["accuracy/GA"]] == [1, 2]


def test_a_finished_run_gets_its_events_too(npz: Path, tmp_path: Path) -> None:
    runs.run(tiny(npz, algorithm="fedavg"), tmp_path / "run")
    notes = Notes()
    runs.resume(tmp_path / "run", notes, tensorboard=True)
    assert notes.notes == ["this run is finished"]
    events = events_of(tmp_path / "run")
    assert [step for step, _ in events["accuracy/GA"]] == [1, 2, 3]
    assert [step for step, _ in events["accuracy/PA"]] == [3]  # fine-tuned, after the last


def test_comparisons_and_seeds_have_events_too(npz: Path, tmp_path: Path) -> None:
    table = {k: v for k, v in tiny_table(npz, rounds=1).items() if k != "algorithm"}
    with PlainView(Console(quiet=True)) as view:
        for tensorboard in (False, True):  # the second time nothing is left to run
            chosen = table | {"tensorboard": tensorboard}
            compare(experiments_of(chosen, ["fedge"], "config"), [0], tmp_path / "all", view)
        assert not (tmp_path / "all/fedge/seed-0/tensorboard").exists()
        run_seeds(parse_experiment(table), [0], tmp_path / "seeds", view)
        (tmp_path / "seeds/seed-0/result.json").unlink()
        resume_seeds(tmp_path / "seeds", view, tensorboard=True)
    assert events_of(tmp_path / "seeds/seed-0") == expected_of(tmp_path / "seeds/seed-0")


def test_flags_of_run_compare_and_resume(npz: Path, tmp_path: Path, command: Cli) -> None:
    config = tmp_path / "config.toml"
    config.write_text(tomli_w.dumps(tiny_table(npz, rounds=2)))

    def call(*arguments: object) -> None:
        assert command(*arguments)[0] == 0

    both = ("--track", "angles,gradients", "--tensorboard")
    call("run", config, "--out", tmp_path / "run", *both)
    call("compare", config, "--algorithms", "fedrod", "--out", tmp_path / "all", *both)
    call("run", config, "--out", tmp_path / "later")
    (tmp_path / "later/result.json").unlink()
    call("resume", tmp_path / "later", "--tensorboard")
    for run in ("run", "all/fedrod/seed-0", "later"):
        events = events_of(tmp_path / run)
        assert events == expected_of(tmp_path / run)
        assert ("models/gradient_norm" in events) == (run != "later")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full on this system")
def test_a_full_disk_is_told_with_the_file(npz: Path, tmp_path: Path) -> None:
    runs.run(tiny(npz), tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    events = Events(folder, Listener())
    events.started(folder.experiment(), 3)
    (file,) = (tmp_path / "run/tensorboard").iterdir()
    file.unlink()
    file.symlink_to("/dev/full")
    with pytest.raises(OSError, match=file.name) as error:
        events.round({"round": 4, "GA": 50.0})
    assert error.value.errno == errno.ENOSPC


def test_without_tensorboard_a_line_says_what_to_install(
    npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs.run(tiny(npz), tmp_path / "finished")
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(UserError, match=r"pip install 'fedgela\[tensorboard\]'"):
        runs.run(tiny(npz, tensorboard=True), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(UserError, match=r"pip install 'fedgela\[tensorboard\]'"):
        runs.resume(tmp_path / "finished", tensorboard=True)
    resolve(tiny(npz))  # and nothing else needs it
