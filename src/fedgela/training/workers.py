"""Several lanes on a CPU: worker processes, each with one lane and one thread.

One client's small net cannot keep several cores busy; several clients can. Workers are forked where that is
safe, and then share the data by copy-on-write. Plans, jobs, outcomes and notes travel through pipes.
"""

import contextlib
import io
import itertools
import multiprocessing
import pickle
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from typing import Any

import torch
from torch import Tensor

from fedgela.errors import UserError, first_line
from fedgela.memory import resident_peak
from fedgela.models import State
from fedgela.training.groups import groups_of
from fedgela.training.interface import Job, Outcome, Plan, Predict, Question
from fedgela.training.lanes import LaneEngine

SIGNALS = (signal.SIGINT, signal.SIGTERM)  # the ones that end a command
FEWEST_SAMPLES = 500  # a part of a question with fewer samples is not worth a message


class WorkerEngine:
    """Hands an engine's work to processes, each of which has a copy of `local`, an engine of one lane."""

    def __init__(self, local: LaneEngine, workers: int) -> None:
        self.local = local
        self.workers = workers
        self.workers_memory = 0
        self.told: set[str] = set()  # notes that were passed on: all workers would repeat them
        if _start_method() == "spawn":
            _check_can_travel(local)
        self.connections: list[Connection] = []
        self.processes: list[BaseProcess] = []
        # at exit this runs before multiprocessing terminates its processes by SIGTERM, which workers ignore
        self._finalizer = Finalize(self, _stop, (self.connections, self.processes), exitpriority=0)

    def _start(self) -> None:
        """Start the processes, when there is first work for them: many servers are only made to see whether
        that is possible."""
        context: Any = multiprocessing.get_context(_start_method())
        for _ in range(self.workers):
            here, there = context.Pipe()
            # a forked worker inherits our ends of the pipes, and closes them: its own pipe ends when we do
            forked = [*self.connections, here] if context.get_start_method() == "fork" else []
            process = context.Process(target=_serve, args=(there, self.local, forked), daemon=True)
            with _signals_held_back():
                process.start()
            there.close()
            self.connections.append(here)
            self.processes.append(process)

    def train(self, plan: Plan, jobs: Sequence[Job]) -> Iterator[Outcome]:
        groups = groups_of(jobs, self.local.batch_size, self.workers, self.local.width)
        for _, outcomes in self._ask(("train", plan, group) for group in groups):
            yield from outcomes

    def answers(self, predict: Predict, questions: Sequence[Question]) -> list[Tensor]:
        parts = [
            (i, start, part) for i, question in enumerate(questions) for start, part in self._parts(question)
        ]
        answers = [torch.empty(len(question.samples), dtype=torch.int64) for question in questions]
        for number, answer in self._ask(("answer", predict, part) for _, _, part in parts):
            i, start, _ = parts[number]
            answers[i][start : start + len(answer)] = answer
        return answers

    def features(self, model: State, samples: Tensor) -> Tensor:
        return self.local.features(model, samples)

    def close(self) -> None:
        self._finalizer()

    def _parts(self, question: Question) -> Iterator[tuple[int, Question]]:
        n = len(question.samples)
        size = max(FEWEST_SAMPLES, -(-n // self.workers))
        for start in range(0, n, size):
            part = slice(start, start + size)
            rows = {name: value[part] for name, value in question.rows.items()}
            yield start, Question(question.model, question.samples[part], question.vectors, rows)

    def _ask(self, requests: Iterator[tuple[Any, ...]]) -> Iterator[tuple[int, Any]]:
        """Give each request to a free worker, and yield (number of the request, reply) as replies arrive."""
        if not self.processes:
            self._start()
        numbered = enumerate(requests)
        free = deque(self.connections)
        asked: dict[Connection, int] = {}
        while True:
            for connection, (number, request) in zip(
                tuple(free), itertools.islice(numbered, len(free)), strict=False
            ):
                free.popleft()
                self._send(connection, request)
                asked[connection] = number
            if not asked:
                return
            for ready in wait(list(asked)):
                assert isinstance(ready, Connection)
                reply = self._receive(ready)
                free.append(ready)
                yield asked.pop(ready), reply

    def _send(self, connection: Connection, request: tuple[Any, ...]) -> None:
        try:
            connection.send_bytes(_packed(request))
        except OSError:
            raise _died() from None

    def _receive(self, connection: Connection) -> Any:
        try:
            kind, reply, notes, memory = _unpacked(connection.recv_bytes())
        except (EOFError, OSError):
            raise _died() from None
        self.workers_memory = max(self.workers_memory, memory)
        for text in notes:
            if text not in self.told:
                self.told.add(text)
                self.local.note(text)
        if kind == "error":
            raise reply
        return reply


@contextlib.contextmanager
def _signals_held_back() -> Iterator[None]:
    """Delay Ctrl-C and SIGTERM until the end of this block. Python would lose a signal that arrives within a
    fork, and a worker that has just been started would die of it and be reported as failed."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread handles signals
        yield
        return
    heard: list[int] = []
    before = {sign: signal.signal(sign, lambda sign, _: heard.append(sign)) for sign in SIGNALS}
    try:
        yield
    finally:
        for sign, handler in before.items():
            signal.signal(sign, handler or signal.SIG_DFL)
        if heard:
            signal.raise_signal(heard[0])


def _start_method() -> str:
    """Forking is quick, but only safe without CUDA and its threads."""
    return "fork" if sys.platform == "linux" and not torch.cuda.is_available() else "spawn"


def _check_can_travel(engine: LaneEngine) -> None:
    """A UserError where the net cannot be pickled, as a spawned worker needs it: with lambdas in it, say, or
    weights that are computed from others."""
    try:
        pickle.dumps(engine.recipes[0].net)
    except Exception as error:  # whatever a user's own net may raise
        raise UserError(
            f"this model cannot be given to worker processes ({first_line(error)}); "
            "set lanes = 1 to train in one process"
        ) from None


def _died() -> UserError:
    return UserError("a worker process died (out of memory?); set lanes = 1 to train in one process")


def _stop(connections: Sequence[Connection], processes: Sequence[BaseProcess]) -> None:
    for connection in connections:
        connection.close()
    for process in processes:
        process.join(timeout=1)
        if process.is_alive():
            process.kill()
            process.join()


def _serve(connection: Connection, engine: LaneEngine, inherited: Sequence[Connection]) -> None:
    """A worker's main loop. It ends when its pipe closes, for whatever reason the other side ended."""
    for other in inherited:
        other.close()
    for sign in SIGNALS:
        signal.signal(sign, signal.SIG_IGN)  # to be handled by the main process, which closes the pipe
    torch.set_num_threads(1)
    notes: list[str] = []
    engine.note = notes.append  # the view is the main process's
    while True:
        try:
            what, first, second = _unpacked(connection.recv_bytes())
        except (EOFError, OSError):
            return
        reply: Any
        try:
            if what == "train":
                kind, reply = "done", list(engine.train(first, second))
            else:
                kind, reply = "done", engine.answers(first, [second])[0]
        except UserError as error:
            kind, reply = "error", error
        except Exception:
            kind, reply = "error", RuntimeError(f"in a worker process:\n{traceback.format_exc()}")
        try:
            connection.send_bytes(_packed((kind, reply, notes, resident_peak())))
        except OSError:
            return
        notes.clear()


class _Packer(pickle.Pickler):
    """Pickles tensors as NumPy arrays, which is quick."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return torch.from_numpy, (value.detach().contiguous().numpy(),)
        return NotImplemented


def _packed(message: tuple[Any, ...]) -> bytes:
    buffer = io.BytesIO()
    _Packer(buffer, protocol=5).dump(message)
    return buffer.getvalue()


def _unpacked(data: bytes) -> Any:
    return pickle.loads(data)
