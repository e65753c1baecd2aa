"""Worker processes: killed for real, failing for real, and never left behind."""

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from fedgela.errors import UserError
from fedgela.progress import make_view
from fedgela.runs import run
from fedgela.server import Server
from fedgela.training import WorkerEngine
from fedgela.training.workers import _packed, _signals_held_back, _unpacked
from helpers import Notes, outcome_of, serve, tiny, tiny_table


def workers(npz: Path, **changes: Any) -> tuple[Server, WorkerEngine]:
    server = serve(tiny(npz, engine="lanes", lanes=2, width=1, **changes))
    assert isinstance(server.engine, WorkerEngine)
    return server, server.engine


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"


def wait_until_gone(pids: list[int], seconds: float = 20) -> None:
    until = time.monotonic() + seconds
    while any(map(is_alive, pids)):
        assert time.monotonic() < until, "workers outlived their server"
        time.sleep(0.05)


def test_they_start_with_the_first_work_and_end_with_the_server(npz: Path) -> None:
    server, engine = workers(npz)
    assert engine.processes == []
    server.step(server.begin())
    pids = [process.pid for process in engine.processes]
    assert len(pids) == 2 and all(pid and is_alive(pid) for pid in pids)
    server.close()
    wait_until_gone([pid for pid in pids if pid])


def test_a_killed_worker_ends_the_run_with_a_line(npz: Path) -> None:
    server, engine = workers(npz)
    progress = server.begin()
    server.step(progress)
    victim = engine.processes[0].pid
    assert victim
    os.kill(victim, signal.SIGKILL)
    with pytest.raises(UserError, match="worker process died"):
        server.step(progress)
    server.close()


def test_what_fails_in_a_worker_is_told(npz: Path) -> None:
    server, engine = workers(npz)
    progress = server.begin()
    plan = server.plan(progress)
    job = server.job(progress, 0)
    broken = type(job)(job.client, job.samples, {}, job.vectors)
    with pytest.raises(RuntimeError, match=r"(?s)in a worker process.*KeyError"):
        list(engine.train(plan, [broken]))
    assert list(engine.train(plan, [job]))  # and it works on
    server.close()


SCRIPT = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
from fedgela.config import parse_experiment
from fedgela.resolve import resolve
from fedgela.server import Server
server = Server(*resolve(parse_experiment({table!r})))
progress = server.begin()
server.step(progress)
print(*[process.pid for process in server.engine.processes], flush=True)
while True:
    server.step(progress)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_workers_do_not_outlive_their_server(npz: Path, how: signal.Signals) -> None:
    table = tiny_table(npz, engine="lanes", lanes=2, width=1, rounds=10**6)
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(table=table)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        pids = [int(word) for word in process.stdout.readline().split()]
        try:
            assert len(pids) == 2
            process.send_signal(how)
            process.wait(timeout=20)
        finally:
            process.kill()  # or else a process that does not end would be waited for without end
    wait_until_gone(pids)


def test_a_server_that_nobody_closes_does_not_keep_its_process(npz: Path) -> None:
    table = tiny_table(npz, engine="lanes", lanes=2, width=1)
    script = SCRIPT.format(table=table).partition("while")[0]
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    wait_until_gone([int(word) for word in ended.stdout.split()])


def test_a_whole_run_is_the_same_to_the_bit_with_one_lane_or_two(npz: Path, tmp_path: Path) -> None:
    results = []
    for lanes in (1, 2):
        changes = {"algorithm": "fedprox", "sample": 3, "width": 1, "engine": "lanes"}
        results.append(run(tiny(npz, lanes=lanes, **changes), tmp_path / str(lanes)))
    for result in results:
        for measured in ("wall_seconds", "peak_memory_bytes"):
            result.pop(measured, None)
    assert results[0] == results[1]
    models = [sorted((tmp_path / str(lanes) / "models").iterdir()) for lanes in (1, 2)]
    assert [path.name for path in models[0]] == [path.name for path in models[1]]  # names hold checksums


def test_workers_that_are_started_afresh_compute_what_forked_ones_do(
    npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a terminal's view, whose locks no other process can be given."""
    experiment = tiny(npz, engine="lanes", lanes=2, width=1, rounds=2)
    for method in ("fork", "spawn"):
        monkeypatch.setattr("fedgela.training.workers._start_method", lambda method=method: method)
        with make_view(Console(force_terminal=True, file=io.StringIO())) as view:
            run(experiment, tmp_path / method, view)
    assert outcome_of(tmp_path / "fork") == outcome_of(tmp_path / "spawn")


def test_what_all_workers_note_is_told_once(
    npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(function: Any, **_: Any) -> Any:
        def compiled(*arguments: Any) -> Any:
            raise torch._dynamo.exc.Unsupported("no such thing")

        return compiled

    monkeypatch.setattr(torch, "compile", refuse)
    notes = Notes()
    run(tiny(npz, engine="lanes", lanes=2, width=1, compile=True), tmp_path / "run", notes)
    assert [note for note in notes.notes if "compiled" in note] == [
        "this model cannot be compiled and runs as it is (no such thing)"
    ]


def test_a_net_that_no_other_process_can_be_given_is_told_before_the_run(
    npz: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, engine = workers(npz)
    server.close()
    monkeypatch.setattr("fedgela.training.workers._start_method", lambda: "spawn")
    net = engine.local.recipes[0].net
    net.backbone.own = lambda x: x  # type: ignore[assignment]
    with pytest.raises(UserError, match=r"cannot be given to worker processes \(.*lambda.*\); set lanes = 1"):
        WorkerEngine(engine.local, 2)


def test_messages_keep_tensors_as_they_are() -> None:
    weight = torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last)
    for value in (weight, torch.tensor(5), torch.zeros(0, 3), torch.tensor([True]), weight[0]):
        [back] = _unpacked(_packed((value,)))
        assert torch.equal(back, value) and back.dtype == value.dtype


@pytest.fixture
def hears_ctrl_c() -> Iterator[None]:
    before = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a shell's background jobs are deaf to it
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("hears_ctrl_c")
def test_a_signal_while_workers_are_made_comes_after_it() -> None:
    """Within a fork Python would lose it."""
    reached = False
    with pytest.raises(KeyboardInterrupt), _signals_held_back():
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)
        reached = True
    assert reached
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
