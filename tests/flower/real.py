"""A federation of real processes on this machine: a server, sites, runs, and ways to end them."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch

from fedgela.config import Experiment, read_toml
from fedgela.flower.folder import SITE, FederationFolder, init
from fedgela.flower.processes import environment, free_port, is_listening
from fedgela.resolve import resolve
from fedgela.rounds import InMemoryStore
from fedgela.runfolder import RunFolder
from fedgela.server import Server
from flower.sites import CLASSES, write_data
from helpers import play, tiny

TESTS = Path(__file__).parents[1]


def until(true: Callable[[], object], seconds: float, what: Callable[[], str]) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"waited {seconds:g} s in vain for {what()}"
        time.sleep(0.1)


class Command:
    """A process of its own, with what it says in a file."""

    last_sign = signal.SIGTERM

    def __init__(self, log: Path, *command: object) -> None:
        self.log = log
        # a site that misbehaves imports from the tests; one thread each, since there are many processes
        own = {
            "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]),
            "OMP_NUM_THREADS": "1",
        }
        with log.open("w") as output:
            self.process = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment(log.parent / "flwr") | own,
                start_new_session=True,
            )

    @property
    def said(self) -> str:
        return self.log.read_text()

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def wait_for(self, text: str, seconds: float = 120) -> None:
        until(lambda: text in self.said or not self.running, seconds, lambda: f"{text!r} in: {self.said}")
        assert text in self.said, self.said

    def ended(self, code: int, seconds: float = 120) -> str:
        """What it said, once it has ended so."""
        until(lambda: not self.running, seconds, lambda: f"the end of: {self.said}")
        assert self.process.returncode == code, self.said
        return self.said

    def children(self) -> list[int]:
        pid = self.process.pid
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def kill(self) -> None:
        """As kill -9 does: what it has started is told by the kernel."""
        self.process.kill()
        self.process.wait()

    def cut_power(self) -> None:
        """The process and all that it has started are gone at once, without a word to anybody."""
        self.process.send_signal(signal.SIGSTOP)
        for child in self.children():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
        self.kill()

    def end(self) -> None:
        if self.running:
            self.process.send_signal(self.last_sign)

    def close(self) -> None:
        self.end()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


class RealFederation:
    """Sites named site-0 and so on, with the natural clients' data of one whole data set."""

    def __init__(self, folder: Path, holdings: Sequence[Sequence[int]], host: str = "127.0.0.1") -> None:
        self.folder, self.host = folder, host
        self.whole = write_data(folder, holdings=holdings)
        self.names = [f"site-{k}" for k in range(len(holdings))]
        self.made = self.make("federation", free_port())
        self.commands: list[Command] = []

    def make(self, name: str, port: int, **options: Any) -> FederationFolder:
        return init(self.folder / name, self.names, self.host, port, list(CLASSES), **options)

    def copied(self, name: str, **changes: str) -> Path:
        """The first site's folder as it was made, with some of its site.toml changed."""
        origin, place = self.made.path / self.names[0], self.folder / name
        place.mkdir()
        for file in ("ca.crt", "key"):
            shutil.copy(origin / file, place / file)
        (place / SITE).write_text(tomli_w.dumps(read_toml(origin / SITE) | changes))
        return place

    def add(self, *command: object) -> Command:
        self.commands.append(Command(self.folder / f"command-{len(self.commands)}.log", *command))
        return self.commands[-1]

    def command(self, *arguments: object, program: Sequence[object] = ("-m", "fedgela.cli")) -> Command:
        return self.add(sys.executable, *program, "federation", *arguments)

    def server(self) -> Command:
        server = self.command("server", self.made.path, "--bind", self.host)
        server.wait_for("is ready")
        return server

    def site(self, name: str, folder: Path | None = None, plan: Path | None = None) -> Command:
        """One that follows `plan`, where it has one (faulty_site.py)."""
        program = ("-m", "fedgela.cli") if plan is None else (TESTS / "flower" / "faulty_site.py", plan)
        place, data = folder or self.made.path / name, self.folder / f"{name}.npz"
        return self.command("site", place, "--data", data, program=program)

    @staticmethod
    def assert_complaints(commands: Mapping[str, Command]) -> None:
        """Each ends with one line for its user, which says this."""
        for told, command in commands.items():
            complaint = [line for line in command.ended(2).splitlines() if line.startswith("fedgela: ")]
            assert len(complaint) == 1 and told in complaint[0], command.said
            assert "Traceback" not in command.said

    def experiment(self, **changes: Any) -> Experiment:
        fixed = {"partition": "natural", "clients": len(self.names), "lr": 0.02}
        return tiny(self.whole, **fixed | changes)

    def run(self, name: str, experiment: Experiment, *options: object) -> "RealRun":
        config = self.folder / f"{name}.toml"
        config.write_text(experiment.to_toml())
        out = self.folder / name
        command = self.command(
            "run", self.made.path, config, "--out", out, "--test-data", self.whole, *options
        )
        return RealRun(out, experiment, command)

    def resume(self, run: "RealRun") -> None:
        run.conducted_by(self.command("run", self.made.path, "--resume", "--out", run.path))

    @property
    def answers(self) -> bool:
        return is_listening(self.host, self.made.port)

    @property
    def log(self) -> str:
        return (self.made.server / "superlink.log").read_text()

    def close(self, but: int = 0) -> None:
        """All commands, or but the first."""
        for command in self.commands[but:]:
            command.end()
        for command in self.commands[but:]:
            command.close()


