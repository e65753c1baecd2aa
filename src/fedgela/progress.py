"""What a user sees while a run goes on: a bar on a terminal, plain lines elsewhere."""

import contextlib
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column

from fedgela.config import Experiment
from fedgela.evaluation import Record
from fedgela.listener import Listener
from fedgela.runfolder import RunFolder

# how to go on after an interruption, if it is not by resuming a folder
NOTHING_YET = "nothing was written yet"
SAME_COMMAND = "the same command again goes on"


def number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _figures(record: Record) -> str:
    """A round's loss and accuracies; '-' for what a federation's round lacks when no site has answered."""
    parts = [f"loss {number(record.get('train_loss'), 4)}"]
    if "GA" in record:
        parts.append(f"GA {number(record['GA'], 2)}")
        # a G-FL method's PA is known after fine-tuning only; until then there is the local accuracy
        name, label = ("PA", "PA") if "PA" in record else ("local_accuracy", "local")
        parts.append(f"{label} {number(record.get(name), 2)}")
    return "  ".join(parts)


def duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.3g} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"


class View(Listener):
    """Shows runs as they go on: a context manager around one or several."""

    def __init__(self, console: Console, runs: int = 1) -> None:
        self.console = console
        self.runs = runs
        self.folder: Path | None = None  # of the run, where there is a single one
        self.goes_on = NOTHING_YET  # how to go on, told when the command is interrupted

    def __enter__(self) -> "View":
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind in (KeyboardInterrupt, SystemExit):
            if self.folder is not None and RunFolder(self.folder).exists():
                self._can_go_on()  # its folder was made, though `started` was not called yet
            text = f"fedgela: interrupted; {self.goes_on}"
            Console(stderr=True).print(text, markup=False, highlight=False, soft_wrap=True)

    def started(self, experiment: Experiment, done: int) -> None:
        self._can_go_on()

    def _can_go_on(self) -> None:
        if self.goes_on == NOTHING_YET:
            self.goes_on = f"'fedgela resume {self.folder or 'DIR'}' goes on"

    def note(self, text: str) -> None:
        self.console.print(f"{self._prefix()}note: {text}", markup=False, highlight=False, soft_wrap=True)

    def _prefix(self) -> str:
        return f"{self.label}  " if self.label else ""


class PlainView(View):
    """One line a round, for logs."""

    def started(self, experiment: Experiment, done: int) -> None:
        super().started(experiment, done)
        self.rounds, self.done_before, self.began = experiment.rounds, done, time.monotonic()

    def round(self, record: Record) -> None:
        done = record["round"]
        each = (time.monotonic() - self.began) / (done - self.done_before)
        self._line(f"round {done}/{self.rounds}  {_figures(record)}  left {each * (self.rounds - done):.0f}s")

    def finishing(self) -> None:
        self._line("measuring the final models")

    def _line(self, text: str) -> None:
        self.console.print(self._prefix() + text, markup=False, highlight=False, soft_wrap=True)


class BarView(View):
    """A bar for the rounds of the current run, and one for the runs where there are several."""

    def __init__(self, console: Console, runs: int = 1) -> None:
        super().__init__(console, runs)
        # as narrow as a terminal of 80 columns; where that is not enough the bar gets shorter, and no figure
        whole = Column(no_wrap=True)
        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=12),
            MofNCompleteColumn(table_column=whole),
            TextColumn("{task.fields[figures]}"),
            TextColumn("left"),
            TimeRemainingColumn(compact=True, table_column=whole.copy()),
            console=console,
        )
        self.all = self.bars.add_task("runs", total=runs, figures="") if runs > 1 else None
        self.current = self.bars.add_task("", total=None, figures="")

    def __enter__(self) -> "BarView":
        self.bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self.bars.stop()
        super().__exit__(kind, *error)

    def started(self, experiment: Experiment, done: int) -> None:
        super().started(experiment, done)
        self.bars.reset(
            self.current,
            total=experiment.rounds,
            description=escape(self.label or experiment.algorithm.title),
            figures="",
        )
        self.bars.update(self.current, completed=done)

    def round(self, record: Record) -> None:
        self.bars.update(self.current, completed=record["round"], figures=_figures(record))

    def finishing(self) -> None:
        self.bars.update(self.current, figures="measuring the final models")

    def advance(self) -> None:
        if self.all is not None:
            self.bars.advance(self.all)


def make_view(console: Console, runs: int = 1) -> View:
    return BarView(console, runs) if console.is_terminal else PlainView(console, runs)


@contextlib.contextmanager
def training_view(console: Console, runs: int = 1) -> Iterator[View]:
    """A view for commands that train in this process. SIGTERM, by which Slurm and Docker end a command, is
    handled like Ctrl-C."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        with make_view(console, runs) as view:
            yield view
    finally:
        signal.signal(signal.SIGTERM, before)
