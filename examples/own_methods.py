"""Methods of one's own: a dataclass derived from FedAvg (or any other method), its fields the
hyper-parameters. fedgela/algorithms/fedavg.py lists all that may be overridden."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge, Gt, Lt
from torch import Tensor
from torch.nn import functional as F

from fedgela.algorithms import FedAvg
from fedgela.algorithms.fedgela import FedGE
from fedgela.models import Net, State


@dataclass(frozen=True)
class SmoothedFedAvg(FedAvg):
    """FedAvg with label smoothing: the smallest of changes."""

    title: ClassVar[str] = "FedAvg, smoothed"
    # what `fedgela tune` tries, the default first
    grid: ClassVar[dict[str, tuple[object, ...]]] = {"smoothing": (0.1, 0.0, 0.2)}

    smoothing: Annotated[float, Ge(0), Lt(1)] = 0.1

    def loss(self, net: Net, x: Tensor, y: Tensor, client: State) -> Tensor:
        return F.cross_entropy(net(x), y, reduction="none", label_smoothing=self.smoothing)


@dataclass(frozen=True)
class PriorETF(FedGE):
    """FedGE whose clients adapt by their class shares beside the logits, log(n_kc / n_k + floor), where
    FedGELA's adapt the classifier's lengths. Training with them is a balanced softmax: what the body learns
    is independent of how common a class is on the client, and the fixed ETF alone is the global classifier.
    With them it predicts for the client. `floor` keeps a class that a client lacks a little in its softmax.

    The loss is that of FedETF (arXiv 2303.10058) without its learned temperature, smoothed."""

    title: ClassVar[str] = "FedGE, with priors"
    grid: ClassVar[dict[str, tuple[object, ...]]] = {"E_W": (10.0, 30.0, 3.0), "floor": (0.03, 0.01, 0.1)}

    floor: Annotated[float, Gt(0)] = 0.03

    def client_vectors(self, counts: Tensor, server: State) -> State:
        """Of a client, or of several, [N, C]. It shares nothing: a client knows its own counts."""
        shares = counts.double() / counts.sum(dim=-1, keepdim=True).clamp(min=1)
        return super().client_vectors(counts, server) | {"prior": (shares + self.floor).log().float()}

    def loss(self, net: Net, x: Tensor, y: Tensor, client: State) -> Tensor:
        return F.cross_entropy(net(x) + client["prior"], y, reduction="none")

    def predict_personal(self, net: Net, x: Tensor, client: State) -> Tensor:
        logits: Tensor = net(x) + client["prior"]
        return logits
