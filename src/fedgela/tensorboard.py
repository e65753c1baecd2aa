"""A run's rounds as TensorBoard events, in RUN/tensorboard."""

from typing import TYPE_CHECKING

from fedgela.config import Experiment
from fedgela.evaluation import Record
from fedgela.listener import Listener, Relay
from fedgela.runfolder import RunFolder

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

FOLDER = "tensorboard"
# beginnings of numbers' names, and the group of charts that each goes to
_GROUPS = {
    ("GA", "PA", "local_accuracy"): "accuracy",
    ("angle_", "class_mean_angle_"): "angles",
    ("nc1", "nc2", "nc3", "nc4"): "collapse",
    ("drift", "adaptation_cost", "gradient_norm"): "models",
}


def tag_of(name: str) -> str:
    """The tag of a number: `accuracy/GA`, `angles/angle_all_server`, ..."""
    group = next((g for starts, g in _GROUPS.items() if name.startswith(starts)), "training")
    return f"{group}/{name}"


class Events(Relay):
    """Writes what it is told as events, and passes it on."""

    def __init__(self, folder: RunFolder, passes_to: Listener) -> None:
        super().__init__(passes_to)
        self.folder = folder
        self.writer: SummaryWriter | None = None

    def started(self, experiment: Experiment, done: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # All rounds are written again, from the first, and earlier files deleted: readers order files by
        # their names, which only differ by the second. purge_step has a reader that knows the old ones drop
        # them.
        events = self.folder.path / FOLDER
        for earlier in events.glob("events.out.tfevents.*"):
            earlier.unlink()
        self.writer = SummaryWriter(str(events), purge_step=1 if done else None)
        for record in self.folder.records():
            self._write(record)
        self.writer.flush()
        super().started(experiment, done)

    def round(self, record: Record) -> None:
        self._write(record)
        if self.writer is not None:
            self.writer.flush()
        super().round(record)

    def finished(self, result: Record) -> None:
        """Write the accuracies that are measured once, after the last round."""
        for name in ("PA", "PA_finetuned"):
            if name in result and result.get("finetuned"):
                PA = result["finetuned"]["last"].get(name)
                self._write({"round": result["rounds"], name: PA})
        super().finished(result)

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()

    def _write(self, record: Record) -> None:
        if self.writer is None:
            return
        for name, value in record.items():
            if name != "round" and isinstance(value, int | float):
                self.writer.add_scalar(tag_of(name), value, record["round"])
