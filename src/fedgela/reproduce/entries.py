"""A ledger's line from a finished run's folder."""

import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import fedgela
from fedgela.config import Experiment, plain_table
from fedgela.data import Federation
from fedgela.errors import UserError
from fedgela.evaluation import Record
from fedgela.paper import Cell, same_run
from fedgela.reproduce.code_version import commit
from fedgela.reproduce.ledger import BestAndLast, Code, Data, Entry, Kind
from fedgela.reproduce.settings import hash_of
from fedgela.result import device_name
from fedgela.runfolder import RunFolder
from fedgela.saved.federation import federation_of


def entry_of_run(path: Path, cell: Cell) -> Entry:
    folder = RunFolder(path)
    result, experiment = folder.result(), folder.experiment()
    if result is None:
        raise UserError(f"{path}: the run is not finished; 'fedgela resume {path}' goes on")
    records = folder.records()
    federation = federation_at_hand(experiment)
    angles = {name: value for name, value in _last_evaluated(records).items() if "angle_" in name}
    return Entry(
        **_common(cell, experiment),
        cells=tuple(other.id for other in same_run(cell) if _shows(other, angles)),
        data=_data(experiment, federation, result["data_fingerprint"]),
        device=result["device"],
        precision=experiment.precision,
        rounds_run=experiment.rounds,
        PA=_percent(result.get("PA")),
        GA=_percent(result.get("GA")),
        PA_balanced=_percent(result.get("PA_balanced")),
        GA_balanced=_percent(result.get("GA_balanced")),
        PA_finetuned=_percent(result.get("PA_finetuned")),
        GA_locals=_percent(result.get("GA_locals")),
        GA_by_round=tuple(_rounded(record.get("GA")) for record in records),
        angles={name: _rounded(value) for name, value in angles.items()},
        diverged_round=result["diverged_round"],
        wall_seconds=round(result["wall_seconds"], 1),
        images_per_second=_images_per_second(experiment, federation, records),
    )


def entry_of_measurement(
    cell: Cell, experiment: Experiment, federation: Federation, measured: Mapping[str, float], seconds: float
) -> Entry:
    """The line of a cell that is no training run: a method's burden, or who holds what. `experiment` is
    resolved."""
    kind: Kind = "burden" if cell.measures == "burden" else "partition"
    return Entry(
        **_common(cell, experiment),
        kind=kind,
        cells=(cell.id,),
        data=_data(experiment, federation, federation.data.fingerprint),
        device=device_name(torch.device(experiment.device)),
        precision=experiment.precision,
        rounds_run=0,
        measured={name: float(f"{value:.5g}") for name, value in measured.items()},
        wall_seconds=round(seconds, 1),
    )


def _shows(cell: Cell, angles: Mapping[str, Any]) -> bool:
    """Whether a run that recorded these angles has what the cell is about."""
    return cell.measures != "angles" or all(name in angles for name in cell.metrics)


def _common(cell: Cell, experiment: Experiment) -> dict[str, Any]:
    return {
        "seed": experiment.seed,
        "config_hash": hash_of(experiment),
        "config": _config(experiment),
        "code": Code(version=fedgela.__version__, commit=commit()),
        "rounds_paper": cell.config["rounds"] if cell.is_trained else 0,
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
    }


def _config(experiment: Experiment) -> dict[str, Any]:
    """Files by their names alone: where they lay on the machine of the run is nobody else's business."""
    config = plain_table(experiment) | {"dataset": Path(experiment.dataset).stem}
    config.pop("data_dir", None)
    return config | ({"weights": Path(experiment.weights).name} if experiment.weights else {})


def federation_at_hand(experiment: Experiment) -> Federation | None:
    """The run's federation, to count its samples; None where its data is not at hand."""
    try:
        return federation_of(experiment)
    except UserError:
        return None


def _data(experiment: Experiment, federation: Federation | None, fingerprint: str) -> Data:
    # data of the same name that has changed since is not what the run was made on
    same = federation is not None and federation.data.fingerprint == fingerprint
    data = federation.data if federation is not None and same else None
    return Data(
        name=Path(experiment.dataset).stem,
        fingerprint=fingerprint,
        train=None if data is None else len(data.y_train),
        test=None if data is None else len(data.y_test),
        shape=None if data is None else data.spec.shape,
    )


def _last_evaluated(records: Sequence[Record]) -> Record:
    return next((record for record in reversed(records) if "GA" in record), {})


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _percent(summary: Record | None) -> BestAndLast | None:
    if summary is None:
        return None
    return BestAndLast(
        best=_rounded(summary["best"]),
        last=_rounded(summary["last"]),
        best_round=summary["best_round"],
        last_round=summary["last_round"],
    )


def _images_per_second(
    experiment: Experiment, federation: Federation | None, records: Sequence[Record]
) -> float | None:
    seconds = sum(record["seconds"] for record in records)
    if federation is None or not seconds:
        return None
    sizes = federation.train.sizes
    images = sum(int(sizes[record["clients"]].sum()) for record in records if "clients" in record)
    return float(f"{experiment.epochs * images / seconds:.4g}")
