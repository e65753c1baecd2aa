"""FedRoD: one body under two heads, a generic one trained for all classes, a personal one for the client's.

Chen, Chao, On Bridging Generic and Personalized Federated Learning for Image Classification, ICLR 2022.

    generic:   CE over g(z) + gamma log n_c            (balanced softmax), through head g and body
    personal:  CE over sg(g(z)) + p(sg(z))             sg stops gradients: only the head p learns

Body and g are averaged, p stays with its client. GA is predicted by g, PA by g + p. gamma = 1 is balanced
softmax itself; p is the paper's linear head. log 0 takes missing classes out of the generic softmax.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge
from torch import Tensor, nn

from fedgela.algorithms.fedavg import FedAvg, Grid, PersonalOf, cross_entropy
from fedgela.models import Net, State


class TwoHeads(nn.Module):
    """Its output is the generic head's: the global model's."""

    def __init__(self, d: int, C: int) -> None:
        super().__init__()
        self.generic = nn.Linear(d, C)
        self.personal = nn.Linear(d, C)

    def forward(self, z: Tensor) -> Tensor:
        logits: Tensor = self.generic(z)
        return logits


def _heads(net: Net) -> TwoHeads:
    assert isinstance(net.head, TwoHeads)
    return net.head


@dataclass(frozen=True)
class FedRoD(FedAvg):
    name: ClassVar[str] = "fedrod"
    title: ClassVar[str] = "FedRoD"
    PA_of: ClassVar[PersonalOf] = "local"
    keeps_model: ClassVar[bool] = True
    grid: ClassVar[Grid] = {"gamma": (1.0, 0.5, 2.0)}

    gamma: Annotated[float, Ge(0)] = 1.0

    def head(self, d: int, C: int, seed: int) -> nn.Module:
        return TwoHeads(d, C)

    def travels(self, entry: str) -> bool:
        return not entry.startswith("head.personal.")

    def client_vectors(self, counts: Tensor, server: State) -> State:
        prior = self.gamma * counts.float().log()
        return {"prior": torch.where(counts > 0, prior, -torch.inf)}  # also at gamma = 0

    def loss(self, net: Net, x: Tensor, y: Tensor, client: State) -> Tensor:
        heads, z = _heads(net), net.features(x)
        g = heads.generic(z)
        p = heads.personal(z.detach())
        generic = cross_entropy(g + client["prior"], y)
        return generic + cross_entropy(g.detach() + p, y)

    def predict_personal(self, net: Net, x: Tensor, client: State) -> Tensor:
        heads, z = _heads(net), net.features(x)
        logits: Tensor = heads.generic(z) + heads.personal(z)
        return logits

    def classifier(self, model: State, client: State) -> Tensor:
        """A client's vectors are those it predicts by, g + p; the server's are g."""
        g = model["head.generic.weight"]
        return g + model["head.personal.weight"] if client else g
