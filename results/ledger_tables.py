"""The docs' tables of what results/ledger.jsonl holds, each as Markdown."""

import statistics
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import asdict, replace
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Any

from fedgela.algorithms.fedgela import FedGE, FedGELA
from fedgela.grids import Grid
from fedgela.over_seeds import mean_std, spread
from fedgela.paper import cells, distinct, find_cell
from fedgela.reproduce.departures import options_of
from fedgela.reproduce.ledger import Entry, read_ledger
from fedgela.reproduce.settings import settings_hash
from fedgela.reproduce.standing import LAST_TENTH, Standing, Standings, value_of

LEDGER = Path(__file__).resolve().parent / "ledger.jsonl"
MEASURED = (("GA", LAST_TENTH), ("PA", "last"))  # what FedAvg and FedGELA are held against each other by


@cache
def entries() -> list[Entry]:
    return read_ledger(LEDGER)


def place_of(config: dict[str, Any], quote: str = "") -> tuple[str, str]:
    """Data, split and model of a line of the ledger, and how many clients of how many take part."""
    where = f"{config['dataset']}, {quote}{config['partition']}{quote}, {config['model']}"
    return where, f"{config.get('sample') or config['clients']} of {config['clients']}"


def measured_pairs(phi: str = FedGELA().phi) -> Iterator[tuple[Standing, Standing]]:
    """FedAvg and FedGELA with this form of Phi and its other defaults, on real data, each on those seeds that
    the ledger has of both."""
    standings, options = Standings(entries()), {"name": "fedgela", **asdict(FedGELA(phi=phi))}.items()
    for cell in distinct(c for c in cells(methods="fedgela") if c.measures == "accuracy"):
        (base_cell,) = cells(cell.table, cell.dataset, cell.setting, "fedavg")
        for gela in standings.all_of(cell):
            if not config_of(gela)["algorithm"].items() <= options:
                continue
            for base in standings.under(gela.conditions, base_cell):
                if common := base.entries.keys() & gela.entries.keys():
                    yield on(common, base), on(common, gela)


def on(seeds: Collection[int], standing: Standing) -> Standing:
    """Of these seeds alone."""
    return replace(standing, entries={seed: e for seed, e in standing.entries.items() if seed in seeds})


def config_of(standing: Standing) -> dict[str, Any]:
    """The config of one of its seeds."""
    return next(iter(standing.entries.values())).config


def measured() -> str:
    """Those pairs as a table."""
    rows = []
    for base, gela in measured_pairs():
        figures = [
            mean_std(spread(standing.values(metric, when).values()), digits=1)
            for metric, when in MEASURED
            for standing in (base, gela)
        ]
        rows.append([*place_of(config_of(gela)), str(len(gela.entries)), *figures])
    figures = [f"{metric}, {method}" for metric, _ in MEASURED for method in ("FedAvg", "FedGELA")]
    return Grid(["data, split, model", "clients", "seeds", *figures], rows).to_markdown()


def phi_measured() -> str:
    """FedGELA's forms of Phi at the paper's number of rounds, FedAvg and FedGE beside them, wherever the
    ledger has several forms of one task with seed 0; all other options at their defaults."""
    forms = ["power:1", "power:0.5", "even", "paper-sqrt", "paper-exp"]
    methods = {form: {"name": "fedgela", **asdict(FedGELA(phi=form))} for form in forms}
    methods |= {"fedavg": {"name": "fedavg"}, "fedge": {"name": "fedge", **asdict(FedGE())}}
    found: dict[tuple[str, ...], dict[str, str]] = defaultdict(dict)
    for entry in entries():
        settings = entry.settings()
        if entry.kind != "run" or entry.seed != 0 or entry.rounds_run < entry.rounds_paper or not settings:
            continue
        method = entry.config["algorithm"].items()
        name = next((name for name, own in methods.items() if method <= own.items()), None)
        if name is not None:
            task = settings_hash({key: value for key, value in settings.items() if key != "algorithm"})
            key = (*place_of(entry.config, "`"), task, entry.data.fingerprint, entry.precision or "")
            GA, PA = value_of(entry, "GA", LAST_TENTH), value_of(entry, "PA", "last")
            found[key][name] = f"{GA:.1f}, {PA:.1f}"
    shown = ["fedavg", "fedge", *forms]
    rows = [
        [where, clients, *(figures.get(name, "–") for name in shown)]
        for (where, clients, *_), figures in found.items()
        if len(figures.keys() & set(forms)) > 1
    ]
    head = ["data, split, model", "clients", *(f"{name}: GA, PA" for name in shown)]
    return Grid(head, rows).to_markdown()


