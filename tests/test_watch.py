"""`fedgela watch` tells by a folder's files how its runs stand: while they run, after a kill, at the end."""

import fcntl
import io
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from rich.console import Console

from fedgela import runs, watch, watch_view
from fedgela.compare import compare
from fedgela.errors import UserError
from fedgela.flower.terms import TERMS
from fedgela.methods import experiments_of
from fedgela.progress import PlainView
from fedgela.runfolder import RunFolder
from fedgela.seeds import run_seeds
from fedgela.watch import Look, Watcher
from fedgela.watch_view import line_of, sparkline, to_rich, to_text
from helpers import Cli, listing, start_command, tiny, tiny_table


@pytest.fixture(scope="module")
def finished(npz: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("watched") / "gela"
    runs.run(tiny(npz, rounds=5), folder)
    return folder


def unfinished(finished: Path, folder: Path, rounds: int) -> Path:
    """A run whose process was killed after so many of five rounds."""
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text((finished / "config.toml").read_text())
    lines = (finished / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(lines[:rounds]))
    (folder / ".lock").touch()
    return folder


class Worker:
    """Holds a folder's lock, as a run's process does."""

    def __init__(self, folder: Path) -> None:
        self.folder = RunFolder(folder)
        self.holding = self.folder.locked()

    def __enter__(self) -> None:
        self.holding.__enter__()

    def __exit__(self, *error: Any) -> None:
        self.holding.__exit__(*error)


# -- one look --------------------------------------------------------------------------------------


def test_a_finished_run_in_full(finished: Path, command: Cli) -> None:
    result = json.loads((finished / "result.json").read_text())
    before = listing(finished)
    code, out, _ = command("watch", finished)  # it has ended: so does the command
    assert code == 0
    rows = dict(re.findall(r"^  (\w+)\s+(.*)$", out, re.M))
    assert out.startswith("gela  FedGELA\n") and rows["state"] == "finished"
    assert rows["rounds"].startswith("5 of 5, ") and "a round" in rows["rounds"]
    for name in ("GA", "PA"):
        r = result[name]
        assert rows[name].startswith(f"{r['last']:.2f}  best {r['best']:.2f} (round {r['best_round']})  ")
        assert len(rows[name].split()[-1]) == 5  # a bar a round
    loss = json.loads((finished / "metrics.jsonl").read_text().splitlines()[-1])["train_loss"]
    assert rows["loss"].startswith(f"{loss:.4f}  ")
    assert rows["checkpoints"] == "rounds 4, 5"
    assert "left" not in out and listing(finished) == before


def test_a_fine_tuned_PA_at_the_best_GA_is_not_called_the_best(npz: Path, tmp_path: Path) -> None:
    PA = runs.run(tiny(npz, algorithm="fedavg"), tmp_path / "run")["PA"]
    look = Watcher(tmp_path / "run").look()
    assert f"{PA['last']:.2f}  at the best GA {PA['best']:.2f} (round " in to_text(look)
    assert f"PA {PA['last']:.2f} (at the best GA {PA['best']:.2f})" in line_of(look.runs[0])


def test_a_running_one_has_time_left_and_a_stopped_one_says_what_to_do(
    finished: Path, tmp_path: Path
) -> None:
    run = unfinished(finished, tmp_path / "run", 2)
    with Worker(run):
        (seen,) = Watcher(run).look().runs
        assert (seen.stage, seen.rounds_done) == ("running", 2)
        each = [r["seconds"] for r in seen.records]
        assert seen.seconds_left == pytest.approx(3 * sum(each) / 2)
        assert "left" in to_text(Watcher(run).look())
    text = to_text(Watcher(run).look())
    assert f"stopped: no process works on it; 'fedgela resume {run}' goes on" in text and "left" not in text


def test_a_run_on_sites_goes_on_by_its_own_command(finished: Path, tmp_path: Path) -> None:
    run = unfinished(finished, tmp_path / "run", 2)
    (run / TERMS).write_text(json.dumps({"folder": "clinics"}))
    text = to_text(Watcher(run).look())
    assert f"'fedgela federation run clinics --resume --out {run}' goes on" in text


def test_after_the_last_round_the_final_models_are_measured(finished: Path, tmp_path: Path) -> None:
    run = unfinished(finished, tmp_path / "run", 5)
    with Worker(run):
        assert "measuring the final models" in to_text(Watcher(run).look())


def test_a_fine_tuned_PA_is_called_local_until_it_is_known(npz: Path, tmp_path: Path) -> None:
    runs.run(tiny(npz, rounds=2, algorithm="fedavg"), tmp_path / "run")
    assert re.search(r"^  PA ", to_text(Watcher(tmp_path / "run").look()), re.M)
    (tmp_path / "run/result.json").unlink()
    text = to_text(Watcher(tmp_path / "run").look())
    assert re.search(r"^  local ", text, re.M) and not re.search(r"^  PA ", text, re.M)


def test_a_raised_number_in_a_folders_name_is_no_number(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "1²2")
    assert [run.name for run in Watcher(tmp_path).look().runs] == ["1²2"]


def test_several_runs_are_a_line_each(npz: Path, tmp_path: Path) -> None:
    table = {k: v for k, v in tiny_table(npz, rounds=2).items() if k != "algorithm"}
    with PlainView(Console(quiet=True)) as view:
        compare(experiments_of(table, ["fedavg", "fedgela"], "config"), [0], tmp_path / "all", view)
        run_seeds(tiny(npz, rounds=1), [0, 1], tmp_path / "seeds", view)
    lines = to_text(Watcher(tmp_path / "all").look()).splitlines()
    assert [line.split("  ")[:3] for line in lines] == [
        ["fedavg/seed-0", "finished", "round 2/2"],
        ["fedgela/seed-0", "finished", "round 2/2"],
    ]
    (tmp_path / "seeds/seed-1/config.toml").unlink()  # as if its turn had not come
    assert to_text(Watcher(tmp_path / "seeds").look()).splitlines()[1] == "seed-1  waiting"
    drawn = io.StringIO()
    Console(file=drawn, width=80).print(to_rich(Watcher(tmp_path / "all").look(), 80))
    assert "fedgela/seed-0" in drawn.getvalue() and "2/2" in drawn.getvalue()
    assert max(map(len, drawn.getvalue().splitlines())) <= 80 and "…" not in drawn.getvalue()


def test_an_interrupted_comparison_lists_the_runs_to_come(
    npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = {k: v for k, v in tiny_table(npz, rounds=1).items() if k != "algorithm"}
    experiments = experiments_of(table, ["fedavg", "fedrep", "fedgela"], "config")
    go_on = runs.go_on

    def interrupted(folder: RunFolder, *rest: Any) -> Any:
        if folder.path.parent.name == "fedgela":
            raise KeyboardInterrupt
        if folder.path.parent.name == "fedrep":
            shutil.rmtree(folder.path)
            raise UserError("no such thing")
        return go_on(folder, *rest)

    monkeypatch.setattr(runs, "go_on", interrupted)
    with pytest.raises(KeyboardInterrupt), PlainView(Console(quiet=True)) as view:
        compare(experiments, [0, 1], tmp_path, view)
    look = Watcher(tmp_path).look()
    assert [f"{run.name} {run.stage}" for run in look.runs] == [
        "fedavg/seed-0 finished",
        "fedgela/seed-0 stopped",
    ]
    assert look.waiting == ["fedavg/seed-1", "fedrep/seed-1", "fedgela/seed-1"]
    assert look.notes == ["fedrep, seed 0: failed: no such thing"]
    assert "fedavg/seed-1  waiting" in to_text(look)
    monkeypatch.setattr(runs, "go_on", go_on)
    with PlainView(Console(quiet=True)) as view:
        compare(experiments, [0, 1], tmp_path, view)
    look = Watcher(tmp_path).look()
    assert (len(look.runs), look.waiting, look.notes, look.more_may_come) == (6, [], [], False)


def test_a_failed_run_of_a_comparison_names_its_error(finished: Path, tmp_path: Path) -> None:
    run = unfinished(finished, tmp_path / "all/fedgela/seed-0", 1)
    unfinished(finished, tmp_path / "all/fedge/seed-0", 1)
    (run / "error.txt").write_text("Traceback")
    text = to_text(Watcher(tmp_path / "all").look())
    assert f"fedgela/seed-0  failed: {run / 'error.txt'} says why" in text
    assert "fedge/seed-0  stopped" in text


def diverged(run: Path, round: int) -> None:
    """As if the training loss had been infinite in a round."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    records[round - 1]["train_loss"] = None
    (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def test_a_diverged_run_says_so_while_it_runs(finished: Path, tmp_path: Path) -> None:
    run = unfinished(finished, tmp_path / "run", 3)
    assert "infinite" not in to_text(Watcher(run).look())
    diverged(run, 2)
    text = to_text(Watcher(run).look())
    assert "  diverged    the training loss became infinite or NaN in round 2\n" in text


def test_a_diverged_run_among_others_is_marked(finished: Path, tmp_path: Path) -> None:
    run = unfinished(finished, tmp_path / "all/fedavg/seed-0", 5)
    unfinished(finished, tmp_path / "all/fedgela/seed-0", 5)
    result = json.loads((finished / "result.json").read_text())
    (run / "result.json").write_text(json.dumps(result | {"diverged_round": 4}))
    look = Watcher(tmp_path / "all").look()
    one, other, *_ = to_text(look).splitlines()
    assert "diverged in round 4" in one and "diverged" not in other
    drawn = io.StringIO()
    Console(file=drawn, width=80).print(to_rich(look, 80))
    assert "fedavg/seed-0 †" in drawn.getvalue() and "fedgela/seed-0 †" not in drawn.getvalue()
    assert "†: the training loss became infinite or NaN" in drawn.getvalue()
    assert max(map(len, drawn.getvalue().splitlines())) <= 80


def test_looking_does_not_keep_a_run_from_its_lock(finished: Path, tmp_path: Path) -> None:
    run = unfinished(finished, tmp_path / "run", 1)
    with (run / ".lock").open("rb") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        threading.Timer(0.03, lambda: fcntl.flock(looking, fcntl.LOCK_UN)).start()
        with Worker(run), pytest.raises(UserError, match="another process is working"), Worker(run):
            pass


# -- damage ----------------------------------------------------------------------------------------


def test_a_damaged_line_is_named_and_the_rest_is_shown(finished: Path, tmp_path: Path, command: Cli) -> None:
    run = unfinished(finished, tmp_path / "run", 3)
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text(lines[0] + "{damaged\n" + lines[2])
    code, out, _ = command("watch", run, "--once")
    assert code == 0 and f"note: {run}/metrics.jsonl, line 2: is no round's record" in out
    assert "3 of 5" in out


def test_a_line_that_is_being_written_is_no_damage(finished: Path, tmp_path: Path) -> None:
    run = unfinished(finished, tmp_path / "run", 2)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"round": 3, "lr":')
    with Worker(run):
        look = Watcher(run).look()
        assert look.notes == [] and look.runs[0].rounds_done == 2
    look = Watcher(run).look()  # nobody writes any more
    assert "line 3" in look.notes[0] and look.runs[0].rounds_done == 2


def test_no_run_and_runs_that_cannot_be_read(finished: Path, tmp_path: Path, command: Cli) -> None:
    for path, words in (
        (tmp_path, "there is no run in this folder"),
        (tmp_path / "nowhere", "there is no such folder"),
    ):
        code, _, err = command("watch", path)
        assert code == 2 and words in err and str(path) in err and len(err.splitlines()) == 1
    run = unfinished(finished, tmp_path / "a/one", 1)
    (run / "config.toml").write_text("rounds = [")
    code, _, err = command("watch", run)
    assert code == 2 and f"{run}/config.toml: not valid TOML" in err
    unfinished(finished, tmp_path / "a/two", 1)
    code, out, _ = command("watch", tmp_path / "a", "--once")
    assert code == 0 and f"note: {run}/config.toml: not valid TOML" in out and out.startswith("two  ")


@pytest.mark.parametrize("text", ["{", "{}", "[]"])
def test_a_damaged_result_is_named_and_the_advice_holds(
    finished: Path, tmp_path: Path, command: Cli, text: str
) -> None:
    run, file = tmp_path / "gela", tmp_path / "gela/result.json"
    shutil.copytree(finished, run)
    file.write_text(text)
    told = command("watch", run, "--once")[1]
    advice = f"damaged: {file} cannot be used; delete it, and 'fedgela resume {run}' measures the end again\n"
    assert advice in told and f"note: {file}: " in told and "goes on" not in told
    command("resume", run)
    assert file.read_text() == text  # as long as it is there
    file.unlink()
    assert command("resume", run)[0] == 0
    sound, measured = (json.loads((folder / "result.json").read_text()) for folder in (finished, run))
    assert (measured["GA"], measured["PA"]) == (sound["GA"], sound["PA"])
    assert "finished" in command("watch", run, "--once")[1]


def test_a_damaged_result_among_others(finished: Path, tmp_path: Path) -> None:
    for seed in (0, 1):
        unfinished(finished, tmp_path / f"seeds/seed-{seed}", 5)
    (tmp_path / "seeds/seeds.toml").write_text("seeds = [0, 1]\n")
    (tmp_path / "seeds/seed-1/result.json").write_text("{")
    look = Watcher(tmp_path / "seeds").look()
    drawn = io.StringIO()
    Console(file=drawn, width=400).print(to_rich(look, 400))
    for text in (to_text(look), drawn.getvalue()):
        assert f"damaged: {tmp_path}/seeds/seed-1/result.json cannot be used" in text
        assert f"'fedgela resume {tmp_path}/seeds' measures the end again" in text


# -- live ------------------------------------------------------------------------------------------


@pytest.fixture
def process(npz: Path, tmp_path: Path) -> Iterator[tuple[ForkProcess, Path]]:
    """A run that would take long, in a process of its own."""
    config, out = tmp_path / "config.toml", tmp_path / "run"
    config.write_text(tomli_w.dumps(tiny_table(npz, rounds=100_000, checkpoint_every=1000)))
    started = start_command("run", config, "--out", out)
    end = time.monotonic() + 60
    while not (out / "metrics.jsonl").exists() or not (out / "metrics.jsonl").stat().st_size:
        assert started.is_alive() and time.monotonic() < end
        time.sleep(0.02)
    yield started, out
    started.kill()
    started.join()


def test_a_killed_run_is_watched_to_its_end(
    process: tuple[ForkProcess, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    running, out = process
    assert Watcher(out).look().runs[0].stage == "running"
    seen: set[int] = set()

    class KillingAfterThreeRounds(Watcher):
        def look(self) -> Look:
            look = super().look()
            seen.add(look.runs[0].rounds_done)
            if len(seen) == 3:
                running.kill()
            return look

    watch_view.watch(KillingAfterThreeRounds(out), Console(file=io.StringIO()), once=False, every=0.05)
    lines = capsys.readouterr().out.splitlines()
    rounds = [
        int(found[1]) for line in lines if (found := re.match(r"run  running  round (\d+)/100000", line))
    ]
    assert len(rounds) > 1 and rounds == sorted(set(rounds))
    assert lines[-2].startswith("run  stopped") and "goes on" in lines[-1]
    running.join()
    assert running.exitcode == -signal.SIGKILL


def test_on_a_terminal_it_draws_over_itself_and_ends_with_the_run(finished: Path, tmp_path: Path) -> None:
    run = unfinished(finished, tmp_path / "run", 2)
    there, here = pty.openpty()
    with Worker(run):
        arguments = [sys.executable, "-m", "fedgela.cli", "watch", str(run), "--every", "0.05"]
        watching = subprocess.Popen(
            arguments, stdout=here, stderr=here, env=os.environ | {"TERM": "xterm", "COLUMNS": "100"}
        )
        os.close(here)
        seen = _read_until(there, "2 of 5")
        lines = (finished / "metrics.jsonl").read_text().splitlines(keepends=True)
        with (run / "metrics.jsonl").open("a") as file:
            file.write(lines[2])
        seen += _read_until(there, "3 of 5")
        (run / "result.json").write_text((finished / "result.json").read_text())
    seen += _read_until(there, "finished")
    assert watching.wait(timeout=20) == 0
    os.close(there)
    assert "\x1b[" in seen and "━" in seen and "running" in seen


def _read_until(terminal: int, words: str) -> str:
    seen = ""
    while words not in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen):
        seen += os.read(terminal, 4096).decode(errors="replace")
    return seen


def test_between_two_runs_of_a_comparison_it_waits(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tmp_path / "all/fedavg/seed-0", tmp_path / "all/fedgela/seed-0"
    unfinished(finished, first, 1)
    monkeypatch.setattr(watch, "QUIET", 0.3)
    looks: list[list[str]] = []
    holding = Worker(first)
    holding.__enter__()

    def show(look: watch.Look) -> None:
        nonlocal holding
        looks.append([f"{run.name} {run.stage}" for run in look.runs])
        if len(looks) == 1:
            (first / "result.json").write_text((finished / "result.json").read_text())
            holding.__exit__(None, None, None)
        elif len(looks) == 3:
            unfinished(finished, second, 1)
            holding = Worker(second)
            holding.__enter__()
        elif len(looks) == 4:
            (second / "result.json").write_text((finished / "result.json").read_text())
            holding.__exit__(None, None, None)

    watch.follow(Watcher(tmp_path / "all"), show, every=0.02)
    assert looks[0] == ["fedavg/seed-0 running"] and looks[2] == ["fedavg/seed-0 finished"]
    assert looks[3] == ["fedavg/seed-0 finished", "fedgela/seed-0 running"]
    assert looks[-1] == ["fedavg/seed-0 finished", "fedgela/seed-0 finished"]
    looks.clear()
    monkeypatch.setattr(watch, "QUIET", 1e9)
    watch.follow(Watcher(tmp_path / "all"), lambda look: looks.append([]), every=0.02)
    assert len(looks) == 1  # nobody was there when it began: nothing is waited for


def test_a_sparkline_goes_from_the_least_to_the_most() -> None:
    assert sparkline([0.0, 50.0, 100.0]) == "▁▅█" and sparkline([3.0, 3.0]) == "▁▁"
    assert sparkline([None, 1.0, None, 2.0]) == "▁█" and sparkline([]) == ""
    assert sparkline([float(i) for i in range(100)]) == "▁▁▂▂▂▃▃▃▃▄▄▄▅▅▅▆▆▆▆▇▇▇██"
