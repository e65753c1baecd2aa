"""What `fedgela watch` shows: a table that changes on a terminal, plain lines elsewhere."""

import time
from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedgela.failures import ERROR
from fedgela.progress import duration, number
from fedgela.runfolder import RESULT
from fedgela.runs import command_of_a_federation
from fedgela.seeds import holds_seeds
from fedgela.tables import DIVERGED
from fedgela.watch import Look, Seen, Watcher, follow

BARS = "▁▂▃▄▅▆▇█"
TREND = 24  # characters of a sparkline
WIDE = 110  # columns of a terminal that has room for sparklines in a table
STYLES = {
    "running": "green",
    "finishing": "green",
    "finished": "bold",
    "damaged": "red",
    "stopped": "yellow",
    "failed": "red",
}
TO_DO = ("damaged", "stopped", "failed")  # stages in which the user has to do something


def sparkline(values: Sequence[float | None]) -> str:
    """Values as bars between their minimum and maximum; a long series is thinned out evenly."""
    held = [v for v in values if v is not None]
    if len(held) > TREND:
        held = [held[round(i * (len(held) - 1) / (TREND - 1))] for i in range(TREND)]
    if not held:
        return ""
    low, high = min(held), max(held)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((v - low) * scale)] for v in held)


def stage_of(run: Seen) -> str:
    """A run's stage in words, with what the user should do where something is to be done."""
    if run.stage == "finishing":
        return "measuring the final models"
    folder = run.path.parent if holds_seeds(run.path.parent) else run.path
    command = command_of_a_federation(run.path) or f"fedgela resume {folder}"
    if run.stage == "stopped":
        return f"stopped: no process works on it; '{command}' goes on"
    if run.stage == "damaged":  # while the file exists the run counts as finished, and is not resumed
        file = run.path / RESULT
        return f"damaged: {file} cannot be used; delete it, and '{command}' measures the end again"
    if run.stage == "failed":
        return f"failed: {run.path / ERROR} says why"
    return run.stage


def _pace(run: Seen) -> list[str]:
    each, left = run.seconds_a_round, run.seconds_left
    parts = [f"{duration(each)} a round"] if each is not None else []
    if left is not None and run.stage == "running":
        parts.append(f"{duration(round(left))} left")
    return parts


def _trend(run: Seen, name: str) -> str:
    return sparkline([record.get(name) for record in run.records])


def _best(run: Seen, name: str) -> str:
    """What the value beside the last is: a fine-tuned PA is measured twice, and not the better one told."""
    finetuned = name == "PA" and run.experiment.algorithm.PA_of == "finetuned"
    return "at the best GA" if finetuned else "best"


def rows_of(run: Seen) -> list[tuple[str, str]]:
    """One run in full, as rows of a name and a text."""
    rows = [("state", stage_of(run))]
    rows.append(("rounds", ", ".join([f"{run.rounds_done} of {run.experiment.rounds}", *_pace(run)])))
    for name, summary in run.accuracies().items():
        key = "local_accuracy" if name == "local" else name
        best = f"{_best(run, name)} {number(summary['best'])} (round {summary['best_round']})"
        rows.append((name, f"{number(summary['last'])}  {best}  {_trend(run, key)}".rstrip()))
    if run.loss is not None:
        rows.append(("loss", f"{number(run.loss, 4)}  {_trend(run, 'train_loss')}".rstrip()))
    if run.diverged_round:
        rows.append(("diverged", f"the training loss became infinite or NaN in round {run.diverged_round}"))
    if run.checkpoints:
        rounds = ", ".join(map(str, run.checkpoints))
        ago = max(0.0, time.time() - list(run.checkpoints.values())[-1])
        kept = f"{'rounds' if len(run.checkpoints) > 1 else 'round'} {rounds}"
        rows.append(("checkpoints", kept + (f", the last {duration(round(ago))} ago" if run.alive else "")))
    return rows


def line_of(run: Seen) -> str:
    """One run in a line."""
    parts = [run.name, run.stage, f"round {run.rounds_done}/{run.experiment.rounds}"]
    for name, summary in run.accuracies().items():
        parts.append(f"{name} {number(summary['last'])} ({_best(run, name)} {number(summary['best'])})")
    if run.loss is not None:
        parts.append(f"loss {number(run.loss, 4)}")
    if run.diverged_round:
        parts.append(f"diverged in round {run.diverged_round}")
    return "  ".join(parts + _pace(run))


