"""From the experiment that a user asks for to the one that is run: data is loaded and split, and every choice
that was left open is made."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch

from fedgela.config import READING, Experiment
from fedgela.data import Dataset, Federation, build_federation, load_dataset
from fedgela.data.catalogue import known
from fedgela.data.sources import as_path, data_directory
from fedgela.errors import UserError, first_line
from fedgela.models import default_model, default_projection, resolved_model
from fedgela.tensorboard import check_installed

_kept: ContextVar[dict[tuple[Any, ...], Dataset] | None] = ContextVar(
    "the data set that is kept", default=None
)


@contextlib.contextmanager
def data_read_once() -> Iterator[None]:
    """Within it a data set is read only once for several runs on it: decoding a folder of images may take
    longer than training."""
    if _kept.get() is not None:
        yield
        return
    token = _kept.set({})
    try:
        yield
    finally:
        _kept.reset(token)


def _data_of(e: Experiment) -> Dataset:
    how = {key: getattr(e, key) for key in READING if key != "dataset"}
    kept = _kept.get()
    if kept is None:
        return load_dataset(e.dataset, **how)
    path = as_path(e.dataset, e.data_dir)
    key = (e.dataset if path is None else str(path.resolve()), *how.values())  # resumed runs have whole paths
    if key not in kept:
        kept.clear()  # one data set at a time: they are large
        kept[key] = load_dataset(e.dataset, **how)
    return kept[key]


def resolve(experiment: Experiment) -> tuple[Experiment, Federation]:
    """The experiment with all choices made, but for the engine's (training/choice.py), and the federation."""
    device = device_of(experiment.device)
    if experiment.tensorboard:
        check_installed()
    data = _data_of(experiment)
    partition_seed = experiment.seed if experiment.partition_seed is None else experiment.partition_seed
    min_samples = experiment.batch_size if experiment.min_samples is None else experiment.min_samples
    partition = experiment.partition or ("dirichlet:0.1" if data.client_train is None else "natural")
    federation = build_federation(
        data,
        partition,
        experiment.clients,
        min_samples,
        partition_seed,
        experiment.validation,
    )
    source = known(experiment.dataset)
    paper_model = source.model if source is not None else None
    model = resolved_model(experiment.model or paper_model or default_model(data.spec))
    resolved = located(experiment).with_(
        partition=partition,
        clients=federation.clients,
        sample=experiment.sample or federation.clients,
        min_samples=min_samples,
        model=model,
        projection=experiment.projection or default_projection(data.classes),
        partition_seed=partition_seed,
        device=str(device),
    )
    return resolved, federation


def located(experiment: Experiment) -> Experiment:
    """The experiment with absolute paths, so that it can be saved and used from any other folder."""
    paths = {}
    path = as_path(experiment.dataset, experiment.data_dir)
    if path is not None:
        paths["dataset"] = str(path.resolve())
    if experiment.data_dir is not None:
        paths["data_dir"] = str(data_directory(experiment.data_dir).resolve())
    if experiment.weights is not None:
        paths["weights"] = str(Path(experiment.weights).expanduser().resolve())
    if experiment.model is not None:
        paths["model"] = resolved_model(experiment.model)
    return experiment.with_(**paths)


def device_of(name: str) -> torch.device:
    """The device of this name, which must exist; `auto` is a GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError, ImportError) as error:
        raise UserError(f"device: {name!r} cannot be used here ({first_line(error)})") from None
    return device