class RealRun:
    def __init__(self, path: Path, experiment: Experiment, command: Command) -> None:
        self.path, self.experiment = path, experiment
        self.conducted_by(command)

    def conducted_by(self, command: Command) -> None:
        self.command = command
        command.last_sign = signal.SIGINT  # Ctrl-C ends the run as well, which else goes on without a command

    @property
    def records(self) -> list[dict[str, Any]]:
        metrics = self.path / "metrics.jsonl"
        whole = metrics.read_text().rpartition("\n")[0] if metrics.exists() else ""
        return [json.loads(line) for line in whole.splitlines()]

    def wait_for(self, true: Callable[[list[dict[str, Any]]], object], what: str, seconds: float) -> None:
        """Until its rounds are so."""
        until(
            lambda: true(self.records) or not self.command.running,
            seconds,
            lambda: f"{what}: {self.command.said}",
        )
        assert true(self.records), f"no {what}: {self.command.said}"

    def wait_for_round(self, round: int, seconds: float = 180) -> None:
        self.wait_for(lambda records: len(records) >= round, f"round {round}", seconds)

    def assert_equals_a_local_run(self, absent: Mapping[int, Sequence[int]] | None = None) -> InMemoryStore:
        """Round by round, without clients that are absent in some; the clients' models come back."""
        store = InMemoryStore()
        local = Attended(*resolve(self.experiment), store)
        local.absent = absent or {}
        progress, expected = play(local)
        assert [record["round"] for record in self.records] == [record["round"] for record in expected]
        for mine, theirs in zip(expected, self.records, strict=True):
            assert theirs["train_loss"] == pytest.approx(mine["train_loss"], rel=1e-4)
            assert theirs["PA"] == pytest.approx(mine["PA"])
            if local.algorithm.GA_of == "global":
                assert theirs["GA"] == pytest.approx(mine["GA"])
        folder = RunFolder(self.path)
        last = folder.checkpoints.load(local.device, pytest.fail)
        assert last is not None and folder.result() is not None
        assert_close(last.progress.server.model, progress.server.model)
        return store


class Attended(Server):
    """A local run in which some clients miss some rounds."""

    absent: Mapping[int, Sequence[int]]

    def select(self, round: int) -> list[int]:
        return [client for client in super().select(round) if client not in self.absent.get(round, ())]


def assert_close(found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> None:
    assert found
    for name, value in found.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=1e-5)


@contextlib.contextmanager
def real_federation(
    folder: Path, holdings: Sequence[Sequence[int]], host: str = "127.0.0.1"
) -> Iterator[RealFederation]:
    federation = RealFederation(folder, holdings, host)
    try:
        yield federation
    finally:
        federation.close()
