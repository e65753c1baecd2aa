"""What of a run is not as the paper has it: rounds, the method's own options, or the task itself."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from fedgela.paper import Cell, find_cell
from fedgela.reproduce.counting import wanted_settings
from fedgela.reproduce.ledger import ORIGINAL, Entry
from fedgela.reproduce.settings import Difference, Settings, differences
from fedgela.reproduce.sizes import OFFICIAL

# a run that differs in one of these has another task, whose numbers are no better or worse than the paper's
TASK = {"dataset", "image_size", "model", "partition", "clients"}


@dataclass(frozen=True)
class Departure:
    """`about` the outcome are those that no setting tells: that the training diverged."""

    about: Literal["rounds", "method", "setting", "outcome"]
    text: str


UNREADABLE = Departure(
    "setting", "settings of another version of this software, which this one does not know"
)


def departures_of(cell: Cell, entry: Entry) -> list[Departure]:
    """What of a line is not as the cell has it; rounds first."""
    settings = entry.settings()
    if settings is None:
        found = [UNREADABLE]
    else:
        apart = differences(wanted_settings(cell), settings)
        found = [_departure(d) for d in sorted(apart, key=lambda d: d.key != "rounds") if _counts(d, entry)]
    if entry.data.variant != ORIGINAL:
        found.append(Departure("setting", f"data: {entry.data.variant}"))
    return found + _other_sizes(entry, settings or {})


def _counts(d: Difference, entry: Entry) -> bool:
    if d.key == "rounds":
        return entry.kind == "run"
    return d.key != "image_size" or d.found is not None  # that of other data is as the data has it


def _departure(d: Difference) -> Departure:
    if d.key == "rounds":
        return Departure("rounds", f"{d.found} of {d.wanted} rounds")
    if d.key.startswith("algorithm."):
        # the paper hardly gives methods' own options: these stand at this project's defaults
        return Departure("method", f"{d.key} = {_shown(d.found)}, by default {_shown(d.wanted)}")
    return Departure("setting", f"{d.key} = {_shown(d.found)}, not {_shown(d.wanted)}")


def options_of(entry: Entry) -> str:
    """The method's own options that are not as in the paper's cell."""
    cell, settings = find_cell(entry.cells[0]), entry.settings()
    apart = differences(wanted_settings(cell), settings) if settings is not None else []
    own = [f"{d.key.partition('.')[2]} = {d.found}" for d in apart if d.key.startswith("algorithm.")]
    return ", ".join(own)


def divergence(entries: Iterable[Entry]) -> list[Departure]:
    """Of runs that differ by their seeds only: those whose training diverged, as one departure."""
    lost = [entry for entry in entries if entry.diverged_round is not None]
    told = ", ".join(f"round {entry.diverged_round} (seed {entry.seed})" for entry in lost)
    return [Departure("outcome", f"the training loss was no finite number from {told} on")] if lost else []


def is_of_the_task(cell: Cell, entry: Entry) -> bool:
    """Whether a line is of the cell's task, so that its numbers can be held against the paper's."""
    settings = entry.settings()
    return settings is not None and not any(
        d.key in TASK and d.found is not None for d in differences(wanted_settings(cell), settings)
    )


def _shown(value: object) -> str:
    return "none" if value in (None, "") else f"{value:g}" if isinstance(value, float) else str(value)


def _other_sizes(entry: Entry, settings: Settings) -> list[Departure]:
    """Data of the right name, but not with as many samples, or not of the size, as it should have."""
    official = OFFICIAL.get(entry.data.name.replace("_", "-"))
    if official is None or entry.data.train is None or settings.get("validation"):
        return []
    train, test, shape = official
    found = []
    if (entry.data.train, entry.data.test) != (train, test):
        found.append(f"{entry.data.train} + {entry.data.test} samples, not {train} + {test}")
    if None not in (shape, entry.data.shape) and entry.data.shape != shape:
        found.append(f"samples of shape {'x'.join(map(str, entry.data.shape or ()))}")
    return [Departure("setting", text) for text in found]
