"""The methods by name. A new method is one file and one line here."""

from fedgela.algorithms.bounds import Centralised, Local
from fedgela.algorithms.fedavg import FedAvg, Phase, ServerState, Update
from fedgela.algorithms.fedgela import FedGE, FedGELA, FedLA

__all__ = ["ALGORITHMS", "FedAvg", "FedGELA", "Phase", "ServerState", "Update"]

ALGORITHMS: dict[str, type[FedAvg]] = {
    method.name: method for method in (FedAvg, FedGE, FedLA, FedGELA, Local, Centralised)
}
