"""A framework's own loop over rounds, let go one round at a time."""

import threading
from collections.abc import Callable

import torch

from fedgela.bench.contender import Contender
from fedgela.config import Experiment
from fedgela.data import Federation


class _Over(BaseException):
    """Ends the framework's loop; no `except Exception` of its own keeps it."""


class Turns:
    """Runs `loop(end_of_round)` in a thread; it goes on only while `play` waits for a round to end.

    So rounds of a framework that offers nothing but 'run n rounds' alternate with others' rounds, and each
    is timed from its beginning to its end.
    """

    def __init__(self, loop: Callable[[Callable[[], None]], object]) -> None:
        self._go = threading.Semaphore(0)
        self._ended = threading.Semaphore(0)
        self._over = False
        self._done = False
        self._error: BaseException | None = None
        self._threads: int | None = None
        self._loop = loop
        self._thread = threading.Thread(target=self._run, daemon=True)

    def play(self) -> None:
        """One round, or whatever the framework does before it together with the first."""
        if not self._done:
            if self._thread.ident is None:
                self._thread.start()
            else:
                self._go.release()
            self._ended.acquire()
        if self._error is not None:
            raise self._error
        if self._done:
            raise RuntimeError("the framework's loop ended before it was told to")

    def use_threads(self, threads: int) -> None:
        """From the next round on: torch keeps this number by thread."""
        self._threads = threads

    def close(self) -> None:
        self._over = True
        self._go.release()
        if self._thread.ident is not None:
            self._thread.join(timeout=30)

    def _end_of_round(self) -> None:
        self._ended.release()
        self._go.acquire()
        if self._over:
            raise _Over
        self._set_threads()

    def _set_threads(self) -> None:
        if self._threads is not None:
            torch.set_num_threads(self._threads)
            self._threads = None

    def _run(self) -> None:
        try:
            self._set_threads()
            self._loop(self._end_of_round)
        except _Over:
            pass
        except BaseException as error:  # told to whoever waits for the round
            self._error = error
        finally:
            self._done = True
            self._ended.release()


class InTurns(Contender):
    """A contender whose framework offers nothing but 'run n rounds', which `simulate` does."""

    def __init__(self, experiment: Experiment, federation: Federation) -> None:
        super().__init__(experiment, federation)
        self.turns = Turns(self.simulate)

    def simulate(self, end_of_round: Callable[[], None]) -> None:
        """Rounds without end, with a call after each."""
        raise NotImplementedError

    def round(self) -> None:
        self.turns.play()

    def use_threads(self, threads: int) -> None:
        self.turns.use_threads(threads)

    def close(self) -> None:
        self.turns.close()
