"""What `track` records beside the accuracies, at evaluated rounds: angles between class means, neural
collapse, drift, the cost of adaptation, gradient norms.

Features are those of one sample of the training data, with equally many of every class, which is drawn once
for the run. It is given to the global model, and to every local model before aggregation: so a local model is
also measured on the classes that its client lacks, which only a simulation can do.
"""

import copy
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedgela.algorithms import FedAvg
from fedgela.algorithms.fedavg import cross_entropy
from fedgela.algorithms.fedgela import Head
from fedgela.config import Experiment
from fedgela.data import Federation
from fedgela.evaluation import Record, finite
from fedgela.measures import Collapse, adaptation_cost, class_mean_angles, drift, neural_collapse, state_norm
from fedgela.models import Net, State, on_device
from fedgela.randomness import generator
from fedgela.training import Engine

MOST, FEWEST = 100, 5  # samples of a class
SHARE = 0.01  # computing features may take this share of the work of a round's local training
PASSES = 3  # work of a training step in forward passes: the backward pass costs two
GRADIENT_BATCH = 500

# what is measured of local models, each as the mean over the round's clients
OF_CLIENTS = {
    "angles": (
        *(f"class_mean_angle_{group}_clients" for group in ("existing", "missing", "all")),
        "drift",
        "adaptation_cost",
    ),
    "collapse": tuple(f"{field.name}_clients" for field in fields(Collapse)),
}


class Tracker:
    """Measures the models of a run, without changing them."""

    def __init__(
        self,
        experiment: Experiment,
        net: Net,
        federation: Federation,
        engine: Engine,
        stays: Collection[str],
    ) -> None:
        """`stays` are entries that stay with a client whatever the method: local BatchNorm."""
        self.track = frozenset(experiment.track)
        self.algorithm: FedAvg = experiment.algorithm
        self.data = federation.data
        self.engine = engine
        self.stays = frozenset(stays)
        labels = federation.data.y_train.cpu()
        self.samples = balanced(labels, samples_a_class(experiment, federation), experiment.seed)
        self.labels = labels[self.samples]
        # copies, so that neither mode nor weights of the engine's own net are touched
        self.norm = copy.deepcopy(net.head.norm).eval() if isinstance(net.head, Head) else None
        self.net = copy.deepcopy(net).eval() if "gradients" in self.track else None

    # -- a client ----------------------------------------------------------------------------------

    @property
    def client_names(self) -> tuple[str, ...]:
        """The names of the numbers that `client` gives."""
        return tuple(name for group, names in OF_CLIENTS.items() if group in self.track for name in names)

    def client(self, local: State, vectors: State, present: Tensor, started_from: State) -> Tensor:
        """Measure a local model after training: numbers [M], named by `client_names`, NaN where there is
        none.

        `vectors` are the client's (see FedAvg.client_vectors), `present` [C] is a mask of its classes, and
        `started_from` the global model.
        """
        vectors = on_device(vectors, next(iter(local.values())).device)
        found: dict[str, Tensor] = {}
        numbers: Record = {}
        if self.track & {"angles", "collapse"}:
            h, y = self._features(local)
        if "angles" in self.track:
            found |= self._mean_angles("clients", h, y, present)
            found["drift"] = drift(local, started_from, self._travels)
            if "phi" in vectors:
                W = self.algorithm.classifier(started_from, {})
                found["adaptation_cost"] = adaptation_cost(vectors["phi"], W.double().norm(dim=1))
        if "collapse" in self.track:
            W = self.algorithm.classifier(local, vectors)
            numbers |= neural_collapse(h, y, W, members=present).record("clients")
        numbers |= _numbers(found)
        values = [numbers.get(name) for name in self.client_names]
        return torch.tensor([math.nan if v is None else v for v in values], dtype=torch.float64)

    def mean_over_clients(self, measured: Sequence[Tensor]) -> Record:
        """The mean of each number over the clients that have one; None where none has."""
        if not measured:
            return {}
        means = torch.stack(list(measured)).nanmean(dim=0).tolist()
        return {name: finite(mean) for name, mean in zip(self.client_names, means, strict=True)}

    # -- the server --------------------------------------------------------------------------------

    def server(self, model: State, present: Tensor) -> Record:
        """Measure the global model; `present` [K, C] is a mask of the classes of the round's clients.

        A method whose models never travel has no global model, and one whose heads stay with the clients has
        no global classifier: what needs one is left out.
        """
        found: dict[str, Tensor] = {}
        record: Record = {}
        whole = self.algorithm.GA_of == "global"
        collapse = "collapse" in self.track and whole
        if collapse or ("angles" in self.track and any(self._travels(name) for name in model)):
            h, y = self._features(model)
            if "angles" in self.track:
                found |= self._mean_angles("server", h, y, present)
            if collapse:
                record |= neural_collapse(h, y, self.algorithm.classifier(model, {})).record("server")
        if "gradients" in self.track and whole:
            found["gradient_norm"] = self._gradient_norm(model)
        return _numbers(found) | record

    def _gradient_norm(self, model: State) -> Tensor:
        """|grad F(w)| of F, the mean cross-entropy of what the global model predicts, over all parameters
        that travel."""
        net = self.net
        assert net is not None
        net.load_state_dict(model)
        net.zero_grad(set_to_none=True)
        device = next(net.parameters()).device
        for part in torch.split(self.samples.to(device), GRADIENT_BATCH):
            logits = self.algorithm.predict_global(net, self.data.inputs(self.data.x_train[part]))
            loss = cross_entropy(logits, self.data.y_train[part]).sum() / len(self.samples)
            loss.backward()  # type: ignore[no-untyped-call]
        slopes = {name: p.grad for name, p in net.named_parameters() if p.grad is not None}
        return state_norm({name: slope for name, slope in slopes.items() if self._travels(name)})

    # -- both --------------------------------------------------------------------------------------

    def _travels(self, name: str) -> bool:
        return self.algorithm.travels(name) and name not in self.stays

    def _features(self, model: State) -> tuple[Tensor, Tensor]:
        """h [n, d], what the classifier is multiplied with (for FedGELA, normalised features), and y [n]."""
        h = self.engine.features(model, self.samples)
        if self.norm is not None:
            h = _normalised(self.norm, model, h)
        return h, self.labels.to(h.device)

    def _mean_angles(self, where: str, h: Tensor, y: Tensor, present: Tensor) -> dict[str, Tensor]:
        """Mean angles between class means; where `present` is [K, C], the mean over K."""
        angles = class_mean_angles(h, y, present)
        return {f"class_mean_angle_{group}_{where}": value.nanmean() for group, value in angles.items()}


