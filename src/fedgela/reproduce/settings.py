"""What of an experiment decides its result: two runs with the same settings and seed are one and the same."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedgela.algorithms import FedGELA, name_of
from fedgela.config import Experiment, plain_table
from fedgela.data.catalogue import known
from fedgela.runs import HARDWARE

# where and how a run is computed, what is measured beside it, and the seed, which is told apart from the rest
LEFT_OUT = {*HARDWARE, "precision", "track", "seed"}

# the value by which a later version's key is off, where that is a word
OFF = {"aggregation": "mean"}

# what FedGELA is called where `etf` and `adapt` make it an ablation
ABLATIONS = {(True, False): "fedge", (False, True): "fedla"}

Settings = dict[str, Any]


@dataclass(frozen=True)
class Difference:
    key: str
    wanted: Any
    found: Any


def settings_of(experiment: Experiment) -> Settings:
    """Every key that decides the result, with what `resolve` would fill in without looking at the data."""
    settings = {key: value for key, value in plain_table(experiment).items() if key not in LEFT_OUT}
    # a file of a known data set is that data set, wherever it lies
    settings["dataset"] = Path(experiment.dataset).stem.replace("_", "-")
    settings["algorithm"] = {**settings["algorithm"], "name": method_of(experiment)}
    if experiment.weights is not None:
        settings["weights"] = Path(experiment.weights).name
    settings.setdefault("min_samples", experiment.batch_size)
    if settings.get("partition_seed") == experiment.seed:
        del settings["partition_seed"]
    elif "partition_seed" in settings:
        settings["partition_seed"] = str(settings["partition_seed"])  # 0 is a split too, and not "off"
    if experiment.clients is not None:
        settings.setdefault("sample", experiment.clients)
    source = known(settings["dataset"])
    if source is not None:
        settings.setdefault("augment", source.augment)
        settings.setdefault("model", source.model)
        if source.kind == "image":
            settings.setdefault("image_size", source.size)
    return settings


def method_of(experiment: Experiment) -> str:
    algorithm = experiment.algorithm
    if type(algorithm) is FedGELA:
        return ABLATIONS.get((algorithm.etf, algorithm.adapt), algorithm.name)
    return name_of(algorithm)


def settings_hash(settings: Settings) -> str:
    """A key that is off counts as one that is not there, so that a later version's new key, off by default,
    leaves the names of run folders as they are."""
    text = json.dumps(_without_off(settings), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def hash_of(experiment: Experiment) -> str:
    return settings_hash(settings_of(experiment))


def _without_off(table: Mapping[str, Any]) -> dict[str, Any]:
    shorter = {
        key: _without_off(value) if isinstance(value, Mapping) else value for key, value in table.items()
    }
    return {key: value for key, value in shorter.items() if value and value != OFF.get(key)}


def differences(wanted: Settings, found: Settings) -> list[Difference]:
    """Keys with different values, those of the algorithm dotted; in the order of the experiment's keys."""
    ours, theirs = _flat(found), _flat(wanted)
    return [
        Difference(key, theirs.get(key), ours.get(key))
        for key in dict.fromkeys([*theirs, *ours])
        if (theirs.get(key) or None) != (ours.get(key) or None)
    ]


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat
