"""The measurement: every contender warmed up, then rounds in turns, a plain round before each other one."""

import tempfile
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from fedgela.bench import machine
from fedgela.bench.contender import ENGINES, PLAIN
from fedgela.bench.rows import Row, Timing
from fedgela.bench.stage import ContenderFailed, Facts, Stage
from fedgela.bench.workloads import DEFAULT_ON_CPU, DEFAULT_ON_GPU, WORKLOADS, Task, prepare
from fedgela.errors import UserError, did_you_mean
from fedgela.nets import initial_net
from fedgela.resolve import device_of, resolve
from fedgela.training.choice import training_operations

Say = Callable[[str], None]
Keep = Callable[[list[Row]], None]


@dataclass(frozen=True)
class Options:
    """What a user can choose; None is what suits the device."""

    workloads: Sequence[str] = ()
    engines: Sequence[str] = tuple(ENGINES)
    samples: int | None = None
    epochs: int | None = None
    rounds: int = 1  # timed together
    repetitions: int | None = None
    data_dir: str | None = None
    device: str = "auto"


def run(options: Options, say: Say, keep: Keep = lambda rows: None) -> list[Row]:
    """Rows in the order of workloads and engines; `say` gets a line for whatever the user should know, `keep`
    what is known after every turn."""
    _check("--workload", options.workloads, WORKLOADS)
    _check("--engines", options.engines, ENGINES)
    engines = _installed(options.engines, say)
    device = device_of(options.device)
    on_gpu = device.type == "cuda"
    workloads = options.workloads or (DEFAULT_ON_GPU if on_gpu else DEFAULT_ON_CPU)
    repetitions = options.repetitions or (3 if on_gpu else 5)
    limit = Limit(device)
    rows: list[Row] = []

    def with_earlier(found: list[Row]) -> None:
        keep(rows + found)

    with tempfile.TemporaryDirectory(prefix="fedgela-bench-") as folder:
        for name in workloads:
            task = prepare(
                name,
                device,
                Path(folder),
                samples=options.samples,
                epochs=options.epochs,
                data_dir=options.data_dir,
            )
            say(f"{name}: {task.data}; measuring {', '.join(engines)}")
            rows.extend(measure(task, engines, options.rounds, repetitions, limit, say, with_earlier))
            keep(rows)
    return rows


def _check(option: str, names: Sequence[str], known: Collection[str]) -> None:
    for name in names:
        if name not in known:
            raise UserError(
                f"{option}: there is no {name!r}{did_you_mean(name, known)}; there are {', '.join(known)}"
            )


def _installed(names: Sequence[str], say: Say) -> list[str]:
    """Of the engines that are asked for; plain is always one of them, and the first."""
    there = [PLAIN]
    for name in dict.fromkeys(names):
        if missing := ENGINES[name].missing():
            say(f"{name} is skipped: {', '.join(missing)} not installed (pip install 'fedgela[bench]')")
        elif name != PLAIN:
            there.append(name)
    return there


@dataclass
class Limit:
    """FLOP/s of the device by precision, each measured once, before anything else runs."""

    device: torch.device
    rates: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for precision in ("tf32", "bf16", "fp32") if self.device.type == "cuda" else ("fp32",):
            self.rates[precision] = machine.matmul_rate(self.device, precision)

    def share(self, flops_per_second: float, precision: str) -> float | None:
        rate = self.rates.get(precision)
        return None if rate is None else flops_per_second / rate


def measure(
    task: Task,
    engines: Sequence[str],
    rounds: int,
    repetitions: int,
    limit: Limit,
    say: Say,
    keep: Keep = lambda rows: None,
) -> list[Row]:
    """One workload. A contender that fails gets a row with its error, and the others go on."""
    resolved, federation = resolve(task.experiment)
    data = federation.data
    net = initial_net(resolved, data)
    flops = training_operations(net, federation)
    rows = {name: _empty_row(name, task, resolved.device, rounds) for name in engines}
    for row in rows.values():
        row.training_samples, row.test_samples = len(data.y_train), len(data.y_test)
    with Contest(task, rows, say) as contest:
        contest.warm_up(engines)
        for turn in range(1, repetitions + 1):
            contest.take_turns(rounds, f"turn {turn} of {repetitions}")
            for name, facts in contest.facts.items():
                row = rows[name]
                row.arithmetic_share = limit.share(flops * (row.samples_per_second or 0.0), facts.precision)
            keep(list(rows.values()))
        for name, stage in contest.stages.items():
            rows[name].gpu_utilisation = stage.utilisation()
    return list(rows.values())


