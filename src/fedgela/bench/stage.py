"""A process for each contender: frameworks have global state, and memory is told apart by process."""

import contextlib
import multiprocessing
import os
import signal
import statistics
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

import torch

from fedgela.bench.contender import Contender
from fedgela.bench.machine import gpu_memory, gpu_utilisation, memory_of_tree
from fedgela.config import Experiment

PATIENCE = 900.0  # seconds for an answer: a framework that hangs must not hold up the others
SAMPLING = 0.1  # seconds between two looks at memory or the GPU
A_READING = 1.0  # seconds that a reading of the GPU is about
ENOUGH_READINGS = 20
LONGEST_WATCH = 10.0  # seconds of rounds that are played for readings alone


class ContenderFailed(Exception):
    """Its text ends in the reason; it is the contender's traceback where there is one."""

    @property
    def reason(self) -> str:
        lines = [line.strip() for line in str(self).splitlines() if line.strip()]
        return lines[-1] if lines else "no reason given"


@dataclass(frozen=True)
class Facts:
    """What a contender tells once it is warm."""

    samples: int  # trained on in a round
    start_seconds: float  # of making it, and of its first round
    threads: tuple[int, ...]  # the better of which counts in each repetition; () where it chooses itself
    precision: str
    includes: str


class Stage:
    """The measuring side of a contender's process."""

    def __init__(self, contender: str, experiment: Experiment) -> None:
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the stage
        self._connection, theirs = multiprocessing.Pipe()
        self._device = torch.device(experiment.device)
        self._before = gpu_memory(self._device)
        self._next_look = 0.0
        self._busy: list[float] = []  # percent, a reading each
        self.peak_memory = 0  # bytes, of the process and its children
        self.peak_gpu_memory: int | None = None  # bytes
        # not a daemon: it may have processes of its own
        spawn = multiprocessing.get_context("spawn")
        self._process = spawn.Process(
            target=perform,
            args=(contender, experiment, theirs, os.getpid(), self._log.fileno()),
            name="MainProcess",  # pfl takes a process by another name for one that only loads data
        )
        self._process.start()
        theirs.close()

    def warm_up(self) -> Facts:
        """Wait for the contender to be ready; memory is looked at meanwhile, and not while it is timed."""
        facts: Facts = self._answer(self._look_at_memory)
        self._next_look = 0.0
        self._look_at_memory()  # a warm one holds most of what it ever held
        return facts

    def play(self, rounds: int) -> float:
        """Seconds that so many rounds take."""
        self._send(rounds)
        seconds: float = self._answer(self._watch_gpu())
        return seconds

    def utilisation(self) -> float | None:
        """Percent of the time in which the GPU is busy while this contender plays: in the rounds that were
        timed, and in more where these were too short to tell."""
        look = self._watch_gpu()
        if look is None:
            return None
        began = time.monotonic()
        while len(self._busy) < ENOUGH_READINGS and time.monotonic() - began < LONGEST_WATCH:
            self._send(1)
            self._answer(look)
            look()  # a round may be too short for it
        return statistics.fmean(self._busy) if self._busy else None

    def _watch_gpu(self) -> Callable[[], None] | None:
        """What to do while waiting for rounds. A reading is about the second before it, which at first is
        somebody else's."""
        if gpu_utilisation(self._device) is None:
            return None
        began = time.monotonic()

        def look() -> None:
            now = gpu_utilisation(self._device)
            if time.monotonic() - began > A_READING and now is not None:
                self._busy.append(now)

        return look

    def close(self, patience: float = 40.0) -> None:
        """Let the contender end by itself, for so many seconds."""
        with contextlib.suppress(OSError):
            self._connection.send(None)
        self._process.join(timeout=patience)
        if self._process.is_alive():
            self._process.terminate()
            self._process.join(timeout=10)
        self._connection.close()
        self._log.close()

    def _send(self, rounds: int) -> None:
        try:
            self._connection.send(rounds)
        except OSError:
            raise self._died() from None

    def _answer(self, look: Callable[[], None] | None) -> Any:
        deadline = time.monotonic() + PATIENCE
        while not self._connection.poll(SAMPLING if look else PATIENCE):
            if look is not None:
                look()
            if time.monotonic() > deadline:
                self._process.terminate()
                raise ContenderFailed(f"no answer in {PATIENCE:.0f} s")
        try:
            answer = self._connection.recv()
        except EOFError:
            raise self._died() from None
        if isinstance(answer, str):
            raise ContenderFailed(answer)
        return answer

    def _died(self) -> ContenderFailed:
        self._process.join(timeout=10)
        self._log.seek(0)
        said = self._log.read().decode(errors="replace").strip()
        return ContenderFailed(f"{said}\nits process ended with exit code {self._process.exitcode}")

    def _look_at_memory(self) -> None:
        began = time.monotonic()
        if began < self._next_look or self._process.pid is None:
            return
        self.peak_memory = max(self.peak_memory, memory_of_tree(self._process.pid))
        now = gpu_memory(self._device)
        if now is not None and self._before is not None:
            # what others hold meanwhile does not change: they wait
            self.peak_gpu_memory = max(self.peak_gpu_memory or 0, now - self._before)
        # a look takes the longer the more memory there is: never more than a fiftieth of the time
        ended = time.monotonic()
        self._next_look = ended + 50 * (ended - began)