def to_text(look: Look) -> str:
    """The whole state in plain lines."""
    if len(look.runs) == 1 and not look.waiting:
        run = look.runs[0]
        lines = [f"{run.name}  {run.experiment.algorithm.title}"]
        lines += [f"  {name:12s}{text}" for name, text in rows_of(run)]
    else:
        lines = [line_of(run) for run in look.runs]
        lines += [f"{name}  waiting" for name in look.waiting]
        lines += [f"{run.name}  {stage_of(run)}" for run in look.runs if run.stage in TO_DO]
    return "\n".join(lines + [f"note: {note}" for note in look.notes]) + "\n"


def to_rich(look: Look, width: int) -> RenderableType:
    alone = len(look.runs) == 1 and not look.waiting
    parts: list[RenderableType] = [_panel(look.runs[0]) if alone else _table(look, width >= WIDE)]
    if not alone:
        told = [f"{run.name}: {stage_of(run)}" for run in look.runs if run.stage in TO_DO]
        parts += [Text(text, style="yellow") for text in told]
    parts += [Text(f"note: {note}", style="yellow") for note in look.notes]
    return Group(*parts)


def _panel(run: Seen) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    grid.add_row(Text(run.name, style="bold"), Text(run.experiment.algorithm.title))
    bar = ProgressBar(total=run.experiment.rounds, completed=run.rounds_done, width=40)
    for name, text in rows_of(run):
        grid.add_row(name, Text(text, style=STYLES[run.stage] if name == "state" else ""))
        if name == "rounds":
            grid.add_row("", bar)
    return grid


def _table(look: Look, wide: bool) -> RenderableType:
    table = Table(box=None, padding=(0, 2 if wide else 1, 0, 0), show_edge=False)
    table.add_column("run", overflow="fold", min_width=12)  # the only column that shrinks when room is short
    table.add_column("state", no_wrap=True)
    for name in ("round", "GA", "best", "PA", "best", "loss"):
        table.add_column(name, justify="right", no_wrap=True)
    if wide:
        table.add_column("GA so far", no_wrap=True)
    table.add_column("a round", justify="right", no_wrap=True)
    table.add_column("left", justify="right", no_wrap=True)
    local = False
    for run in look.runs:
        found = run.accuracies()
        mark = "*" if "local" in found else ""
        local = local or bool(mark)
        both = found.get("GA", {}), found.get("PA", found.get("local", {}))
        cells = [number(summary.get(when)) for summary in both for when in ("last", "best")]
        each, left = run.seconds_a_round, run.seconds_left
        table.add_row(
            escape(run.name) + (" †" if run.diverged_round else ""),
            Text(run.stage, style=STYLES[run.stage]),
            f"{run.rounds_done}/{run.experiment.rounds}",
            *cells[:3],
            cells[3] + mark,
            number(run.loss, 4 if wide else 3),
            *([_trend(run, "GA")] if wide else []),
            duration(each) if each is not None else "-",
            duration(round(left)) if left is not None and run.stage == "running" else "",
        )
    for name in look.waiting:
        table.add_row(escape(name), "waiting")
    legend = ["* of local models: PA is known after fine-tuning"] if local else []
    legend += [DIVERGED] if any(run.diverged_round for run in look.runs) else []
    if legend:
        table.caption = "\n".join(legend)
        table.caption_justify = "left"
    return table


def watch(watcher: Watcher, console: Console, once: bool, every: float) -> None:
    if once:
        print(to_text(watcher.look()), end="")
    elif console.is_terminal:
        first = watcher.look()  # raises its errors before the live display starts
        with Live(to_rich(first, console.width), console=console, auto_refresh=False) as live:
            follow(watcher, lambda look: live.update(to_rich(look, console.width), refresh=True), every)
    else:
        lines = _Lines()
        follow(watcher, lines.show, every)


class _Lines:
    """For logs: first the whole state, then a line for every run that has changed, and every note once."""

    def __init__(self) -> None:
        self.shown: dict[str, tuple[int, str]] = {}
        self.told: set[str] = set()

    def show(self, look: Look) -> None:
        if not self.shown:
            print(to_text(look), end="", flush=True)
            self.told.update(look.notes)
        else:
            for run in look.runs:
                before = self.shown.get(run.name, (-1, ""))
                if before != (run.rounds_done, run.stage):
                    print(line_of(run), flush=True)
                if before[1] != run.stage and run.stage in TO_DO:
                    print(f"{run.name}  {stage_of(run)}", flush=True)
            for note in look.notes:
                if note not in self.told:
                    print(f"note: {note}", flush=True)
                    self.told.add(note)
        self.shown = {run.name: (run.rounds_done, run.stage) for run in look.runs}
