"""A federation of real processes on this machine: TLS and keys, and what kill -9 does to it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedgela[flower]'")

from fedgela.flower.folder import FederationFolder, init
from fedgela.flower.keys import make_key
from fedgela.flower.processes import free_port
from fedgela.resolve import resolve
from fedgela.runfolder import RunFolder
from fedgela.server import Server
from flower.sites import CLASSES, write_data
from helpers import play, tiny

SITES = ("site-0", "site-1", "site-2")


class Processes:
    """Commands of the command line; whatever is still running at the end is ended."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "fedgela.cli", *map(str, arguments)]
        log = self.folder / f"process-{len(self.started)}.log"
        with log.open("w") as output:
            process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, text=True, start_new_session=True
            )
        process.log = log  # type: ignore[attr-defined]
        self.started.append(process)
        return process

    def close(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.terminate()
        for process in self.started:
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def text_of(process: subprocess.Popen[str]) -> str:
    return str(process.log.read_text())  # type: ignore[attr-defined]


def until(true: Callable[[], bool], seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"waited {seconds:g} s in vain for {what}"
        time.sleep(0.1)


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    held = Processes(tmp_path)
    yield held
    held.close()


def rounds_of(run: Path) -> int:
    metrics = run / "metrics.jsonl"
    return len(metrics.read_text().splitlines()) if metrics.exists() else 0


def ready(server: subprocess.Popen[str]) -> None:
    until(lambda: "is ready" in text_of(server) or server.poll() is not None, 60, "the server")
    assert server.poll() is None, text_of(server)


def start_sites(processes: Processes, federation: FederationFolder) -> dict[str, subprocess.Popen[str]]:
    return {
        name: processes.start(
            "federation", "site", federation.path / name, "--data", processes.folder / f"{name}.npz"
        )
        for name in SITES
    }


def test_a_federation_of_processes_survives_kill_and_equals_a_local_run(
    tmp_path: Path, processes: Processes
) -> None:
    whole = write_data(tmp_path)
    changes = {"partition": "natural", "clients": 3, "rounds": 2, "lr": 0.02}
    experiment = tiny(whole, algorithm="fedgela", **changes)
    config = tmp_path / "config.toml"
    config.write_text(experiment.to_toml())
    federation = init(tmp_path / "federation", list(SITES), "127.0.0.1", free_port(), list(CLASSES))
    server = processes.start("federation", "server", federation.path)
    ready(server)
    sites = start_sites(processes, federation)

    # the ServerApp and the SuperLink are killed in the middle; the run goes on from its last round
    run = tmp_path / "run"
    options = ("--out", run, "--test-data", whole, "--min-sites", 3, "--wait-seconds", 150)
    conducting = processes.start("federation", "run", federation.path, config, *options)
    until(lambda: rounds_of(run) >= 1 or conducting.poll() is not None, 120, "the first round")
    assert conducting.poll() is None, text_of(conducting)
    os.kill(int((run / "serverapp.pid").read_text()), signal.SIGKILL)
    assert conducting.wait(30) == 2
    assert "--resume" in text_of(conducting)
    # a site is killed as well; it comes back, and has its personal model still
    sites["site-1"].kill()
    sites["site-1"].wait()
    log = federation.path / "site-1" / "supernode.log"
    until(lambda: "terminated gracefully" in log.read_text(), 30, "the end of the killed site's SuperNode")
    time.sleep(3)  # it signs off, or the server would wait a minute for its heartbeats
    server.kill()
    server.wait()
    until(lambda: not _answers(federation.port), 30, "the SuperLink's end")
    ready(processes.start("federation", "server", federation.path))
    processes.start("federation", "site", federation.path / "site-1", "--data", tmp_path / "site-1.npz")
    resumed = processes.start("federation", "run", federation.path, "--resume", "--out", run)
    assert resumed.wait(180) == 0, text_of(resumed)

    _, records = local = play(Server(*resolve(experiment)))
    held = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [record["round"] for record in held] == [1, 2]
    for mine, theirs in zip(records, held, strict=True):
        assert "faults" not in theirs
        assert theirs["train_loss"] == pytest.approx(mine["train_loss"], rel=1e-4)
        assert theirs["GA"] == pytest.approx(mine["GA"]) and theirs["PA"] == pytest.approx(mine["PA"])
    (model,) = (run / "models").glob("global-last*")
    for name, value in load_file(model).items():
        torch.testing.assert_close(value, local[0].server.model[name], rtol=1e-4, atol=1e-5)
    assert RunFolder(run).result() is not None


def _answers(port: int) -> bool:
    from fedgela.flower.processes import is_listening

    return is_listening("127.0.0.1", port)


def test_only_sites_with_a_registered_key_take_part(tmp_path: Path, processes: Processes) -> None:
    write_data(tmp_path)
    federation = init(tmp_path / "federation", list(SITES), "127.0.0.1", free_port(), list(CLASSES))
    ready(processes.start("federation", "server", federation.path))
    stranger = federation.path / "site-0"
    (stranger / "key").unlink()
    make_key(stranger / "key", tmp_path / "stranger.pub")
    refused = processes.start("federation", "site", stranger, "--data", tmp_path / "site-0.npz")
    second = processes.start("federation", "server", federation.path)
    assert second.wait(60) == 2 and "cannot be used" in text_of(second)
    until(lambda: "not let in" in text_of(refused), 60, "the refusal of a strange key")
