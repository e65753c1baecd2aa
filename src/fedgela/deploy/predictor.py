"""A trained model as one module: from samples as they lie in the data to probabilities of the classes."""

import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

from torch import Tensor, nn

from fedgela.algorithms import FedAvg
from fedgela.checkpoints import Checkpoint, FolderStore
from fedgela.config import Experiment, parse_experiment
from fedgela.data import Federation
from fedgela.data.dataset import Dataset
from fedgela.errors import UserError
from fedgela.flower.personal import Personal
from fedgela.flower.server_data import server_data
from fedgela.models import Net, State
from fedgela.models.norm import batchnorm_entries
from fedgela.nets import empty_net
from fedgela.runfolder import RunFolder
from fedgela.saved.federation import federation_of
from fedgela.saved.runs import Run
from fedgela.saved.sites import federation_at_the_server
from fedgela.server import PLAIN, Server

Which = Literal["last", "best"]
Predict = Callable[[Net, Tensor], Tensor]  # logits [B, C] of normalised inputs


class Predictor(nn.Module):
    """Takes x, [B, ...]: uint8 images with their channels first, float features, or tokens, as they lie in
    the data. Returns probabilities, [B, C]. The data's normalisation is part of it."""

    centre: Tensor
    scale: Tensor

    def __init__(self, net: Net, data: Dataset, predict: Predict) -> None:
        super().__init__()
        self.net = net
        self.predict = predict
        self.normalises = data.kind != "tokens"
        if self.normalises:
            centre, scale = data.centre_and_scale
            self.register_buffer("centre", centre)
            self.register_buffer("scale", scale)

    def forward(self, x: Tensor) -> Tensor:
        return self.logits(x).softmax(dim=1)

    def logits(self, x: Tensor) -> Tensor:
        return self.predict(self.net, (x.float() - self.centre) * self.scale if self.normalises else x.long())


def data_of(run: Run) -> Federation:
    """What the run was trained on; of a run on sites, what its server knows of it."""
    if run.sites is None:
        return federation_of(run.experiment)
    sites = replace(run.sites, test_data=None)  # which a model is not made of, and may be gone
    federation = federation_at_the_server(sites, run.records, run.experiment.image_size)
    if federation is None:
        raise UserError(f"{run.path}: this run has not begun")
    return federation


def predictor_of(run: Run, federation: Federation, client: int | None, which: Which) -> tuple[Predictor, int]:
    """The global model, or a client's personal one as PA counts it (but for FedProto by prototypes, whose
    last ones came after its clients were scored); and its round."""
    folder = RunFolder(run.path)
    checkpoint = folder.checkpoints.newest()
    if checkpoint is None:
        if damaged := len(folder.checkpoints.times()):
            raise UserError(f"{run.path}: of {damaged} checkpoint{'s' * (damaged > 1)} none is sound")
        raise UserError(f"{run.path}: there is no checkpoint; nothing was trained yet, or it is gone")
    if run.sites is None and checkpoint.data != federation.data.fingerprint:
        raise UserError(f"{run.path}: the data set is no longer what the run was trained on")
    if client is None:
        if run.sites is not None and run.experiment.batchnorm == "local":
            _check_no_batchnorm(run, federation.data)
        model, predict, round = _global(run, checkpoint, which)
    else:
        model, predict, round = _personal(run, federation, folder, checkpoint, client, which)
    return _predictor(run.experiment, federation.data, model, predict), round


def predictor_at_a_site(folder: Path) -> tuple[Predictor, FedAvg, Personal]:
    """The personal model that a site of a federation keeps, as of its last visit."""
    held = Personal.read(folder)
    experiment = parse_experiment(tomllib.loads(held.experiment), str(folder))
    data = server_data(held.sample, held.classes, held.normalisation, None, experiment.image_size)
    algorithm = experiment.algorithm
    predictor = _predictor(
        experiment,
        data,
        held.model(folder),
        lambda net, x: algorithm.predict_personal(net, x, held.vectors),
    )
    return predictor, algorithm, held


def _predictor(experiment: Experiment, data: Dataset, model: State, predict: Predict) -> Predictor:
    net = empty_net(experiment, data)
    net.in_bf16 = False  # where a model is used, fp32 costs little
    net.load_state_dict(model)
    return Predictor(net, data, predict).eval()


def _check_no_batchnorm(run: Run, data: Dataset) -> None:
    if batchnorm_entries(empty_net(run.experiment, data)):
        raise UserError(
            f"{run.path}: the global model has no BatchNorm that was ever trained, since it stays with the "
            "sites (batchnorm = local): there 'fedgela predict SITE_FOLDER' asks their personal models"
        )


def _global(run: Run, checkpoint: Checkpoint, which: Which) -> tuple[State, Predict, int]:
    algorithm, progress = run.experiment.algorithm, checkpoint.progress
    if algorithm.GA_of != "global":
        raise UserError(
            f"{algorithm.title} has no global model, only its clients': --client '#0' is the first"
        )
    if which == "last":
        return progress.global_model, algorithm.predict_global, progress.round
    if not progress.best_model:
        raise UserError(f"{run.path}: no round was evaluated, so that none is the best")
    return progress.best_model, algorithm.predict_global, progress.best_round


def _personal(
    run: Run, federation: Federation, folder: RunFolder, checkpoint: Checkpoint, client: int, which: Which
) -> tuple[State, Predict, int]:
    algorithm, progress = run.experiment.algorithm, checkpoint.progress
    if algorithm.PA_of == "global":
        raise UserError(f"{algorithm.title} has no personal models")
    if not 0 <= client < federation.clients:
        raise UserError(f"--client: there are clients 0 to {federation.clients - 1}, not {client}")
    store = FolderStore(folder.clients, checkpoint.clients)
    if algorithm.PA_of == "finetuned":
        return _finetuned(run, federation, store, checkpoint, client, which)
    if which == "best":
        raise UserError(f"{algorithm.title}'s clients keep their last model only: --round last")
    own = store.get(client)
    if own is None and run.experiment.batchnorm == "local":
        raise UserError(f"--client: {client} has not trained yet, and its BatchNorm does not travel")
    if own is None:  # the global model, with vectors of its own
        own = progress.server.model
    extra = progress.server.extra
    vectors = algorithm.client_vectors(federation.train_counts[client], extra) | extra
    round = int(progress.visited[client]) or progress.round
    return own, lambda net, x: algorithm.predict_personal(net, x, vectors), round


def _finetuned(
    run: Run, federation: Federation, store: FolderStore, checkpoint: Checkpoint, client: int, which: Which
) -> tuple[State, Predict, int]:
    """The global model fine-tuned on the client, as the run did it at its end without keeping the model."""
    model, _, round = _global(run, checkpoint, which)
    e = run.experiment.with_(device="cpu", engine="eager", precision="fp32")
    # of pretrained weights nothing is left, but the BatchNorm of a client that has none of its own yet
    if e.batchnorm != "local" or store.get(client) is not None:
        e = e.with_(pretrained=False, weights=None)
    server = Server(e, federation, store)
    norms = checkpoint.progress.best_norms if which == "best" else {}
    (outcome,) = server.finetune(model, round, [client], norms)
    return outcome.model, PLAIN.predict_global, round
