"""What saved models answer: predictions and last-layer features of a run's global and client models."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fedgela.algorithms import mean_statistics
from fedgela.algorithms.fedgela import Head
from fedgela.config import READING, SPLITTING, Experiment
from fedgela.data import Federation
from fedgela.errors import UserError, first_line
from fedgela.files import read_tensors
from fedgela.models import Net, State
from fedgela.nets import empty_net
from fedgela.runfolder import RunFolder
from fedgela.saved.federation import federation_of
from fedgela.saved.runs import Note, Run
from fedgela.saved.sites import Sites, federation_at_the_server

BATCH = 500
SMALL = 1_000_000  # parameters of a net that answers thousands of samples in a second or two
SAMPLES_SMALL, SAMPLES_LARGE = 10_000, 1_000


@dataclass(frozen=True)
class Answers:
    """Of n test samples: labels [n], predictions [n], last-layer features h [n, d], the classifier [C, d]."""

    labels: Tensor
    predicted: Tensor
    h: Tensor
    W: Tensor
    of: int  # test samples there are


class Federations:
    """The runs' data, each loaded once; nothing is fetched for a report."""

    def __init__(self, note: Note) -> None:
        self._note = note
        self._held: dict[tuple[object, ...], Federation | None] = {}

    def of(self, run: Run) -> Federation | None:
        """None, with a note, where the data is not here, or not what the run was trained on. Of a run on
        sites it is what the server has."""
        e = run.experiment
        if run.sites is not None:
            return self._at_the_server(run, run.sites)
        key = tuple(getattr(e, name) for name in (*READING, *SPLITTING))
        if key not in self._held:
            self._held[key] = self._load(e)
        federation = self._held[key]
        trained_on = run.data_fingerprint
        if federation and trained_on and trained_on != federation.data.fingerprint:
            self._note(
                f"{run.path}: the data set is not what the run was trained on: no pictures of its models"
            )
            return None
        return federation

    def _at_the_server(self, run: Run, sites: Sites) -> Federation | None:
        try:
            return federation_at_the_server(sites, run.records, run.experiment.image_size)
        except (UserError, OSError) as error:
            self._note(f"{first_line(error)}: no pictures of models")
            return None

    def _load(self, e: Experiment) -> Federation | None:
        try:
            return federation_of(e)
        except (UserError, OSError) as error:
            self._note(f"{first_line(error)}: no pictures of who holds what, and none of models")
            return None


def global_file(run: Run) -> Path | None:
    """The global model of the last round; None where the run has none (yet)."""
    return next((run.path / "models").glob("global-last.*.safetensors"), None)


def client_files(run: Run) -> dict[int, Path]:
    """The last model of every client that keeps one."""
    latest: dict[int, Path] = {}
    for path in sorted((run.path / "clients").glob("*.round-*.safetensors")):
        if path.name.split(".")[0].isdigit():
            latest[int(path.name.split(".")[0])] = path  # sorted by client, then round
    return latest


def chosen_client(run: Run, federation: Federation) -> int | None:
    """Of the clients with a model and at least two classes to test on, the one with most test samples."""
    counts = federation.test_counts
    able = [k for k in client_files(run) if k < len(counts) and int((counts[k] > 0).sum()) > 1]
    return max(able, key=lambda k: (int(counts[k].sum()), -k), default=None)


def ask_global(run: Run, federation: Federation) -> Answers:
    """The global model on the union of the test sets, or on an evenly spaced part of it."""
    path = global_file(run)
    assert path is not None
    net = _loaded(run, federation, path)
    total = len(federation.data.y_test)
    samples = _part(torch.arange(total), _limit(net))
    algorithm = run.experiment.algorithm
    logits, h = _answers(net, samples, federation, lambda x: algorithm.predict_global(net, x))
    W = algorithm.classifier(net.state_dict(), {}).detach()
    return Answers(federation.data.y_test[samples], logits.argmax(dim=1), h, W, total)


def ask_client(run: Run, federation: Federation, client: int) -> Answers:
    """A client's own model on its own test set."""
    net = _loaded(run, federation, client_files(run)[client])
    samples = _part(federation.test[client], _limit(net))
    algorithm = run.experiment.algorithm
    extra = _server_extra(run, federation)
    vectors = algorithm.client_vectors(federation.train_counts[client], extra)
    logits, h = _answers(
        net, samples, federation, lambda x: algorithm.predict_personal(net, x, vectors | extra)
    )
    W = algorithm.classifier(net.state_dict(), vectors).detach()
    total = len(federation.test[client])
    return Answers(federation.data.y_test[samples], logits.argmax(dim=1), h, W, total)


def _server_extra(run: Run, federation: Federation) -> State:
    """What the server had beside the model: prototypes, means of what clients share."""
    checkpoint = RunFolder(run.path).checkpoints.newest()
    if checkpoint is None:
        return mean_statistics(run.experiment.algorithm, federation.train_counts)
    return checkpoint.progress.server.extra


def _limit(net: Net) -> int:
    return SAMPLES_SMALL if sum(p.numel() for p in net.parameters()) <= SMALL else SAMPLES_LARGE


def _part(samples: Tensor, limit: int) -> Tensor:
    if len(samples) <= limit:
        return samples
    return samples[torch.linspace(0, len(samples) - 1, limit).round().long()]


def _loaded(run: Run, federation: Federation, path: Path) -> Net:
    net = empty_net(run.experiment, federation.data)
    try:
        net.load_state_dict(read_tensors(path)[0])
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise UserError(f"{path}: cannot be read as this run's model ({first_line(error)})") from None
    return net


@torch.no_grad()
def _answers(
    net: Net, samples: Tensor, federation: Federation, predict: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    data = federation.data
    logits, features = [], []
    for part in torch.split(samples, BATCH):
        x = data.inputs(data.x_test[part])
        z = net.features(x)
        # what the classifier is multiplied with: FedGELA's features are normalised first
        features.append(net.head.norm(z) if isinstance(net.head, Head) else z)
        logits.append(predict(x))
    return torch.cat(logits), torch.cat(features)
