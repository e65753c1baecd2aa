"""A listener before another: it hears all that a run tells, and passes it on."""

from fedgela.config import Experiment
from fedgela.evaluation import Record
from fedgela.runs import Listener


class Relay(Listener):
    """Derived classes override what they have to do with, and call `super()` for the rest to hear it too."""

    def __init__(self, passes_to: Listener) -> None:
        self.passes_to = passes_to

    def started(self, experiment: Experiment, done: int) -> None:
        self.passes_to.started(experiment, done)

    def round(self, record: Record) -> None:
        self.passes_to.round(record)

    def saved(self, round: int) -> None:
        self.passes_to.saved(round)

    def finishing(self) -> None:
        self.passes_to.finishing()

    def note(self, text: str) -> None:
        self.passes_to.note(text)

    def finished(self, result: Record) -> None:
        self.passes_to.finished(result)
