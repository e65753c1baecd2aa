"""A section of the report, and what the functions that make sections are given."""

from dataclasses import dataclass, field
from functools import cached_property

from fedgela.client_names import client_names
from fedgela.data import Federation
from fedgela.errors import printable
from fedgela.grids import Grid
from fedgela.report.colours import Style
from fedgela.report.drawing import Picture
from fedgela.report.embedding import Kind
from fedgela.report.entries import Setting
from fedgela.report.saved_models import Federations
from fedgela.saved.runs import Note

Part = str | Grid | Picture  # a string is HTML


@dataclass
class Section:
    title: str
    parts: list[Part] = field(default_factory=list)

    @property
    def pictures(self) -> list[Picture]:
        return [part for part in self.parts if isinstance(part, Picture)]


@dataclass(frozen=True)
class Context:
    """What the sections on one setting are made from."""

    setting: Setting
    styles: dict[str, Style]
    federations: Federations
    embedding: Kind
    note: Note

    @cached_property
    def federation(self) -> Federation | None:
        """Of the first run."""
        return self.federations.of(self.setting.entries[0].first)

    def classes(self) -> int:
        """C; 0 where nothing tells it."""
        if self.federation is not None:
            return self.federation.data.classes
        return max((len(entry.GA_by_class()) for entry in self.setting.entries), default=0)

    def client_names(self) -> list[str]:
        """Of the first run's clients: what the data calls them, or else their numbers."""
        if self.federation is None:
            return []
        names = client_names(self.setting.experiment, self.federation)
        return [name or str(k) for k, name in enumerate(names or [""] * self.federation.clients)]

    def class_names(self, C: int) -> list[str]:
        names = self.federation.data.class_names if self.federation is not None else ()
        return [printable(name) for name in names] or [str(c) for c in range(C)]


def file_name(label: str) -> str:
    """A label as the name of a file: other characters than letters, digits and -_.= become dashes."""
    return "".join(ch if ch.isalnum() or ch in "-_.=" else "-" for ch in label).strip("-.") or "run"
