"""FedProx: local models are held close to the global one.

Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020.

    min over w of   1/n_k sum_i CE(f_w(x_i), y_i) + mu/2 |w - w_t|^2

w_t is the global model that the round began with. The authors tune mu in {0.001, 0.01, 0.1, 0.5, 1} and
say that no value works for all data; 0.001 is what Flower's baseline for MOON and FedETF's code use on
CIFAR.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge
from torch import Tensor

from fedgela.algorithms.fedavg import FedAvg, Grid
from fedgela.models import Net, State


@dataclass(frozen=True)
class FedProx(FedAvg):
    name: ClassVar[str] = "fedprox"
    title: ClassVar[str] = "FedProx"
    grid: ClassVar[Grid] = {"mu": (0.001, 0.01, 0.1, 0.5, 1.0)}

    mu: Annotated[float, Ge(0)] = 0.001

    def references(self, server: State, last: State | None) -> State:
        return {f"global/{name}": value for name, value in server.items()}

    def loss(self, net: Net, x: Tensor, y: Tensor, client: State) -> Tensor:
        away = x.new_zeros(())
        for name, w in net.named_parameters():
            # in bf16 w is a rounded copy, and its rounding errors are as large as w - w_t: take the original
            exact = client.get(f"master/{name}", w)
            away = away + (exact - client[f"global/{name}"]).square().sum()
        return super().loss(net, x, y, client) + self.mu / 2 * away
