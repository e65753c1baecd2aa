"""Who hears how a run goes: progress views, TensorBoard events, a limit of time."""

from fedgela.config import Experiment
from fedgela.evaluation import Record


class Stopped(Exception):
    """Raised by a listener after a round, to end the run there."""


class Listener:
    """Is told how a run goes, and does nothing with it: derived classes override what they care about."""

    def started(self, experiment: Experiment, done: int) -> None:
        """The run begins, or goes on after `done` rounds."""

    def round(self, record: Record) -> None:
        """A round has ended. Where this raises Stopped, the run ends after a checkpoint of that round."""

    def saved(self, round: int) -> None:
        """A checkpoint is being written. A run that ends now waits for it, and loses nothing."""

    def finishing(self) -> None:
        """The last round is over; fine-tuned models are about to be measured."""

    def note(self, text: str) -> None:
        """Something that the user should know."""

    def finished(self, result: Record) -> None:
        """The run has its result."""


class Relay(Listener):
    """Passes everything on to another listener. Derived classes call `super()` in what they override, so that
    the other hears it too."""

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
