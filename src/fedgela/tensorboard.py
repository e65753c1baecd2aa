"""A run's rounds as TensorBoard events, in RUN/tensorboard."""

import importlib.util
import os
import time
from pathlib import Path
from typing import Any

from fedgela.config import Experiment
from fedgela.errors import UserError
from fedgela.evaluation import Record
from fedgela.files import named
from fedgela.listener import Listener, Relay
from fedgela.runfolder import RunFolder

FOLDER = "tensorboard"
BEGINNING = "events.out.tfevents"  # of the names of files that TensorBoard reads
# beginnings of numbers' names, and the group of charts that each goes to
_GROUPS = {
    ("GA", "PA", "local_accuracy"): "accuracy",
    ("angle_", "class_mean_angle_"): "angles",
    ("nc1", "nc2", "nc3", "nc4"): "collapse",
    ("drift", "adaptation_cost", "gradient_norm"): "models",
}


def check_installed() -> None:
    if importlib.util.find_spec("tensorboard") is None:
        raise UserError("tensorboard: is not installed here: pip install 'fedgela[tensorboard]'")


def tag_of(name: str) -> str:
    """The tag of a number: `accuracy/GA`, `angles/angle_all_server`, ..."""
    group = next((g for starts, g in _GROUPS.items() if name.startswith(starts)), "training")
    return f"{group}/{name}"


class Events(Relay):
    """Writes what it is told as events, and passes it on.

    With TensorBoard's own form of records, but not with its writer, whose thread would end in a traceback on
    a full disk: here an error is the caller's.
    """

    def __init__(self, folder: RunFolder, passes_to: Listener) -> None:
        check_installed()
        super().__init__(passes_to)
        self.folder = folder
        self.file: Path | None = None

    def started(self, experiment: Experiment, done: int) -> None:
        # All rounds are written again, from the first, and earlier files deleted: readers order files by
        # their names, which only differ by the second. A start at the first step has a reader that knows the
        # old ones drop them.
        folder = self.folder.path / FOLDER
        folder.mkdir(exist_ok=True)
        for earlier in folder.glob(f"{BEGINNING}.*"):
            earlier.unlink()
        self.file = folder / f"{BEGINNING}.{time.time():010.0f}.{os.getpid()}"
        self._write({"file_version": "brain.Event:2"})
        if done:
            self._write({"step": 1, "session_log": {"status": "START"}})
        self._write(*map(_event_of, self.folder.records()))
        super().started(experiment, done)

    def round(self, record: Record) -> None:
        self._write(_event_of(record))
        super().round(record)

    def finished(self, result: Record) -> None:
        """Write the accuracies that are measured once, after the last round."""
        for name in ("PA", "PA_finetuned"):
            if name in result and result.get("finetuned"):
                PA = result["finetuned"]["last"].get(name)
                self._write(_event_of({"round": result["rounds"], name: PA}))
        super().finished(result)

    def _write(self, *events: dict[str, Any]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        if self.file is None:
            return
        with named(self.file), self.file.open("ab") as file:
            for event in events:
                RecordWriter(file).write(Event(wall_time=time.time(), **event).SerializeToString())


def _event_of(record: Record) -> dict[str, Any]:
    """Every number of a round, at the round's step."""
    values = [
        {"tag": tag_of(name), "simple_value": value}
        for name, value in record.items()
        if name != "round" and isinstance(value, int | float)
    ]
    return {"step": record["round"], "summary": {"value": values}}
