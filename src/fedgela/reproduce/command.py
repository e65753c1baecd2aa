"""What `fedgela reproduce` does, beneath its options."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from fedgela.errors import UserError
from fedgela.files import check_apart, write_atomically
from fedgela.paper import Cell, distinct, find_cell
from fedgela.progress import SAME_COMMAND, View, training_view
from fedgela.reproduce.adding import gather
from fedgela.reproduce.budget import Budget
from fedgela.reproduce.document import to_html, to_markdown
from fedgela.reproduce.ledger import append, check_appendable, read_ledger
from fedgela.reproduce.page import TITLE, page
from fedgela.reproduce.smoke import tiny_tasks, write_tiny_data
from fedgela.reproduce.standing import of_the_paper
from fedgela.reproduce.tasks import Outcome, Task, run_tasks


def write_page(ledger: Path, markdown: Path, html: Path | None) -> list[str]:
    """The page as Markdown, and as HTML where that is asked for; and notes on lines that are not in it."""
    pages = {"--page": markdown} | ({"--html": html} if html is not None else {})
    for option, path in pages.items():
        check_apart(path, ledger, option=option)
    for path in pages.values():
        if path.is_dir() or not path.parent.is_dir():
            raise UserError(f"{path} is to be a file in a folder that exists")
    if html is not None and html.resolve() == markdown.resolve():
        raise UserError(f"--page and --html are the same file, {html}")
    entries, strange = of_the_paper(read_ledger(ledger))
    if not entries:  # tables of nothing would replace a page of something
        raise UserError(
            f"{ledger}: there is no run in this ledger to write a page of; --ledger names another"
        )
    blocks = page(entries)
    write_atomically(markdown, to_markdown(blocks))
    if html is not None:
        write_atomically(html, to_html(blocks, TITLE))
    return [f"{ledger}: the paper has no cell {entry.cells[0]!r}; left out" for entry in strange]


def add(paths: Sequence[Path], ledger: Path, cell: str | None, variant: str | None) -> tuple[list[str], int]:
    """Lines on what was added and what was not, and how many were not."""
    if not paths:
        raise UserError("--add: name folders of finished runs, or ledgers (.jsonl)")
    asked = find_cell(cell) if cell else None
    lines, refused = [], 0
    for path in paths:
        found, reasons = gather(path, read_ledger(ledger), asked, variant)
        added = append(ledger, found)
        lines += [f"added: {entry.cells[0]} seed {entry.seed}" for entry in added]
        if len(found) > len(added):
            lines.append(f"{path}: {len(found) - len(added)} in the ledger already")
        lines += reasons
        refused += len(reasons)
    return lines, refused


def run(
    tasks: Sequence[Task], out: Path, ledger: Path, budget: float | None, variant: str | None
) -> tuple[Outcome, list[str]]:
    check_appendable(ledger)  # told before hours of training
    with training_view(Console(), len(tasks)) as view:
        view.goes_on = SAME_COMMAND
        outcome = run_tasks(tasks, out, ledger, view, Budget(budget), variant)
    lines = []
    for entry in outcome.added:
        figures = [
            f"{name} best {pair.best:.2f} last {pair.last:.2f}"
            for name, pair in (("PA", entry.PA), ("GA", entry.GA))
            if pair is not None and pair.best is not None and pair.last is not None
        ]
        lines.append("  ".join([f"{entry.cells[0]} seed {entry.seed}", *figures]))
    lines.append(f"{len(outcome.added)} added to {ledger}, {outcome.skipped} there already")
    if outcome.stopped:
        lines.append(f"stopped: {outcome.stopped}; the same command goes on, {len(outcome.left)} left")
    lines += [f"failed: {label}: {why}" for label, why in outcome.failed.items()]
    return outcome, lines


def smoke(chosen: Sequence[Cell]) -> Outcome:
    """Every different run of the chosen cells at tiny size, in a temporary folder, and the page of it all."""
    console = Console()
    with tempfile.TemporaryDirectory(prefix="fedgela-smoke-") as name:
        folder = Path(name)
        write_tiny_data(folder / "data")
        tasks = tiny_tasks(distinct(chosen), folder / "data")
        ledger = folder / "ledger.jsonl"
        with _Quiet(console, len(tasks)) as view:
            outcome = run_tasks(tasks, folder / "runs", ledger, view)
        to_markdown(page(read_ledger(ledger)))
        return outcome


class _Quiet(View):
    """A line every hundred runs."""

    done = 0

    def advance(self) -> None:
        self.done += 1
        if self.done % 100 == 0 or self.done == self.runs:
            self.console.print(f"{self.done} of {self.runs} runs", highlight=False)

    def note(self, text: str) -> None:
        if text.startswith("failed"):
            super().note(text)
