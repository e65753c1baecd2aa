"""Who hears how a run goes: progress views, TensorBoard events, a limit of time."""

from fedgela.config import Experiment
from fedgela.evaluation import Record


class Listener:
    """Is told how a run goes, and does nothing with it: derived classes override what they care about."""

    label = ""  # names the current run where there are several

    def advance(self) -> None:
        """One of several runs has ended, well or not."""

    def started(self, experiment: Experiment, done: int) -> None:
        """The run begins, or goes on after `done` rounds."""

    def round(self, record: Record) -> None:
        """A round has ended. What is done by then is kept, whatever this raises."""

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

    @property
    def label(self) -> str:
        return self.passes_to.label

    @label.setter
    def label(self, text: str) -> None:
        self.passes_to.label = text

    def advance(self) -> None:
        self.passes_to.advance()

    def started(self, experiment: Experiment, done: int) -> None:
        self.passes_to.started(experiment, done)

    def round(self, record: Record) -> None:
        self.passes_to.round(record)

    def finishing(self) -> None:
        self.passes_to.finishing()

    def note(self, text: str) -> None:
        self.passes_to.note(text)

    def finished(self, result: Record) -> None:
        self.passes_to.finished(result)