def samples_a_class(experiment: Experiment, federation: Federation) -> int:
    """How many samples of each class to track: so few that it takes a small share of a round's work."""
    sizes = torch.from_numpy(federation.train.sizes)
    able = int((sizes > 0).sum())
    clients = min(experiment.sample or able, able)
    work = PASSES * experiment.epochs * int(sizes.sum()) * clients / max(1, able)
    allowed = int(SHARE * work / (federation.data.classes * (clients + 1)))
    return max(FEWEST, min(MOST, allowed))


def balanced(labels: Tensor, most: int, seed: int) -> Tensor:
    """The indices of at most so many samples of every class, drawn by the seed, in rising order."""
    order = torch.randperm(len(labels), generator=generator(seed, "track"))
    by_class = order[labels[order].argsort(stable=True)]  # shuffled within each class
    counts = torch.bincount(labels)
    place = torch.arange(len(labels)) - (counts.cumsum(0) - counts)[labels[by_class]]
    return by_class[place < most].sort().values


@torch.no_grad()
def _normalised(norm: nn.Module, model: State, z: Tensor) -> Tensor:
    start = "head.norm."
    own = {name.removeprefix(start): value for name, value in model.items() if name.startswith(start)}
    h: Tensor = functional_call(norm, own, (z,))
    return h


def _numbers(found: Mapping[str, Tensor]) -> Record:
    """Tensors as numbers, copied from the device all at once, since each copy waits for it."""
    if not found:
        return {}
    device = next(iter(found.values())).device
    values = torch.stack([value.double().to(device) for value in found.values()]).tolist()
    return {key: finite(value) for key, value in zip(found, values, strict=True)}
