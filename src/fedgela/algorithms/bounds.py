"""The two bounds that every federated result is read against: no communication, and no federation."""

from dataclasses import dataclass
from typing import ClassVar

from fedgela.algorithms.fedavg import FedAvg, GlobalOf, PersonalOf


@dataclass(frozen=True)
class Local(FedAvg):
    """Every client trains alone, cross-entropy on its own samples; nothing travels."""

    name: ClassVar[str] = "local"
    title: ClassVar[str] = "Local"
    GA_of: ClassVar[GlobalOf] = "locals"
    PA_of: ClassVar[PersonalOf] = "local"
    keeps_model: ClassVar[bool] = True

    def travels(self, entry: str) -> bool:
        return False


@dataclass(frozen=True)
class Centralised(FedAvg):
    """One model on all clients' training data in one place, E epochs a round; its one model everywhere."""

    name: ClassVar[str] = "centralised"
    title: ClassVar[str] = "Centralised"
    PA_of: ClassVar[PersonalOf] = "global"
    pooled: ClassVar[bool] = True
