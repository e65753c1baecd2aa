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
from fedgela.data.dataset import printable
from fedgela.data.sources import as_path, data_directory
from fedgela.errors import UserError, first_line, some_of
from fedgela.models import default_model, default_projection, resolved_model
from fedgela.models.hub import is_hub_model
from fedgela.tensorboard import check_installed

NAMED = 10  # classes or features in a note

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


def noted(asked: Experiment, partition: str, federation: Federation) -> list[str]:
    """Notes of an inspection and of a run: what looks like a mistake in the data, settings without effect."""
    smallest = int(federation.train_counts.sum(dim=1).min())
    lines = list(federation.data.notes)
    if (asked.min_samples or 0) > smallest and not partition.startswith(("dirichlet", "iid")):
        lines.append(
            f"min_samples = {asked.min_samples} does nothing: it is for dirichlet, and {partition} leaves a "
            f"client with {smallest}"
        )
    if constant := federation.data.constant:
        lines.append(
            "features without effect, since they are the same in all training samples as far as float32 "
            f"tells: {some_of([printable(name) for name in constant], NAMED)}"
        )
    if in_vain := asked.algorithm.in_vain(federation.data.classes):
        lines.append(in_vain)
    groups, in_both = federation.data.groups
    if in_both:
        lines.append(
            f"{in_both:,} of {groups:,} groups have samples both in training and in test: on new groups "
            "accuracies may be lower"
        )
    return lines


def worth_knowing(asked: Experiment, resolved: Experiment, federation: Federation) -> list[str]:
    """Notes that a run begins with: what was asked for and has no effect with these clients or this model,
    and what looks like a mistake in the data."""
    model, partition = resolved.model, resolved.partition
    assert model is not None and partition is not None, "a resolved experiment has both"
    largest = int(federation.train_counts.sum(dim=1).max())
    lines = noted(asked, partition, federation)
    if not asked.pretrained and not is_hub_model(model):
        lines.append(f"pretrained = false does nothing: it is for models of the hub, and {model} is none")
    if resolved.server_average > 0 and resolved.algorithm.GA_of != "global":
        lines.append(f"server_average does nothing: {resolved.algorithm.title} has no global model")
    untested = int((federation.test_counts.sum(dim=1) == 0).sum())
    if untested:
        lines.append(f"{untested} of {federation.clients} clients have no test samples, and no part in PA")
    lines += classes_worth_knowing(federation)
    if largest < resolved.batch_size:
        lines.append(
            f"no client has a batch of {resolved.batch_size}, the largest has {largest}: each trains on one "
            "batch of all it has, one step an epoch"
        )
    return lines


def classes_worth_knowing(federation: Federation) -> list[str]:
    """Notes of classes without any sample, tested but not trained on, or trained on but not tested."""
    lines = []
    if federation.nowhere:
        names, classes = _named(federation, federation.nowhere), federation.data.classes
        if federation.data.class_names:
            lines.append(f"classes without any sample: {names}")
        else:
            highest = f"is the highest, {classes - 1}, a mistake?"
            lines.append(
                f"labels count from 0, so that there are {classes} classes, of which no sample has the label "
                f"{names}: {'do yours begin at 1?' if federation.nowhere == [0] else highest}"
            )
    if federation.only_in_test:
        names = _named(federation, federation.only_in_test)
        lines.append(f"classes that are tested, but that nobody has training samples of: {names}")
    if federation.never_tested:
        names = _named(federation, federation.never_tested)
        lines.append(f"classes without a test sample are never measured, neither by GA nor by PA: {names}")
    return lines


def _named(federation: Federation, classes: list[int]) -> str:
    names = federation.data.printable_classes
    return some_of([names[c] for c in classes], NAMED)


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
