"""What cells would take, without running them."""

from collections.abc import Mapping, Sequence

from fedgela.burden import WARM_UP_ROUNDS
from fedgela.config import Experiment
from fedgela.errors import UserError, did_you_mean
from fedgela.models import BACKBONES
from fedgela.models.hub import SHORT_NAMES
from fedgela.reproduce.ledger import Entry
from fedgela.reproduce.rates import Rate, Rates
from fedgela.reproduce.sizes import images_of_a_run
from fedgela.reproduce.tasks import Task
from fedgela.resolve import data_read_once


def parse_rates(listed: Sequence[str]) -> dict[str, float]:
    """model=value, such as resnet18=90000."""
    rates = {}
    known = [*BACKBONES, *SHORT_NAMES]
    for text in listed:
        model, equals, value = text.partition("=")
        try:
            rate = float(value)
        except ValueError:
            rate = 0.0
        if not equals or not 0 < rate < float("inf"):
            raise UserError(f"--images-per-second {text!r}: write model=value, such as resnet18=90000")
        if model not in known:
            raise UserError(
                f"--images-per-second: there is no model {model!r}{did_you_mean(model, known)}; "
                f"there are {', '.join(known)}"
            )
        rates[model] = rate
    return rates


@data_read_once()
def plan(tasks: Sequence[Task], entries: Sequence[Entry], given: Mapping[str, float]) -> list[str]:
    """A line a task with its seconds, their sum, and what they rest on."""
    rates = Rates(entries, tasks[0].device if tasks else "", given)
    lines, total, unknown, done = [], 0.0, 0, 0
    runs = set()
    missing: dict[str, None] = {}
    bases: dict[str, None] = {}
    for task in tasks:
        if task.done(entries):
            done += 1
            lines.append(f"{'in the ledger':>14}  {task.label}")
            continue
        key = (task.hash, task.seed, task.cell.is_trained)
        if key in runs:
            lines.append(f"{'the same run':>14}  {task.label}")
            continue
        runs.add(key)
        rate = rates.of(task.experiment)
        seconds = _seconds(task, rate)
        if seconds is None:
            unknown += 1
            missing[_missing(task.experiment)] = None
            lines.append(f"{'?':>14}  {task.label}")
        else:
            total += seconds
            if rate is not None and rate.rests_on and task.cell.measures != "partition":
                bases[rate.rests_on] = None
            lines.append(f"{seconds:>12.0f} s  {task.label}")
    told = f"{total:.0f} s in all for {len(runs) - unknown} runs, {done} cells are in the ledger"
    if unknown:
        told += f"; {unknown} cannot be told: {'; '.join(missing)}"
    if bases:
        bases = {f"told by earlier runs on {rates.device}, perhaps with other work beside them": None} | bases
    return [*lines, told, *bases]


def _missing(experiment: Experiment) -> str:
    if images_of_a_run(experiment) is None:
        return f"the data set {experiment.dataset!r} is not on this machine, to count its samples"
    return f"--images-per-second {experiment.model}=VALUE"


def _seconds(task: Task, rate: Rate | None) -> float | None:
    if task.cell.measures == "partition":
        return 10.0
    images = images_of_a_run(task.experiment)
    if images is None or rate is None:
        return None
    seconds = images / rate.images_per_second
    if task.cell.measures == "burden":
        # a warm-up of each method, and as many turns of it as of FedAvg before it and alone
        methods = 1 if task.cell.method == "fedavg" else 2
        rounds = methods * WARM_UP_ROUNDS + (2 * methods - 1) * task.repetitions
        return rounds * seconds / task.experiment.rounds
    return seconds
