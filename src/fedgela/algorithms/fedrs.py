"""FedRS: the logits of classes that a client lacks are scaled down ("restricted softmax").

Li, Zhan, FedRS: Federated Learning with Restricted Softmax for Label Distribution Non-IID Data, KDD 2021.

    CE over logits a_c (w_c . z + b_c),   a_c = 1 for classes of the client, alpha for those it lacks

alpha = 0.5 stands for the paper's middle ground; the authors' code tries {0.9, 0.5, 0.1}, and is softer
than the paper (`soft`): a_c = alpha + (1 - alpha) n_c / max n. Their head has no bias; here it is the head
that every method has, scaled whole. Prediction uses the plain logits.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Le
from torch import Tensor

from fedgela.algorithms.fedavg import FedAvg, Grid, cross_entropy
from fedgela.models import Net, State


@dataclass(frozen=True)
class FedRS(FedAvg):
    name: ClassVar[str] = "fedrs"
    title: ClassVar[str] = "FedRS"
    grid: ClassVar[Grid] = {"alpha": (0.5, 0.9, 0.1)}

    alpha: Annotated[float, Ge(0), Le(1)] = 0.5
    soft: bool = False

    def client_vectors(self, counts: Tensor, server: State) -> State:
        if self.soft:
            share = counts / counts.amax(dim=-1, keepdim=True).clamp(min=1)
            return {"a": self.alpha + (1 - self.alpha) * share}
        return {"a": torch.where(counts > 0, 1.0, self.alpha)}

    def loss(self, net: Net, x: Tensor, y: Tensor, client: State) -> Tensor:
        return cross_entropy(client["a"] * net(x), y)
