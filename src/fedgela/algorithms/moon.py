"""MOON: features are drawn to the global model's, and away from the client's own last model's.

Li, He, Song, Model-Contrastive Federated Learning, CVPR 2021.

    CE + mu * -log( e^{s(z, z_g)/tau} / (e^{s(z, z_g)/tau} + e^{s(z, z_p)/tau}) ),   s = cosine

z is the projection's output of the model that trains, z_g the global model's, z_p the client's last local
model's; neither of the two is trained, and both run in evaluation mode. On a client's first visit z_p is
z_g: the term is the constant ln 2, without gradient. tau = 0.5; mu = 5 is the authors' best on CIFAR10 (1
on CIFAR100, 10 with 50 clients), from {0.001, 0.01, 0.1, 1, 5, 10}.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Gt
from torch import Tensor
from torch.nn import functional as F

from fedgela.algorithms.fedavg import FedAvg, Grid, cross_entropy
from fedgela.models import Net, State


@dataclass(frozen=True)
class MOON(FedAvg):
    name: ClassVar[str] = "moon"
    title: ClassVar[str] = "MOON"
    keeps_model: ClassVar[bool] = True  # z_p's model
    grid: ClassVar[Grid] = {"mu": (5.0, 1.0, 10.0, 0.1, 0.01, 0.001)}

    mu: Annotated[float, Ge(0)] = 5.0
    tau: Annotated[float, Gt(0)] = 0.5

    def start(self, server: State, last: State | None) -> State:
        return server  # the last local model only teaches

    def references(self, server: State, last: State | None) -> State:
        previous = server if last is None else last
        return {f"global/{name}": value for name, value in server.items()} | {
            f"previous/{name}": value for name, value in previous.items()
        }

    def loss(self, net: Net, x: Tensor, y: Tensor, client: State) -> Tensor:
        z = net.features(x)
        z_g = net.features_of(_part(client, "global/"), x)
        z_p = net.features_of(_part(client, "previous/"), x)
        # the contrast is a cross-entropy over two logits, of which the first is right
        # z is normalised once, so that the gradients of equal teachers cancel to the bit
        u = F.normalize(z, dim=1)
        s = torch.stack([(u * F.normalize(teacher, dim=1)).sum(dim=1) for teacher in (z_g, z_p)], dim=1)
        contrast = cross_entropy(s / self.tau, torch.zeros_like(y))
        return cross_entropy(net.head(z), y) + self.mu * contrast


def _part(state: State, prefix: str) -> State:
    return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
