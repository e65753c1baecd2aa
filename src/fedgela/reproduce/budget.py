"""A limit of time for a command: runs stop between rounds, and go on with the next command."""

import time
from collections.abc import Sequence

from fedgela.config import Experiment
from fedgela.errors import UserError
from fedgela.evaluation import Record
from fedgela.listener import Listener, Relay
from fedgela.reproduce.sizes import finetuning_rounds

RECENT = 3  # rounds that the next one is judged by; the first round of a process is slower than others


class OutOfBudget(Exception):
    """What comes next does not fit into what is left of the budget."""


class Budget:
    """Seconds that are left; no limit where none is given."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self.advanced = False  # whether anything was done within it that the next command need not do again
        self.ends = None if seconds is None else time.monotonic() + seconds

    def fits(self, seconds: float) -> bool:
        return self.ends is None or time.monotonic() + seconds <= self.ends

    def require(self, seconds: float, what: str) -> None:
        """OutOfBudget where too little time is left, so that the next command goes on; a UserError where the
        whole budget is too small, since the next command could not go on either."""
        if not self.fits(0):
            raise OutOfBudget(f"the budget is spent before {what}")
        if self.seconds is not None and seconds > self.seconds:
            raise UserError(
                f"{what} takes about {seconds:.0f} s, more than the whole budget of {self.seconds:g} s"
            )
        if not self.fits(seconds):
            raise OutOfBudget(f"{what} takes about {seconds:.0f} s, which the budget does not leave")


class WithinBudget(Relay):
    """Passes on what a run tells, and stops the run before what would not fit."""

    def __init__(self, passes_to: Listener, budget: Budget, round_seconds: float | None = None) -> None:
        """`round_seconds` is what a round is expected to take, as far as that is known before one was run."""
        super().__init__(passes_to)
        self.budget = budget
        self.steps: list[float] = [] if round_seconds is None else [round_seconds]

    def started(self, experiment: Experiment, done: int) -> None:
        self.experiment = experiment
        super().started(experiment, done)
        if done < experiment.rounds:
            self._require_a_round(done)
        self.began = time.monotonic()

    def round(self, record: Record) -> None:
        super().round(record)
        self.budget.advanced = True
        now = time.monotonic()
        self.steps.append(now - self.began)
        self.began = now
        if record["round"] < self.experiment.rounds:
            self._require_a_round(record["round"])

    def _require_a_round(self, done: int) -> None:
        self.budget.require(slowest(self.steps), f"round {done + 1} of {self.experiment.rounds}")

    def finishing(self) -> None:
        self.budget.require(
            finetuning_rounds(self.experiment) * slowest(self.steps), "measuring the final models"
        )
        super().finishing()


def slowest(steps: Sequence[float]) -> float:
    return max(steps[-RECENT:], default=0.0)
