"""A model to be asked: that of a run's or a site's folder, or of an exported file."""

from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np
import torch
from torch import Tensor

from fedgela.client_names import client_names, find_client
from fedgela.deploy.card import Card
from fedgela.deploy.exported import EXPORTED, Forward, read_exported
from fedgela.deploy.predictor import Predictor, Which, data_of, predictor_at_a_site, predictor_of
from fedgela.errors import UserError
from fedgela.flower.personal import personal_folder
from fedgela.saved.runs import Run, find_runs

BATCH = 256
NOT_FINETUNED = "this site, as it last trained: PA counts the global model fine-tuned"


@dataclass(frozen=True)
class Model:
    card: Card
    forward: Forward
    training_samples: Tensor | None = None  # of all clients, where they are at hand

    def probabilities(self, x: Tensor | np.ndarray) -> Tensor:
        """[n, C], of samples as they lie in the data: uint8 images [n, channels, height, width], float
        features [n, d], tokens [n, length]."""
        samples = self._fitting(torch.as_tensor(x))
        with torch.no_grad():
            parts = [self.forward(part) for part in torch.split(samples, BATCH)]
        answers = torch.cat(parts) if parts else torch.zeros(0, len(self.card.classes))
        if not answers.isfinite().all():  # a class would be made of NaN all the same
            raise UserError(
                f"the model of round {self.card.round} answers with NaN: its weights became infinite or NaN "
                "in training, or these samples are too far from those"
            )
        return answers

    def _fitting(self, x: Tensor) -> Tensor:
        """Images of other numbers, from 0 to 1 say, would be answered as nearly black ones."""
        spec = self.card.input
        kinds = {"image": "uint8", "features": "floating-point", "tokens": "integer"}
        fits = {
            "image": x.dtype == torch.uint8,
            "features": x.is_floating_point(),
            "tokens": not (x.is_floating_point() or x.is_complex() or x.dtype == torch.bool),
        }[spec.kind]
        if not fits or tuple(x.shape[1:]) != spec.shape:
            wanted = f"{kinds[spec.kind]} [n, {', '.join(map(str, spec.shape))}]"
            raise UserError(f"the model takes {wanted}, not {str(x.dtype)[6:]} {list(x.shape)}")
        if spec.kind == "features":
            x = x.float()
            if not x.isfinite().all():  # a class would be made of NaN all the same
                row, column = (~x.isfinite()).nonzero()[0].tolist()
                raise UserError(f"no finite number in float32: row {row}, column {column}")
        return x.long() if spec.kind == "tokens" else x


def load_model(path: str | Path, client: int | str | None = None, round: Which = "last") -> Model:
    """The model of a run's folder, global or a client's, that of a site's folder, or of a file that `fedgela
    export` wrote. A client is a number from 0, or a string: its name, its id in the data, or its number."""
    path = Path(path)
    if path.suffix not in EXPORTED or path.is_dir():
        return Model(*trained_model(path, client, round))
    if path.is_file() and (client is not None or round != "last"):
        raise UserError(
            f"{path}: an exported file holds one model; --client and --round are for a run's folder"
        )
    return Model(*read_exported(path))


def only_run(path: Path) -> Run:
    """The run in a folder; a UserError where there are several, as of several seeds or methods."""
    runs = find_runs([path], lambda text: None)
    if len(runs) > 1:
        listed = ", ".join(str(run.path) for run in runs[:3]) + (", ..." if len(runs) > 3 else "")
        raise UserError(f"{path}: holds {len(runs)} runs, give one of them: {listed}")
    return runs[0]


def files_of(path: Path) -> list[Path]:
    """What a model is read from: an exported file, a site's state, or a run's own files and its data."""
    if path.suffix in EXPORTED and not path.is_dir():
        return [path]
    at_a_site = personal_folder(path)
    return [at_a_site] if at_a_site is not None else only_run(path).files


def trained_model(
    path: Path, client: int | str | None, which: Which
) -> tuple[Card, Predictor, Tensor | None]:
    """Of a run's folder, or of a site's; and what it was trained on, which a site keeps to itself."""
    if which not in get_args(Which):  # as from Python: a round's number
        raise UserError(f"round: {' or '.join(get_args(Which))}, not {which!r}")
    at_a_site = personal_folder(path)
    if at_a_site is not None:
        if client is not None or which != "last":
            raise UserError(f"{path}: a site keeps its own last model only; leave --client and --round out")
        return _at_a_site(at_a_site)
    run = only_run(path)
    if run.sites is not None and client is not None:
        raise UserError(
            f"{run.path}: the personal models of a federation are kept by its sites alone: "
            "there 'fedgela predict SITE_FOLDER' asks them"
        )
    federation = data_of(run)
    number = find_client(client, run.experiment, federation) if isinstance(client, str) else client
    predictor, round = predictor_of(run, federation, number, which)
    data = federation.data
    known = client_names(run.experiment, federation)
    # a federation's server knows of a table's columns only whether others are the same
    at_sites = run.sites.agreed if run.sites is not None else None
    card = Card(
        method=run.experiment.algorithm.title,
        client=number,
        round=round,
        input=data.spec if at_sites is None else at_sites.sample,
        classes=data.class_names or tuple(str(c) for c in range(data.classes)),
        data=data.fingerprint,
        client_name=known[number] if known and number is not None else "",
        features=data.feature_names,
    )
    return card, predictor, data.x_train if run.sites is None else None


def _at_a_site(folder: Path) -> tuple[Card, Predictor, None]:
    predictor, algorithm, held = predictor_at_a_site(folder)
    card = Card(
        method=algorithm.title,
        client=held.site,
        round=held.round,
        input=held.sample,
        classes=held.classes,
        data=held.data,
        client_name="this site" if algorithm.PA_of == "local" else NOT_FINETUNED,
        features=held.features,
    )
    return card, predictor, None