# -- in the contender's process ------------------------------------------------------------------------


def perform(path: str, experiment: Experiment, connection: Connection, parent: int, log: int) -> None:
    """Make the contender, warm it up, and play rounds for as long as rounds are asked for."""
    _become_quiet(parent, log)
    contender: Contender | None = None
    try:
        from fedgela.imports import load
        from fedgela.resolve import resolve

        resolved, federation = resolve(experiment)
        began = time.perf_counter()
        make: Any = load(path)
        contender = make(resolved, federation)
        assert contender is not None
        chooses = contender.threaded and resolved.device == "cpu"
        if chooses:
            contender.use_threads(1)
        contender.warm_up()
        _wait_for(contender.device)
        start_seconds = time.perf_counter() - began
        threads = _worthwhile_threads(contender) if chooses else ()
        facts = Facts(contender.samples, start_seconds, threads, contender.precision, contender.includes)
        connection.send(facts)
        while (rounds := connection.recv()) is not None:
            connection.send(_timed_at_best(contender, rounds, threads))
    except (EOFError, KeyboardInterrupt):
        pass  # nobody listens any more
    except BaseException:
        connection.send(traceback.format_exc())
    finally:
        if contender is not None:
            contender.close()
        connection.close()


def _timed(contender: Contender, rounds: int) -> float:
    began = time.perf_counter()
    for _ in range(rounds):
        contender.round()
    _wait_for(contender.device)
    return time.perf_counter() - began


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _timed_at_best(contender: Contender, rounds: int, threads: Sequence[int]) -> float:
    """Seconds with whichever of these numbers of threads is the fastest this time."""
    seconds = []
    for number in threads:
        contender.use_threads(number)
        seconds.append(_timed(contender, rounds))
    return min(seconds) if seconds else _timed(contender, rounds)


def _worthwhile_threads(contender: Contender) -> tuple[int, ...]:
    """One thread and all of them; only one of the two where it is no race, since a busy machine may turn a
    race round later, and a yardstick with the wrong number would flatter all others.

    They take turns three times, or for a while; threads that wait for busy cores can take very long.
    """
    began = time.monotonic()
    one, everything = 1, os.cpu_count() or 1
    best = {one: float("inf"), everything: float("inf")}
    for _ in range(3):
        for threads in best:
            best[threads] = min(best[threads], _timed_at_best(contender, 1, [threads]))
        if best[everything] > 3 * best[one] or time.monotonic() - began > 10:
            break
    return tuple(threads for threads in best if best[threads] <= 3 * min(best.values()))


def _become_quiet(parent: int, log: int) -> None:
    """Ctrl-C is the measuring side's. What a framework prints is kept for the case that it fails, and is
    nobody's business else."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        target = os.open(Path(f"/proc/{parent}/fd/{log}"), os.O_WRONLY | os.O_APPEND)
    except OSError:  # no /proc on this system
        target = os.open(os.devnull, os.O_WRONLY)
    os.dup2(target, 1)
    os.dup2(target, 2)
    os.close(target)
