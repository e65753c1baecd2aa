"""FedProto: clients share class means of features, never models.

Tan et al., FedProto: Federated Prototype Learning across Heterogeneous Clients, AAAI 2022.

    CE + lambda * mean over d of (z - P_y)^2,      P_c the global prototype of class c

A client sends its mean feature of each of its classes, after local training. The server averages them by
class, P_c = sum_k n_kc z_kc / sum_k n_kc over the clients that sent one (`weighted`; the authors' code weighs
them alike). A class without a prototype yet adds no term. lambda = 1 as in the paper's experiments; the
authors' code takes 0.1 for CIFAR10. Prediction is by the client's own head, or by the nearest prototype
among the client's own classes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge
from torch import Tensor

from fedgela.algorithms.fedavg import (
    FedAvg,
    GlobalOf,
    Grid,
    Moment,
    PersonalOf,
    ServerState,
    Update,
    cross_entropy,
)
from fedgela.geometry import class_means
from fedgela.models import Net, State

FAR = 10  # times most clients' length: more than having other classes makes of it, less than breaks training


@dataclass(frozen=True)
class FedProto(FedAvg):
    name: ClassVar[str] = "fedproto"
    title: ClassVar[str] = "FedProto"
    GA_of: ClassVar[GlobalOf] = "locals"
    PA_of: ClassVar[PersonalOf] = "local"
    keeps_model: ClassVar[bool] = True
    grid: ClassVar[Grid] = {"lam": (1.0, 0.1)}

    lam: Annotated[float, Ge(0)] = 1.0  # lambda
    weighted: bool = True
    prediction: Literal["head", "prototype"] = "head"

    def travels(self, entry: str) -> bool:
        return False

    def shares(self) -> str | None:
        counts = " and their counts" if self.weighted else ""
        return f"each client's class means{counts}, which tell the classes that it has"

    def initial_extra(self, d: int, C: int, seed: int) -> State:
        return {"prototypes": torch.zeros(C, d), "known": torch.zeros(C, dtype=torch.bool)}

    def client_vectors(self, counts: Tensor, server: State) -> State:
        return {"present": counts > 0} if self.prediction == "prototype" else {}

    def loss(self, net: Net, x: Tensor, y: Tensor, client: State) -> Tensor:
        z = net.features(x)
        distance = (z - client["prototypes"][y]).square().mean(dim=1)
        pull = torch.where(client["known"][y], distance, 0.0)
        return cross_entropy(net.head(z), y) + self.lam * pull

    def sends(self, counts: Tensor, features: Callable[[], tuple[Tensor, Tensor]]) -> State:
        weights = counts if self.weighted else (counts > 0).long()
        return {"means": class_means(*features(), len(counts)), "weights": weights}

    def aggregate(self, server: ServerState, updates: Sequence[Update], moment: Moment) -> ServerState:
        means = torch.stack([update.extra["means"] for update in updates])  # [K, C, d]
        weights = torch.stack([update.extra["weights"] for update in updates]).to(means)  # [K, C]
        total = weights.sum(dim=0)
        mean = torch.einsum("kc,kcd->cd", weights, means) / total.clamp(min=1)[:, None]
        sent = total > 0  # a class that nobody sent this round keeps its prototype
        extra = {
            "prototypes": torch.where(sent[:, None], mean, server.extra["prototypes"]),
            "known": server.extra["known"] | sent,
        }
        return replace(server, extra=extra)

    def out_of_line(self, sent: Sequence[State]) -> dict[int, str]:
        """All clients' features are drawn to the prototypes, and nothing else bounds these: with a mean of
        1000 in each coordinate from one client, no local model is finite any more after a round."""
        means = [update["means"][update["weights"] > 0] for update in sent]
        lengths = torch.stack([mean.double().square().mean().sqrt() for mean in means])
        most = lengths.sort().values[len(lengths) // 2]
        why = f"sent class means that are more than {FAR} times as long as most others'"
        return dict.fromkeys((lengths > FAR * most).nonzero().flatten().tolist(), why)

    def predict_personal(self, net: Net, x: Tensor, client: State) -> Tensor:
        if self.prediction == "head":
            return super().predict_personal(net, x, client)
        z = net.features(x)
        known = client["known"] & client["present"]  # [C], or [B, C] for samples of many clients
        P = client["prototypes"]
        # |z - P_c|^2 in plain operations: cdist's cannot be exported to ONNX
        square = z.square().sum(dim=1, keepdim=True) - 2 * z @ P.T + P.square().sum(dim=1)
        nearness = (-square.clamp(min=0).sqrt()).masked_fill(~known, -torch.inf)
        # before the first round there are no prototypes
        return torch.where(known.any(dim=-1, keepdim=True), nearness, net.head(z))
