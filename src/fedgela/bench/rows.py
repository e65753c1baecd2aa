"""What was measured, as figures, as a table and as JSON."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from fedgela.grids import Grid


@dataclass
class Row:
    """One engine on one workload. Figures are None where there are none: it failed, or there is no GPU."""

    engine: str
    workload: str
    samples_per_second: float | None = None  # of training, in whole rounds with evaluation; the median
    ratio_to_plain: float | None = None  # of samples a second to a plain round's right before; the median
    ratio_low: float | None = None  # and quartiles
    ratio_high: float | None = None
    round_seconds: float | None = None
    start_seconds: float | None = None  # until the end of the first round, which is not measured
    peak_memory_mb: float | None = None  # of its processes together, up to the end of the first rounds
    peak_gpu_memory_mb: float | None = None
    gpu_utilisation: float | None = None  # percent
    arithmetic_share: float | None = None  # of what the device computes in a big matrix product, 0 to 1
    precision: str | None = None
    threads: list[int] = field(default_factory=list)  # of which the better one counts, each time
    version: str | None = None
    includes: str | None = None  # what a round is made of
    error: str | None = None
    model: str = ""
    data: str = ""
    partition: str = ""
    clients: int = 0
    batch_size: int = 0
    epochs: int = 0
    training_samples: int = 0
    test_samples: int = 0
    rounds: int = 1  # timed together
    repetitions: int = 0  # so far
    device: str = ""
    machine: dict[str, Any] = field(default_factory=dict)

    def fail(self, reason: str) -> None:
        """What was measured before it failed does not count."""
        self.error = reason
        self.samples_per_second = self.ratio_to_plain = self.ratio_low = self.ratio_high = None
        self.round_seconds = self.arithmetic_share = None


@dataclass(frozen=True)
class Timing:
    """Seconds of the same number of rounds, repetition by repetition; plain's right before each."""

    seconds: list[float]
    plain_seconds: list[float]
    samples: int  # in a round
    plain_samples: int
    rounds: int

    def fill(self, row: Row) -> None:
        # a ratio of samples a second, not of rounds: peers may see a few samples more in a round
        factor = self.samples / self.plain_samples
        pairs = zip(self.plain_seconds, self.seconds, strict=True)
        ratios = [factor * plain / mine for plain, mine in pairs]
        row.ratio_low, row.ratio_to_plain, row.ratio_high = (
            float(q) for q in np.quantile(ratios, (0.25, 0.5, 0.75))
        )
        row.round_seconds = statistics.median(self.seconds) / self.rounds
        row.samples_per_second = self.samples / row.round_seconds
        row.repetitions = len(self.seconds)


def to_json(rows: Sequence[Row]) -> list[dict[str, Any]]:
    return [asdict(row) for row in rows]


def to_text(rows: Sequence[Row]) -> str:
    """A Markdown table a workload, with what it needs to be understood."""
    blocks = []
    for workload in dict.fromkeys(row.workload for row in rows):
        of_it = [row for row in rows if row.workload == workload]
        first = of_it[0]
        head = (
            f"{workload}: {first.model} on {first.data}; {first.clients} clients, {first.partition}, "
            f"batch {first.batch_size}, {_counted(first.epochs, 'epoch')}, {first.device}"
        )
        errors = [f"{row.engine} failed: {row.error}" for row in of_it if row.error]
        blocks.append("\n".join([head, "", _table(of_it), *errors]))
    return "\n\n".join([*blocks, _legend(rows)]) + "\n"


def _table(rows: Sequence[Row]) -> str:
    on_gpu = any(row.device.startswith("cuda") for row in rows)
    cells = [_cells(row, on_gpu) for row in rows]
    return Grid(list(cells[0]), [list(of_row.values()) for of_row in cells]).to_markdown(aligned=True)


def _cells(row: Row, on_gpu: bool) -> dict[str, str]:
    """Texts by column."""
    low, high = row.ratio_low, row.ratio_high
    cells = {
        "engine": row.engine + (f" ({_threads(row.threads)})" if row.threads else ""),
        "samples/s": _figure(row.samples_per_second, ",.0f"),
        "x plain": _figure(row.ratio_to_plain, ".2f"),
        "middle half": "-" if low is None or high is None else f"{low:.2f} to {high:.2f}",
        "start s": _figure(row.start_seconds, ".1f"),
        "memory MB": _figure(row.peak_memory_mb, ",.0f"),
        "limit": "-" if row.arithmetic_share is None else f"{row.arithmetic_share:.1%} {row.precision}",
    }
    if on_gpu:
        cells["GPU MB"] = _figure(row.peak_gpu_memory_mb, ",.0f")
        cells["GPU busy"] = "-" if row.gpu_utilisation is None else f"{row.gpu_utilisation:.0f} %"
    return cells


def _threads(numbers: Sequence[int]) -> str:
    return " or ".join([*(str(n) for n in numbers[:-1]), _counted(numbers[-1], "thread")])


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}" + ("s" if number > 1 else "")


def _figure(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _legend(rows: Sequence[Row]) -> str:
    machine = rows[0].machine
    lines = [
        "samples/s: of training, in whole rounds with evaluation. x plain: as a multiple of the plain loop's",
        "measured right before; above 1 is faster. limit: share of what the device computes in a big matrix",
        "product of that precision.",
    ]
    for engine in dict.fromkeys(row.engine for row in rows):
        row = next((row for row in rows if row.engine == engine and row.includes), None)
        if row is not None:
            lines.append(f"a round of {engine}{f' {row.version}' if row.version else ''}: {row.includes}")
    gpu = f", {machine['gpu']}" if machine.get("gpu") else ""
    lines.append(
        f"machine: {machine.get('cpu')}, {machine.get('cores')} cores{gpu}; torch {machine.get('torch')}"
    )
    return "\n".join(lines)
