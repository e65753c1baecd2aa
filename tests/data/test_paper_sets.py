"""Every data set of the paper with its model of the paper: two rounds on tiny cuts in the hub's form, for a
generic, a personal and both kinds of methods in one."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgela.config import parse_experiment
from fedgela.data.catalogue import CATALOGUE
from fedgela.data.text import LETTERS
from fedgela.resolve import resolve
from fedgela.server import Server

datasets = pytest.importorskip("datasets", reason="`datasets` reads the hub: pip install 'fedgela[hub]'")
pytest.importorskip("PIL", reason="images are read with Pillow: pip install 'fedgela[hub]'")
from local_hub import picture, publish  # noqa: E402

TRAIN, TEST = 8, 4  # a batch for each of two clients: these nets are large


def images(name: str, sample: str, label: str, classes: int, client: str | None, size: int) -> Any:
    def part(n: int, seed: int) -> dict[str, list[Any]]:
        columns = {
            sample: [picture(seed + i, (size, size)) for i in range(n)],
            label: [i % 3 for i in range(n)],
        }
        return columns | ({client: [i % 2 for i in range(n)]} if client else {})

    features = {sample: datasets.Image(), label: datasets.ClassLabel(num_classes=classes)}
    if client:
        features[client] = datasets.Value("int64")
    return datasets.Features(features), part(TRAIN, 0), part(TEST, 1000)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All of them on a hub of their own, fetched into one data directory when first asked for."""
    root = tmp_path_factory.mktemp("paper")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDGELA_HUB", str(root / "hub"))
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", root / "cache")
        for name, classes, size in (
            ("cifar10", 10, 32),
            ("cifar100", 100, 32),
            ("svhn", 10, 32),
            ("fed-isic2019", 8, 90),
            ("femnist", 62, 28),
        ):
            source = CATALOGUE[name]
            features, train, test = images(name, source.sample, source.label, classes, source.client, size)
            config = source.config or "default"
            splits = {"train": train} if name == "femnist" else {"train": train, "test": test}
            publish(root / "hub" / source.hub, config, features, **splits)
        rng = np.random.default_rng(0)
        lines = ["".join(rng.choice(list(LETTERS), 80)) for _ in range(40)]
        speech = {
            "character_id": [f"ROLE_{i // 20}" for i in range(40)],
            "x": lines,
            "y": [line[0] for line in lines],
        }
        publish(root / "hub" / CATALOGUE["shakespeare"].hub, "default", None, train=speech)
        from fedgela.data import load_dataset

        for name in CATALOGUE:
            load_dataset(name, str(root / "data"))
    return root / "data"


@pytest.mark.parametrize("name", CATALOGUE)
def test_two_rounds_of_three_methods(name: str, data_dir: Path) -> None:
    source = CATALOGUE[name]
    if source.model == "efficientnet-b0":
        pytest.importorskip("transformers", reason="EfficientNet comes with fedgela[hub]")
    for algorithm in ("fedavg", "fedgela", "fedrep"):
        table = {
            "dataset": name,
            "data_dir": str(data_dir),
            "partition": "natural" if source.client else "iid",
            "clients": 2,
            "min_samples": 1,
            "batch_size": 4,
            "rounds": 2,
            "epochs": 1,
            "finetune_epochs": 0,
            "threads": 1,
            "pretrained": False,
            "algorithm": algorithm,
        }
        experiment, federation = resolve(parse_experiment(table))
        assert experiment.model is not None
        assert experiment.model.endswith(source.model)  # the paper's is the default
        server = Server(experiment, federation)
        progress = server.begin()
        before = {key: value.clone() for key, value in progress.server.model.items()}
        records = [server.step(progress) for _ in range(2)]
        assert all(record["train_loss"] is not None for record in records)
        assert 0 <= records[-1]["GA"] <= 100
        moved = [k for k, v in progress.server.model.items() if not v.equal(before[k])]
        assert moved  # something was learnt and averaged
