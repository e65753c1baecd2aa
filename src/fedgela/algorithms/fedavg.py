"""FedAvg, and with it what an algorithm is: every other method overrides a few of these methods.

McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017.
Each sampled client minimises the mean cross-entropy over its samples, starting from the global model;
the server averages: w <- sum_k p_k w_k with p_k = n_k / sum_j n_j.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from fedgela.models import Net, State
from fedgela.operations.loss import cross_entropy as cross_entropy  # methods have it from here

GlobalOf = Literal["global", "locals"]
PersonalOf = Literal["finetuned", "local", "global"]
OtherAccuracy = Literal["PA_finetuned", "GA_locals"]
Beside = tuple[OtherAccuracy, ...]
Grid = dict[str, tuple[object, ...]]


@dataclass(frozen=True)
class Phase:
    """A part of local training: which parameters train (by the start of their names), how long."""

    epochs: int
    trains: tuple[str, ...] = ("",)

    def selects(self, name: str) -> bool:
        return name.startswith(self.trains)


@dataclass
class ServerState:
    """All that the server holds: the global model, what a method sends along with it (prototypes, a
    generator), and what never leaves the server (momentum, an optimiser's moments)."""

    model: State
    extra: State = field(default_factory=dict)
    private: State = field(default_factory=dict)


@dataclass
class Update:
    """What one client sends after local training."""

    client: int
    samples: int  # n_k
    model: State  # only the entries that travel
    extra: State = field(default_factory=dict)  # what the method sends beside them


@dataclass(frozen=True)
class Moment:
    """Seed and round: with them a method addresses the draws that it makes on the server."""

    seed: int
    round: int  # from 1


@dataclass(frozen=True)
class FedAvg:
    """Plain federated averaging. Hyper-parameters of a method are fields of its dataclass."""

    __pydantic_config__: ClassVar[dict[str, object]] = {
        "extra": "forbid",
        "strict": True,
        "allow_inf_nan": False,
    }

    name: ClassVar[str] = "fedavg"
    title: ClassVar[str] = "FedAvg"
    # Which models the two accuracies are of (docs/protocol.md).
    GA_of: ClassVar[GlobalOf] = "global"
    PA_of: ClassVar[PersonalOf] = "finetuned"
    # Accuracies reported beside those two: PA_finetuned where PA is not of fine-tuned models, GA_locals where
    # GA is not of local ones.
    beside: ClassVar[Beside] = ()
    # Whether a client keeps its last local model: as its personal model, or for its next visit.
    keeps_model: ClassVar[bool] = False
    # The hyper-parameters that are worth a search, with the authors' values, the default first; a key of
    # several names, by comma, holds tuples of values that go together. See also `searched`.
    grid: ClassVar[Grid] = {}
    # Whether all data is trained on in one place (the Centralised bound).
    pooled: ClassVar[bool] = False

    @property
    def finetuned_as(self) -> Literal["PA", "PA_finetuned"] | None:
        """What the accuracy of fine-tuned models is called; None where nothing is fine-tuned."""
        if self.PA_of == "finetuned":
            return "PA"
        return "PA_finetuned" if "PA_finetuned" in self.beside else None

    @property
    def locals_as(self) -> Literal["GA", "GA_locals"] | None:
        """What the accuracy of local models on the union of the test sets is called; None where it is not
        measured."""
        if self.GA_of == "locals":
            return "GA"
        return "GA_locals" if "GA_locals" in self.beside else None

    # -- a search ----------------------------------------------------------------------------------

    def searched(self, epochs: int) -> Grid:
        """The part of the grid that makes a difference, given the method's other options and the number of
        local epochs."""
        return self.grid

    # -- the model ---------------------------------------------------------------------------------

    def head(self, d: int, C: int, seed: int) -> nn.Module:
        """The layer from features [B, d] to logits [B, C]."""
        return nn.Linear(d, C)

    # -- what leaves a client ----------------------------------------------------------------------

    def travels(self, entry: str) -> bool:
        """Whether this entry of a model's state goes to the server and back. Counters never do."""
        return True

    def shares(self) -> str | None:
        """What else than weights and n_k a client must reveal, in words; None where it is nothing."""
        return None

    def in_vain(self, classes: int) -> str | None:
        """What of the method has no effect with so many classes, in words."""
        return None

    def statistics(self, counts: Tensor) -> State:
        """What a client sends once, before training: tensors [1, ...] made from its class counts [1, C]. The
        server takes their mean, weighted by p_k. A method that sends any says so in `shares`."""
        return {}

    def sends(self, counts: Tensor, features: Callable[[], tuple[Tensor, Tensor]]) -> State:
        """What a client sends after local training beside its model.

        `features()` gives z [n, d] and y [n] of its training samples, by its local model.
        """
        return {}

    # -- local training ----------------------------------------------------------------------------

    def client_vectors(self, counts: Tensor, server: State) -> State:
        """What loss and prediction need to know of a client, made on it from its class counts [..., C].

        `server` is the server's extra state. Leading dimensions of the counts stay in the result, so that
        samples of many clients can be predicted in one batch.
        """
        return {}

    def start(self, server: State, last: State | None) -> State:
        """The model that a client starts from: the server's, with its own last values of entries that do not
        travel (`last` is None before its first visit)."""
        if last is None:
            return server
        return {name: value if self.travels(name) else last[name] for name, value in server.items()}

    def references(self, server: State, last: State | None) -> State:
        """Models that the loss compares with, fixed during local training, from the server's model and
        the client's own last one (None before its first visit)."""
        return {}

    def initial_extra(self, d: int, C: int, seed: int) -> State:
        """What the server holds beside the model before the first round."""
        return {}

    def phases(self, epochs: int) -> tuple[Phase, ...]:
        return (Phase(epochs),)

    def loss(self, net: Net, x: Tensor, y: Tensor, client: State) -> Tensor:
        """The loss of every sample, [B]; its mean is minimised. Tensor code only: no .item(), no
        branch on data, so that the same function runs eagerly, in a CUDA graph and in a Flower client.

        `client` holds the client vectors, the server's extra state, the references, and `draw`, the number
        of this step's draws: random numbers come from randomness.uniform(client["draw"], ...), since those
        of a global generator would depend on how clients are computed.
        """
        return cross_entropy(net(x), y)

    # -- the server --------------------------------------------------------------------------------

    def aggregate(self, server: ServerState, updates: Sequence[Update], moment: Moment) -> ServerState:
        """The next server state, from the updates in the order of their clients."""
        return replace(server, model={**server.model, **average(updates)})

    def out_of_line(self, sent: Sequence[State]) -> dict[int, str]:
        """Of what clients sent in a round beside their models: whose, by its place, is so unlike most others'
        that it would break everybody's training, and why. A federation goes on without these."""
        return {}

    # -- prediction --------------------------------------------------------------------------------

    def predict_global(self, net: Net, x: Tensor) -> Tensor:
        """The global model's logits, [B, C]."""
        logits: Tensor = net(x)
        return logits

    def predict_personal(self, net: Net, x: Tensor, client: State) -> Tensor:
        """A personal model's logits, [B, C]; `client` holds the client vectors, of one client or one
        row a sample, and the server's extra state."""
        return self.predict_global(net, x)

    def classifier(self, model: State, client: State) -> Tensor:
        """The classifier vectors of a model's state, [C, d], whose angles are measured."""
        return model["head.weight"]


def mean_statistics(algorithm: FedAvg, counts: Tensor) -> State:
    """The mean over clients, weighted by p_k, of what the method has them send before training, from their
    class counts [N, C]."""
    # one by one, as sites of a federation do
    sent = [{name: value[0] for name, value in algorithm.statistics(own[None]).items()} for own in counts]
    return mean_by_samples(sent, counts.sum(dim=1))


def mean_by_samples(sent: Sequence[State], samples: Tensor) -> State:
    """The mean of what clients with so many samples, [N], have sent, weighted by p_k."""
    p = samples.double() / samples.sum()
    return {name: (p @ torch.stack([own[name] for own in sent]).double()).float() for name in sent[0]}


def travelling(algorithm: FedAvg, model: State, stays: Collection[str] = ()) -> State:
    """The entries of a model that go between the server and its clients: the floats, except what the method
    keeps back and what stays with a client whatever the method (`stays`, such as local BatchNorm)."""
    return {
        name: value
        for name, value in model.items()
        if algorithm.travels(name) and name not in stays and value.is_floating_point()
    }


def average(updates: Sequence[Update]) -> State:
    """sum_k p_k w_k over the float entries, BatchNorm's running statistics included."""
    total = sum(update.samples for update in updates)
    mean: State = {}  # empty where nothing travels
    for name, first in updates[0].model.items():
        if first.is_floating_point():
            mean[name] = torch.zeros_like(first)
            for update in updates:
                mean[name].add_(update.model[name], alpha=update.samples / total)
    return mean
