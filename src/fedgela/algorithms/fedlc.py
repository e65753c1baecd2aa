"""FedLC: logits are calibrated by a margin that is larger for rarer classes.

Zhang et al., Federated Learning with Label Distribution Skew via Logits Calibration, ICML 2022.

    CE over logits f_c(x) - tau n_c^(-1/4)

The paper gives no tau; 1 is the value of FL-bench and PFLlib, Flower's baseline tries {0.1, 0.5, 1}. A class
with no samples counts as 1e-8 of one, as in public code: its margin is 100 tau, which takes it out of the
softmax and stays finite. The sum runs over all classes, the true one included, as in public code.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge
from torch import Tensor

from fedgela.algorithms.fedavg import FedAvg, Grid, cross_entropy
from fedgela.models import Net, State

NO_SAMPLES = 1e-8


@dataclass(frozen=True)
class FedLC(FedAvg):
    name: ClassVar[str] = "fedlc"
    title: ClassVar[str] = "FedLC"
    grid: ClassVar[Grid] = {"tau": (1.0, 0.5, 0.1)}

    tau: Annotated[float, Ge(0)] = 1.0

    def client_vectors(self, counts: Tensor, server: State) -> State:
        return {"margin": (self.tau * counts.double().clamp(min=NO_SAMPLES) ** -0.25).float()}

    def loss(self, net: Net, x: Tensor, y: Tensor, client: State) -> Tensor:
        return cross_entropy(net(x) - client["margin"], y)
