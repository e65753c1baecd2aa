"""The ledger: JSON lines, one for each finished run of a cell and seed. Lines are only ever appended."""

import fcntl
import json
import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from fedgela.config import parse_experiment
from fedgela.errors import UserError
from fedgela.files import sync_folder
from fedgela.reproduce.settings import Settings, settings_hash, settings_of

ORIGINAL = "original"
Kind = Literal["run", "burden", "partition"]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class BestAndLast(_Part):
    """In percent. Best is the maximum over rounds; fine-tuned PA's is of the round of the best GA."""

    best: Annotated[float, Field(ge=0, le=100)] | None
    last: Annotated[float, Field(ge=0, le=100)] | None
    best_round: int
    last_round: int


class Data(_Part):
    name: str
    fingerprint: str
    variant: str = ORIGINAL  # or what differs from the data that the paper names
    train: int | None = None  # samples of all clients together; None where the data was not at hand
    test: int | None = None
    shape: tuple[int, ...] | None = None  # of a sample


class Code(_Part):
    version: str
    commit: str | None = None  # as git describes it, where the code lies in a repository


class Entry(_Part):
    """One line."""

    cells: Annotated[tuple[str, ...], Field(min_length=1)]  # ids of the cells that it counts for
    kind: Kind = "run"
    seed: int
    config_hash: str  # over what decides the result: not the seed, the device, lanes, threads or paths
    config: dict[str, Any]
    code: Code
    data: Data
    device: str
    precision: str | None = None
    rounds_paper: int
    rounds_run: int
    PA: BestAndLast | None = None
    GA: BestAndLast | None = None
    PA_balanced: BestAndLast | None = None
    GA_balanced: BestAndLast | None = None
    PA_finetuned: BestAndLast | None = None
    GA_locals: BestAndLast | None = None
    GA_by_round: tuple[float | None, ...] = ()
    angles: dict[str, float | None] = Field(default_factory=dict)  # in degrees, at the last round
    measured: dict[str, float] = Field(default_factory=dict)  # what is no accuracy: a method's burden, ...
    diverged_round: int | None = None
    wall_seconds: float
    images_per_second: float | None = None  # trained, over the rounds' time with their evaluation
    date: str

    @field_validator("config", mode="before")
    @classmethod
    def _as_json_has_it(cls, config: Any) -> Any:
        """Lists for tuples, so that a line is the same before it is written and after."""
        return json.loads(json.dumps(config))

    def settings(self) -> Settings | None:
        """The run's settings; None where this version of the software cannot read the config any more."""
        return _settings(json.dumps(self.config))

    def settings_hash(self) -> str:
        settings = self.settings()
        return self.config_hash if settings is None else settings_hash(settings)

    def line(self) -> str:
        return self.model_dump_json(exclude_defaults=True) + "\n"


@lru_cache(maxsize=10_000)  # a ledger is read anew before every run
def _settings(config: str) -> Settings | None:
    try:
        return settings_of(parse_experiment(json.loads(config)))
    except UserError:
        return None


def read_ledger(path: Path) -> list[Entry]:
    """All lines; none where there is no file yet. A damaged line is a UserError with its number."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    return parse_ledger(content, path)


def parse_ledger(content: bytes, path: Path) -> list[Entry]:
    entries = []
    for number, line in enumerate(content.split(b"\n"), start=1):
        if line.strip():
            try:
                entries.append(Entry.model_validate_json(line))
            except ValidationError as error:
                first = error.errors()[0]
                key = ".".join(str(part) for part in first["loc"])
                raise UserError(
                    f"{path}, line {number}: damaged, or no line of a ledger "
                    f"({f'{key}: ' if key else ''}{first['msg']}); mend or delete this line"
                ) from None
    return entries


def check_appendable(path: Path) -> None:
    """A UserError where the ledger is damaged, or nothing can be added to it. One that is not there yet is
    begun, empty."""
    read_ledger(path)
    os.close(_open(path))


def append(path: Path, entries: Sequence[Entry]) -> list[Entry]:
    """Add what is not there yet, and return it. Several processes may do so at once: each holds the file's
    lock while it looks and writes, and writes whole lines at the end."""
    with os.fdopen(_open(path), "rb+", buffering=0) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        held = file.read()
        there = parse_ledger(held, path)  # nothing is added to a ledger that cannot be read
        new: list[Entry] = []
        for entry in entries:
            if not any(_covers(other, entry) for other in [*there, *new]):
                new.append(entry)
        if new:
            start = "\n" if held and not held.endswith(b"\n") else ""  # an editor's doing
            content = (start + "".join(entry.line() for entry in new)).encode()
            try:
                _write(file.fileno(), content)
            except OSError as error:
                file.truncate(size)  # no half a line
                raise _not_written(path, error) from None
    sync_folder(path.parent)
    return new


def _open(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    except OSError as error:
        raise _not_written(path, error) from None


def _not_written(path: Path, error: OSError) -> UserError:
    return UserError(f"{path}: cannot be written to ({error.strerror})")


def _write(handle: int, content: bytes) -> None:
    while content:
        content = content[os.write(handle, content) :]
    os.fsync(handle)


def _covers(held: Entry, new: Entry) -> bool:
    """Whether a ledger that holds the one line has no need of the other: it is the same run, and counts for
    no more cells."""
    return (
        held.kind == new.kind
        and held.seed == new.seed
        and held.data.fingerprint == new.data.fingerprint
        and held.precision == new.precision
        and set(held.cells) >= set(new.cells)
        and held.settings_hash() == new.settings_hash()
    )


def with_variant(entry: Entry, variant: str | None, held: Sequence[Entry]) -> Entry:
    """The line with what differs in its data from what the paper names; where that is not told, with what the
    newest of the lines that are `held` says of the same data."""
    same = (
        other.data.variant for other in reversed(held) if other.data.fingerprint == entry.data.fingerprint
    )
    told = variant or next(same, ORIGINAL)
    return entry.model_copy(update={"data": entry.data.model_copy(update={"variant": told})})