def resnet_measured() -> str:
    """All runs of ResNet18, with GA over longer and shorter ends."""
    rows: list[list[str]] = []
    for entry in entries():
        config = entry.config
        if config.get("model") != "resnet18" or entry.kind != "run":
            continue
        cell, options = find_cell(entry.cells[0]), options_of(entry)
        printed = {metric: number.text for metric, number in cell.printed.items() if not options}
        name = f"{cell.method} ({options})" if options else cell.method
        rounds = f"{entry.rounds_run} of {entry.rounds_paper}"
        half = [GA for GA in entry.GA_by_round[-entry.rounds_run // 2 :] if GA is not None]
        GA = [value_of(entry, "GA", "best"), value_of(entry, "GA", LAST_TENTH), statistics.fmean(half)]
        PA = [value_of(entry, "PA", "last"), value_of(entry, "PA_balanced", "last")]
        split = f"{config['dataset']}, `{config['partition']}`, {config['sample']} of {config['clients']}"
        row = [split, name, rounds, printed.get("GA", "–"), *map(one_digit, GA)]
        rows.append([*row, printed.get("PA", "–"), *map(one_digit, PA)])
    head = ["data, split, clients of a round", "method", "rounds"]
    head += [
        "GA paper",
        "GA best",
        "GA, last tenth",
        "GA, last half",
        "PA paper",
        "PA last",
        "PA last, by class",
    ]
    return Grid(head, sorted(rows, key=itemgetter(0, 1))).to_markdown()


def one_digit(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def angles_measured() -> str:
    """FedAvg's classifier vectors at the last round, wherever clients lack classes: Figure 2, and more."""
    names = [f"angle_{group}_{place}" for group in ("missing", "existing") for place in ("clients", "server")]
    of_seeds: dict[tuple[str, ...], dict[int, list[float]]] = defaultdict(dict)
    for entry in entries():
        angles = [angle for name in names if (angle := entry.angles.get(name)) is not None]
        if entry.config["algorithm"]["name"] == "fedavg" and len(angles) == len(names):
            task = settings_hash(entry.settings() or {})
            key = (*place_of(entry.config, "`"), task, entry.data.fingerprint, entry.precision or "")
            of_seeds[key][entry.seed] = angles
    rows = []
    for (where, clients, *_), found in of_seeds.items():
        figures = [mean_std(spread(values), digits=1) for values in zip(*found.values(), strict=True)]
        rows.append([where, clients, str(len(found)), *figures])
    whose = [f"{group}, {place}" for group in ("missing", "existing") for place in ("clients", "server")]
    return Grid(["data, split, model", "clients of a round", "seeds", *whose], rows).to_markdown()


def class_means() -> str:
    """Angles between class means at the last round (Figures 3 and 5)."""
    names = ("class_mean_angle_existing_clients", "class_mean_angle_all_server")
    rows = []
    for entry in entries():
        angles = [entry.angles.get(name) for name in names]
        if None not in angles:
            method = entry.config["algorithm"]["name"]
            rows.append([*place_of(entry.config, "`"), method, *(f"{angle:.1f}" for angle in angles)])
    head = ["data, split, model", "clients of a round", "method", "existing, clients", "all, server"]
    return Grid(head, rows).to_markdown()
