"""The registry's TOML files, and what they may hold. A mistake in them is named by file and key."""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from fedgela.errors import did_you_mean

# in the order of the paper: its tables, then its figures
TABLES = (
    "main",
    "isic",
    "ablation",
    "pcdd",
    "phi",
    "std",
    "communication",
    "backbones",
    "realworld",
    "motivation",
    "convergence",
    "ew",
    "angles",
    "heatmaps",
    "burden",
)
Measures = Literal["accuracy", "communication", "burden", "angles", "partition"]
Participation = Literal["full", "part"]
Rows = Mapping[str, tuple[str, ...]]  # method -> a number for each column, as printed
Marks = Mapping[str, Mapping[str, Mapping[str, tuple[str, ...]]]]  # data set, metric, column -> methods


def _known(where: str, words: Iterable[str], known: Iterable[str]) -> None:
    names = list(known)
    for word in words:
        if word not in names:
            raise ValueError(f"{where}: there is no {word!r} here{did_you_mean(word, names)}")


class _Strict:
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")


@dataclass(frozen=True)
class Note(_Strict):
    """What the paper leaves open or contradicts, and what is done here."""

    about: str
    paper: str
    choice: str


@dataclass(frozen=True)
class Setting(_Strict):
    """Who holds the data and who takes part: keys of an experiment, perhaps on top of a common setting."""

    like: str | None = None
    participation: Participation | None = None
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Method(_Strict):
    title: str
    algorithm: Mapping[str, Any]  # as an experiment's table [algorithm]


@dataclass(frozen=True)
class PaperDataset(_Strict):
    rounds: Mapping[Participation, int]
    config: Mapping[str, Any]


@dataclass(frozen=True)
class Common(_Strict):
    """What the tables share (common.toml)."""

    seeds: tuple[int, ...]
    baselines: tuple[str, ...]
    config: Mapping[str, Any]
    datasets: Mapping[str, PaperDataset]
    settings: Mapping[str, Setting]
    methods: Mapping[str, Method]
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True)
class Table(_Strict):
    """One table or figure of the paper. Figures have no printed numbers."""

    number: str  # Table 2
    label: str  # in the paper's source
    title: str
    measures: Measures
    metrics: tuple[str, ...]
    methods: tuple[str, ...]  # those to be run; a printed row that is not among them is the best baseline
    datasets: Mapping[str, tuple[str, ...]]  # data set -> its settings
    settings: Mapping[str, Setting] = field(default_factory=dict)  # this table's own
    methods_here: Mapping[str, Method] = field(default_factory=dict)  # this table's own
    # data set -> printed column -> the settings it is the mean of; without, columns are settings
    columns: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    printed: Mapping[str, Mapping[str, Rows]] = field(default_factory=dict)  # data set -> metric -> rows
    gains: Mapping[str, str] = field(default_factory=dict)  # metric -> its printed gain of FedGELA
    underlined: Marks = field(default_factory=dict)  # meant as the best baseline
    bold: Marks = field(default_factory=dict)  # meant as the best
    notes: tuple[Note, ...] = ()

    def __post_init__(self) -> None:
        for dataset, columns in self.columns.items():
            for column, settings in columns.items():
                _known(f"columns.{dataset}.{column}", settings, self.datasets.get(dataset, ()))
        for dataset, metrics in self.printed.items():
            _known("printed", [dataset], self.datasets)
            _known(f"printed.{dataset}", metrics, [*self.metrics, *self.gains.values()])
            for metric, rows in metrics.items():
                _known(f"printed.{dataset}.{metric}", rows, [*self.methods, "best-baseline"])
                for row, numbers in rows.items():
                    if len(numbers) != len(self.columns_of(dataset)):
                        raise ValueError(f"printed.{dataset}.{metric}.{row} has not one number a column")
        for marks in (self.underlined, self.bold):
            for dataset, by_metric in marks.items():
                for metric, by_column in by_metric.items():
                    _known(f"marks of {dataset}.{metric}", by_column, self.columns_of(dataset))
                    for methods in by_column.values():
                        _known(f"marks of {dataset}.{metric}", methods, self.methods)

    def method(self, name: str) -> Method:
        return self.methods_here.get(name) or common().methods[name]

    def columns_of(self, dataset: str) -> Mapping[str, tuple[str, ...]]:
        return self.columns.get(dataset) or {setting: (setting,) for setting in self.datasets[dataset]}


@dataclass(frozen=True)
class Claim(_Strict):
    """A gain of FedGELA that the paper's text states."""

    where: str
    over: tuple[tuple[str, str], ...]  # (table, data set)
    metrics: tuple[str, ...]
    against: str
    printed: str


@dataclass(frozen=True)
class Claims(_Strict):
    claims: tuple[Claim, ...]


Shape = TypeVar("Shape")


def parse(shape: type[Shape], text: str, name: str) -> Shape:
    """A file's text as the dataclass it must fit; ValueError names the file and the key."""
    try:
        return TypeAdapter(shape).validate_python(tomllib.loads(text))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"{name}.toml: {key}: {first['msg']}") from None


def _read(shape: type[Shape], name: str) -> Shape:
    return parse(shape, (files("fedgela.paper") / "data" / f"{name}.toml").read_text("utf-8"), name)


@cache
def common() -> Common:
    return _read(Common, "common")


@cache
def table(name: str) -> Table:
    return _read(Table, name)


@cache
def claims() -> tuple[Claim, ...]:
    return _read(Claims, "claims").claims
