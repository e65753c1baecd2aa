"""Fetching a data set of the catalogue from the Hugging Face hub, as the arrays of its .npz."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedgela.data.catalogue import Source
from fedgela.data.images import decode
from fedgela.data.split import every_fifth
from fedgela.data.text import LENGTH
from fedgela.errors import first_line
from fedgela.randomness import numpy_generator
from fedgela.reachable import why_unreachable

BATCH = 1000
Arrays = dict[str, np.ndarray]


class HubError(Exception):
    """The data set could not be fetched; says why in one line."""


def fetch(source: Source, size: int) -> Arrays:
    """The arrays of a data set, its images as squares of `size` pixels."""
    table = _table(source)
    wanted = [source.sample, source.label, *([source.client] if source.client else [])]
    for part in table.values():
        missing = [column for column in wanted if column not in part.column_names]
        if missing:
            raise HubError(f"its columns are {', '.join(part.column_names)}, without {', '.join(missing)}")
    return _passages(table, source) if source.kind == "tokens" else _images(table, source, size)


def _table(source: Source) -> Any:
    """The data set as `datasets` gives it: a table for each split."""
    try:
        import datasets
    except ImportError:
        raise HubError("that takes pip install 'fedgela[hub]'") from None
    # FEDGELA_HUB: a folder of copies of hub repositories, ORGANISATION/NAME, for use without a network
    mirror = os.environ.get("FEDGELA_HUB")
    if mirror is not None and not (Path(mirror) / source.hub).is_dir():
        raise HubError(f"FEDGELA_HUB holds no folder {source.hub}")
    if mirror is None:
        _check_reachable()
    place = source.hub if mirror is None else str(Path(mirror) / source.hub)
    try:
        return datasets.load_dataset(place, source.config)
    except Exception as error:  # it passes on what any of a dozen libraries below it raises
        raise HubError(f"{type(error).__name__}: {first_line(error)}") from error


def _check_reachable() -> None:
    offline = why_unreachable()
    # if the user has set HF_HUB_OFFLINE, the data set may still be in the libraries' cache
    if offline is not None and "HF_HUB_OFFLINE" not in offline:
        raise HubError(offline)


def _batches(part: Any, what: str) -> Iterator[dict[str, list[Any]]]:
    from datasets.utils import tqdm

    with tqdm(total=len(part), desc=f"Converting {what}", unit=" examples") as bar:
        for batch in part.iter(BATCH):
            yield batch
            bar.update(len(next(iter(batch.values()))))


# -- images --------------------------------------------------------------------------------------------


def _images(table: Any, source: Source, size: int) -> Arrays:
    """x, y and client of train and test. Without a test split every fifth sample of each client, or else of
    each class, is for testing."""
    parts = {
        name: _image_part(table[name], source, name, size) for name in ("train", "test") if name in table
    }
    if "train" not in parts:
        raise HubError(f"it has no split 'train', only {', '.join(table)}")
    ids = [part["client"] for part in parts.values() if "client" in part]
    client_names: np.ndarray | None = None
    if ids and ids[0].dtype.kind == "U":  # clients have names: they are numbered in the order of these
        client_names = np.unique(np.concatenate(ids))
        for part in parts.values():
            part["client"] = np.searchsorted(client_names, part["client"])
    if "test" not in parts:
        whole = parts["train"]
        chance = numpy_generator(0, "test samples", source.hub).random(len(whole["y"]))
        test = every_fifth(whole["client"], then=chance) if source.client else every_fifth(whole["y"])
        parts = {
            "train": {key: values[~test] for key, values in whole.items()},
            "test": {key: values[test] for key, values in whole.items()},
        }
    arrays = {f"{key}_{name}": values for name, part in parts.items() for key, values in part.items()}
    if client_names is not None:
        arrays["client_names"] = client_names
    names = getattr(table["train"].features[source.label], "names", None)
    if names:
        arrays["class_names"] = np.array(names)
    return arrays


def _image_part(part: Any, source: Source, name: str, size: int) -> Arrays:
    import datasets

    part = part.cast_column(source.sample, datasets.Image(decode=False))
    pieces = []
    for batch in _batches(part, f"{source.hub} {name}"):
        encoded = [image["bytes"] or Path(image["path"]) for image in batch[source.sample]]
        decoded = decode(encoded, size)
        if decoded.failed:
            raise HubError(
                f"an image of its split {name} cannot be read: {next(iter(decoded.failed.values()))}"
            )
        pieces.append(decoded.x)
    if not pieces:
        raise HubError(f"its split {name} is empty")
    if len({piece.ndim for piece in pieces}) > 1:  # grey batches among coloured ones
        pieces = [np.repeat(p[..., None], 3, axis=3) if p.ndim == 3 else p for p in pieces]
    arrays = {"x": np.concatenate(pieces), "y": np.asarray(part[source.label][:], dtype=np.int64)}
    if source.client:
        arrays["client"] = np.asarray(part[source.client][:])
    return arrays


# -- text ----------------------------------------------------------------------------------------------


def _passages(table: Any, source: Source) -> Arrays:
    """The passages of text that the rows are windows of. A row has 80 characters and the next one; where it
    continues the row before it by one character, both are of the same passage."""
    assert source.client is not None
    text: dict[str, list[bytearray]] = {}
    for name in table:
        for batch in _batches(table[name], f"{source.hub} {name}"):
            rows = zip(batch[source.client], batch[source.sample], batch[source.label], strict=True)
            for role, x, y in rows:
                window = f"{x}{y}".encode("ascii", errors="replace")
                if len(x) != LENGTH or len(y) != 1:
                    raise HubError(f"a row of role {role} has not {LENGTH} characters and one more")
                passages = text.setdefault(str(role), [])
                if passages and passages[-1].endswith(window[:-1]):
                    passages[-1] += window[-1:]
                else:
                    passages.append(bytearray(window))
    if not text:
        raise HubError("it is empty")
    roles = [role for role, passages in text.items() for _ in passages]
    pieces = [bytes(passage) for passages in text.values() for passage in passages]
    return {
        "text": np.frombuffer(b"".join(pieces), dtype=np.uint8),
        "offset": np.cumsum([0, *map(len, pieces)]),
        "role": np.array(roles),
    }