class Contest:
    """The contenders' processes of one workload; one that fails leaves it."""

    def __init__(self, task: Task, rows: dict[str, Row], say: Say) -> None:
        self.task, self.rows, self.say = task, rows, say
        self.stages: dict[str, Stage] = {}
        self.facts: dict[str, Facts] = {}
        self.timings: dict[str, Timing] = {}

    def __enter__(self) -> "Contest":
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        for stage in self.stages.values():
            # after Ctrl-C nobody waits for rounds to end
            stage.close(patience=40.0 if error is None else 1.0)

    def warm_up(self, engines: Sequence[str]) -> None:
        for name in engines:
            if name != PLAIN and PLAIN not in self.stages:
                return  # nothing to compare with
            self.stages[name] = Stage(ENGINES[name].contender, self.task.experiment)
            try:
                self.facts[name] = self.stages[name].warm_up()
            except ContenderFailed as error:
                self._failed(name, error)
            else:
                _tell(self.rows[name], self.facts[name], self.stages[name])
                self.say(
                    f"{self.task.workload}: {name} is ready after {self.facts[name].start_seconds:.1f} s"
                )

    def take_turns(self, rounds: int, turn: str) -> None:
        """Every contender once, and a plain round right before it, since a machine's speed drifts."""
        others = [name for name in self.stages if name != PLAIN]
        for name in others or list(self.stages):
            plain = self.stages[PLAIN].play(rounds)
            self._timed(PLAIN, rounds, plain, plain)
            if name == PLAIN:
                continue
            try:
                seconds = self.stages[name].play(rounds)
            except ContenderFailed as error:
                self._failed(name, error)
            else:
                self._timed(name, rounds, seconds, plain)
                self.say(f"{self.task.workload}: {turn}: plain {plain:.2f} s, {name} {seconds:.2f} s")

    def _timed(self, name: str, rounds: int, seconds: float, plain_seconds: float) -> None:
        samples = self.facts[name].samples, self.facts[PLAIN].samples
        timing = self.timings.setdefault(name, Timing([], [], *samples, rounds))
        timing.seconds.append(seconds)
        timing.plain_seconds.append(plain_seconds)
        timing.fill(self.rows[name])

    def _failed(self, name: str, error: ContenderFailed) -> None:
        if not ENGINES[name].is_peer:  # our own: a bug, of which everything is to be seen
            self.say(str(error))
        self.say(f"{self.task.workload}: {name} failed: {error.reason}")
        self.rows[name].fail(error.reason)
        self.facts.pop(name, None)
        self.stages.pop(name).close()


def _empty_row(name: str, task: Task, device: str, rounds: int) -> Row:
    e = task.experiment
    return Row(
        engine=name,
        workload=task.workload,
        version=ENGINES[name].version() if ENGINES[name].is_peer else None,
        model=e.model or "",
        data=task.data,
        partition=e.partition or "",
        clients=e.clients or 0,
        batch_size=e.batch_size,
        epochs=e.epochs,
        rounds=rounds,
        device=device,
        machine=machine.describe(),
    )


def _tell(row: Row, facts: Facts, stage: Stage) -> None:
    row.start_seconds = facts.start_seconds
    row.threads = list(facts.threads)
    row.precision = facts.precision
    row.includes = facts.includes
    row.peak_memory_mb = stage.peak_memory / 1e6 if stage.peak_memory else None
    if stage.peak_gpu_memory is not None:
        row.peak_gpu_memory_mb = stage.peak_gpu_memory / 1e6
