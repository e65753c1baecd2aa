"""Any config either runs or is refused with a UserError: nothing else may come out, whatever goes in."""

import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgela import runs
from fedgela.config import parse_experiment
from fedgela.errors import UserError
from fedgela.resolve import resolve
from fedgela.server import Server
from helpers import tiny_arrays

CONFIGS = 1200
PARTS = 4  # so that two workers share them

# For every key: values that may work, and values that may not. Work is kept small (few rounds, samples
# and threads), for it is the number of combinations that finds things.
GOOD: dict[str, list[Any]] = {
    "dataset": ["plain", "natural", "odd"],
    "partition": ["dirichlet:0.1", "dirichlet:1e-9", "classes:1", "classes:2", "classes:4", "iid", "natural"],
    "clients": [1, 2, 3, 5, 7, 12],
    "min_samples": [0, 1, 3],
    "validation": [0.0, 0.1, 0.5, 0.99],
    "model": ["tiny-cnn"],
    "projection": [1, 3, 4, 8, 20],
    "sample": [1, 2, 3],
    "rounds": [1, 2],
    "epochs": [1],
    "batch_size": [1, 7, 10, 100, 10**9],
    "optimizer": ["sgd", "adam", "adamw"],
    "lr": [1e-320, 1e-3, 0.1, 1, 1e4, 1e300],
    "momentum": [0.0, 0.9, 0.999999],
    "weight_decay": [0.0, 1e-4, 10.0, 1e300],
    "clip_norm": [0.0, 1e-300, 0.1, 1e300],
    "schedule": ["constant", "cosine", "exponential:0.5", "step:1:0.1", "exponential:1e-300"],
    "aggregation": ["mean", "median", "trimmed:0.1", "krum:1", "clipped"],
    "server_lr": [1e-9, 0.5, 1.0, 2, 1e300],
    "server_momentum": [0.0, 0.5, 0.99],
    "server_average": [0.0, 0.5, 0.99],
    "eval_every": [1, 2, 5, 10**9],
    "finetune_epochs": [0, 1],
    "checkpoint_every": [1, 2, 100],
    "seed": [0, 1, 2**63 - 1],
    "partition_seed": [0, 7, 2**63 - 1],
    "device": ["cpu", "auto"],
    "threads": [1],
    "algorithm": ["fedavg", "fedge", "fedla", "fedgela", "local", "centralised"],
}
BAD: dict[str, list[Any]] = {
    "dataset": ["", "nowhere", "no.npz", "\0", "../.."],
    "partition": [
        "",
        "classes:0",
        "classes:5",
        "classes:99999999999999999999",
        "dirichlet:-1",
        "dirichlet:nan",
        "dirichlet:1e999",
        "natural:3",
        "classes:1.5",
        "iid:",
        ":",
        "dirichlet",
    ],
    "clients": [0, -1, 61, 10**9, 10**30],
    "min_samples": [-1, 40, 10**30],
    "validation": [-0.1, 1.0, 1, 1e-12],
    "model": ["simple-cnn", "resnet18", "resnet50", "vit", ""],
    "projection": [0, -4, 65537],
    "sample": [0, 60, 10**9],
    "rounds": [0, -1, 10**10],
    "epochs": [0, -1, 2.0],
    "batch_size": [0, -5, 2**70],
    "optimizer": ["SGD", "lion", ""],
    "lr": [0, 0.0, -0.1, 10**400],
    "momentum": [1.0, -0.1],
    "weight_decay": [-1e-9],
    "clip_norm": [-1.0],
    "schedule": ["", "linear", "step:0:0.5", "step:1", "exponential:2", "exponential:nan", "cosine:"],
    "aggregation": ["", "krum", "krum:0", "krum:999999999999", "trimmed:0.5", "trimmed:-nan", "average"],
    "server_lr": [0.0, -1.0],
    "server_momentum": [1.0],
    "server_average": [1.0],
    "eval_every": [0],
    "finetune_epochs": [-1, 10**7],
    "checkpoint_every": [0],
    "seed": [-1, 2**63, 2**200],
    "partition_seed": [-1, 2**64],
    "device": ["cuda", "cuda:7", "cuda:-1", "tpu", "mps", "", "cpu:x", "vulkan"],
    "threads": [0, -1, 5000],
    "algorithm": ["", "fedgla", {"name": "none"}, {"name": 3}, {"E_V": 1}, {"name": "fedavg", "E_W": 1.0}],
    "ronds": [3],
    "E_W": [1.0],
}
FEDGELA: dict[str, list[Any]] = {
    "name": ["fedgela", "fedgela", "fedge", "fedla"],
    "etf": [True, False],
    "adapt": [True, False],
    "E_W": [1.0, 100, 1e-300, 1e300],
    "logit_scale": [1.0, 8, 1e150],
    "phi": [
        "power:0",
        "power:0.5",
        "power:1",
        "power:10",
        "exp",
        "even",
        "paper-linear",
        "paper-sqrt",
        "paper-exp",
    ],
    "phi_floor": [0.0, 0.1, 1e300],
    "feature_norm": ["l2", "batchnorm", "none"],
    "softmax": ["all", "present"],
    "personal_prediction": ["all", "present"],
}
BAD_FEDGELA: dict[str, list[Any]] = {
    "etf": ["yes", 1],
    "E_W": [0.0, -1, float("nan"), float("inf"), "1"],
    "logit_scale": [0, -2.0],
    "phi": ["power", "power:-1", "power:11", "power:nan", "log", ""],
    "phi_floor": [-0.1],
    "feature_norm": ["L2", ""],
    "softmax": ["none"],
    "personal_prediction": [True],
    "phy": ["exp"],
}
NONSENSE: list[Any] = [
    None,
    True,
    "x",
    "",
    -1,
    0,
    3,
    1.5,
    float("nan"),
    float("inf"),
    [],
    [1],
    {},
    {"a": 1},
    "\0",
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Three data sets: plain; with natural clients, one without test samples; and one with a class that
    has no training sample, another with a single one, in two channels of odd shape."""
    folder = tmp_path_factory.mktemp("data")
    plain = tiny_arrays(train=40, test=20)
    natural = plain | {"client_train": np.arange(40) % 5 * 10 - 7, "client_test": np.arange(20) % 4 * 10 - 7}
    odd = {key: values[:15] for key, values in tiny_arrays().items()}
    for part in ("train", "test"):
        odd[f"x_{part}"] = np.stack([odd[f"x_{part}"][:, :5]] * 2, axis=-1)
    odd["y_train"] = np.array([0] * 10 + [1] * 4 + [4])
    found = {}
    for name, arrays in (("plain", plain), ("natural", natural), ("odd", odd)):
        np.savez(folder / f"{name}.npz", **arrays)
        found[name] = str(folder / f"{name}.npz")
    return found


def random_config(rng: random.Random, data: dict[str, str]) -> dict[str, Any]:
    """Mostly sound configs with none to a few mistakes, so that many get far before they fail."""
    config: dict[str, Any] = {"rounds": 1, "epochs": 1, "threads": 1, "finetune_epochs": 1}
    config |= {"dataset": "plain", "min_samples": 0, "projection": 8, "batch_size": 10, "clients": 4}
    for key in rng.sample(sorted(GOOD), rng.randrange(len(GOOD))):
        config[key] = rng.choice(GOOD[key])
    if rng.random() < 0.5:
        table: dict[str, Any] = {}
        for key in rng.sample(sorted(FEDGELA), rng.randrange(len(FEDGELA))):
            table[key] = rng.choice(FEDGELA[key])
        if rng.random() < 0.7:
            table.pop("logit_scale", None)
        if rng.random() < 0.1:
            key = rng.choice(sorted(BAD_FEDGELA))
            table[key] = rng.choice(BAD_FEDGELA[key])
        config["algorithm"] = table
    for _ in range(rng.choice([0, 0, 0, 0, 1, 1, 2])):
        key = rng.choice(sorted(BAD))
        config[key] = rng.choice(BAD[key])
    if rng.random() < 0.1:
        config[rng.choice(sorted(GOOD))] = rng.choice(NONSENSE)
    name = config.get("dataset")
    if isinstance(name, str) and name in data:
        config["dataset"] = data[name]
    # a value that nonsense has made valid but long
    for key, most in (("rounds", 2), ("epochs", 1), ("finetune_epochs", 1), ("threads", 1)):
        if isinstance(config.get(key), int) and most < config[key] <= 10**6:
            config[key] = most
    if config.get("rounds") is None:
        config["rounds"] = 1
    return config


def attempt(config: dict[str, Any], folder: Path | None) -> str:
    """'runs' or 'refused'; anything else is raised."""
    try:
        experiment = parse_experiment(config)
        if experiment.rounds > 2 or experiment.epochs > 1 or experiment.finetune_epochs > 1:
            return "too long"  # a default that nonsense (None) has brought back
        if folder is not None:
            runs.run(experiment, folder)
            return "runs"
        server = Server(*resolve(experiment))
        progress = server.begin()
        for _ in range(experiment.rounds):
            server.step(progress)
        server.finish(progress)
    except UserError as error:
        text = str(error)
        assert len(text.strip()) > 0
        assert len(text.splitlines()) <= 2, text
        return "refused"
    return "runs"


@pytest.mark.parametrize("part", range(PARTS))
def test_any_config_runs_or_is_refused(data: dict[str, str], tmp_path: Path, part: int) -> None:
    rng = random.Random(1000 + part)
    ends: Counter[str] = Counter()
    for i in range(CONFIGS // PARTS):
        config = random_config(rng, data)
        # every tenth goes all the way through a folder, checkpoints and JSON included
        folder = tmp_path / str(i) if i % 10 == 0 else None
        try:
            ends[attempt(config, folder)] += 1
        except Exception as error:
            raise AssertionError(f"part {part}, config {i}: {config}") from error
    # the fuzz is worth something only while both ends are reached often
    assert ends["runs"] > CONFIGS // PARTS / 10, ends
    assert ends["refused"] > CONFIGS // PARTS / 5, ends
    assert ends["too long"] < CONFIGS // PARTS / 20, ends


# Found by hand; each is to be refused in words.
REFUSED = {
    "a length beyond floats": {"algorithm": {"name": "fedgela", "logit_scale": 1e200}},
    "a device without storage": {"device": "meta"},
    "a device of a module that is not there": {"device": "hpu"},
    "a name too long for a file": {"dataset": "a" * 5000},
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_once_slipped_through_is_refused(data: dict[str, str], case: str) -> None:
    config = {"dataset": data["plain"], "rounds": 1, "epochs": 1, "min_samples": 0, "clients": 2}
    assert attempt(config | {"finetune_epochs": 0, "projection": 8} | REFUSED[case], None) == "refused"
