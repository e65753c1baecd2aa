"""FedPrior: FedGELA's fixed ETF, adapted to a client by its class shares beside the logits, not by lengths.

    global:    W^T h,                           W = sqrt(E_W) M, |h| = 1, as in FedGELA
    client k:  W^T h + log(x_k + floor),        x_kc = n_kc / n_k
    min over H_k of   1/n_k sum_i -log softmax(W^T h_i + log(x_k + floor))[y_i]

This project's own method. On a client p(c | h) is proportional to x_kc p(h | c): with the shares beside them,
W^T h only has to tell log p(h | c), which does not depend on how common a class is on the client. So all
clients train one body for one classifier, W, which is the global model's as it stands, while Phi_k W is
another classifier on every client. `floor` leaves a class that the client lacks a little of the softmax:
without it nothing would keep features away from that class's vector; with all of it they would be pushed away
as if the client had many samples to tell it from.

The loss is that of FedETF (Li et al., ICCV 2023, arXiv 2303.10058) without its learned temperature and with
the floor; there personal models are fine-tuned, here they are the local ones with their shares.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Gt
from torch import Tensor

from fedgela.algorithms.fedavg import Grid
from fedgela.algorithms.fedgela import Among, FedGELA
from fedgela.models import State


@dataclass(frozen=True)
class FedPrior(FedGELA):
    """`adapt` puts Phi_k beside the shares, and without `etf` the head is FedAvg's: both are ablations."""

    name: ClassVar[str] = "fedprior"
    title: ClassVar[str] = "FedPrior"
    grid: ClassVar[Grid] = {"E_W": (10.0, 30.0, 3.0), "floor": (0.03, 0.01, 0.1)}

    adapt: bool = False
    floor: Annotated[float, Gt(0)] = 0.03

    def client_vectors(self, counts: Tensor, server: State) -> State:
        shares = counts.double() / counts.sum(dim=-1, keepdim=True).clamp(min=1)
        return super().client_vectors(counts, server) | {"prior": (shares + self.floor).log().float()}

    def adapted(self, logits: Tensor, client: State, among: Among) -> Tensor:
        return super().adapted(logits, client, among) + client["prior"]
