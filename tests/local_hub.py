"""Repositories on disk with the layout and the columns of the Hugging Face hub's own."""

from pathlib import Path
from typing import Any

import datasets
import numpy as np
from PIL import Image

Columns = dict[str, list[Any]]


def publish(repository: Path, config: str, features: Any, **splits: Columns) -> None:
    """A repository as `push_to_hub` leaves it: parquet files, and a card that says which split they are."""
    folder = repository / config
    folder.mkdir(parents=True)
    card = f"---\nconfigs:\n- config_name: {config}\n  data_files:\n"
    for name, columns in splits.items():
        datasets.Dataset.from_dict(columns, features=features).to_parquet(
            str(folder / f"{name}-00000-of-00001.parquet")
        )
        card += f"  - split: {name}\n    path: {config}/{name}-*\n"
    (repository / "README.md").write_text(card + "---\n")


def picture(seed: int, size: tuple[int, int] = (32, 32), grey: bool = False) -> Any:
    pixels = np.random.default_rng(seed).integers(0, 256, size[::-1] if grey else (*size[::-1], 3), np.uint8)
    return Image.fromarray(pixels)


def labelled(sample: str, label: str, names: list[str]) -> Any:
    return datasets.Features({sample: datasets.Image(), label: datasets.ClassLabel(names=names)})
