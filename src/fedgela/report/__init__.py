"""`fedgela report`: one self-contained HTML file of runs, and their figures as files."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fedgela.files import write_atomically
from fedgela.imports import require_matplotlib
from fedgela.notes import classes_worth_knowing
from fedgela.report.arranging import arrange
from fedgela.report.colours import Style, styles
from fedgela.report.context import Context, Section
from fedgela.report.drawing import Picture
from fedgela.report.embedding import Kind
from fedgela.report.entries import Setting
from fedgela.report.page import page
from fedgela.report.saved_models import Federations
from fedgela.report.sections import sections
from fedgela.saved.runs import Run, find_runs

__all__ = ["Report", "make_report"]


@dataclass
class Report:
    """What was found; pictures are drawn when the page is asked for."""

    runs: list[Run]
    settings: list[tuple[Setting, list[Section]]]
    styles: dict[str, Style]
    notes: list[str]  # what was damaged, left out or missing, in the runs or in their data

    @cached_property
    def html(self) -> str:
        settings = [setting for setting, _ in self.settings]
        title = settings[0].title if len(settings) == 1 else f"{len(settings)} settings compared"
        done = sum(run.result is not None for run in self.runs)
        lead = f"{len(self.runs)} run{'s' if len(self.runs) > 1 else ''}, {done} finished"
        return page(f"fedgela: {title}", lead, self.notes, self.settings, self.styles)

    @property
    def pictures(self) -> list[Picture]:
        return [picture for _, made in self.settings for section in made for picture in section.pictures]

    def save(self, out: Path, figures: Path | None = None) -> None:
        """The page, and every picture as PNG and SVG in the sizes papers use."""
        html = self.html  # before anything is written
        out.parent.mkdir(parents=True, exist_ok=True)
        if figures is not None:
            figures.mkdir(parents=True, exist_ok=True)
            for number, (_, made) in enumerate(self.settings, start=1):
                prefix = f"{number}-" if len(self.settings) > 1 else ""
                for section in made:
                    for picture in section.pictures:
                        picture.save(figures, prefix)
        write_atomically(out, html)


def make_report(paths: Sequence[Path], embedding: Kind = "pca") -> Report:
    """The report of every run in these folders."""
    require_matplotlib("a report draws pictures")
    notes: dict[str, None] = {}  # each once, in order

    def note(text: str) -> None:
        notes.setdefault(text)

    settings = arrange(find_runs(paths, note), note)
    shown = [run for setting in settings for entry in setting.entries for run in entry.runs.values()]
    federations = Federations(note)
    look = styles((entry.label, entry.method) for setting in settings for entry in setting.entries)
    made: list[tuple[Setting, list[Section]]] = []
    for setting in settings:
        context = Context(setting, look, federations, embedding, note)
        if context.federation is not None and setting.sites is None:
            for line in classes_worth_knowing(context.federation):
                note(f"{setting.title}: {line}" if len(settings) > 1 else line)
        made.append((setting, sections(context)))
    return Report(shown, made, look, list(notes))
