"""The methods by name, in the order of the paper's tables. A new method is one file and one line here."""

from fedgela.algorithms.bounds import Centralised, Local
from fedgela.algorithms.fedavg import FedAvg, Moment, Phase, ServerState, Update
from fedgela.algorithms.fedbabu import FedBABU
from fedgela.algorithms.fedgela import FedGE, FedGELA, FedLA
from fedgela.algorithms.fedgen import FedGen
from fedgela.algorithms.fedlc import FedLC
from fedgela.algorithms.fedproto import FedProto
from fedgela.algorithms.fedprox import FedProx
from fedgela.algorithms.fedrep import FedRep
from fedgela.algorithms.fedrod import FedRoD
from fedgela.algorithms.fedrs import FedRS
from fedgela.algorithms.moon import MOON

__all__ = ["ALGORITHMS", "FedAvg", "FedGELA", "Moment", "Phase", "ServerState", "Update"]

_METHODS: tuple[type[FedAvg], ...] = (
    FedAvg,
    FedProx,
    MOON,
    FedRS,
    FedGen,
    FedLC,
    FedRep,
    FedProto,
    FedBABU,
    FedRoD,
    FedGE,
    FedLA,
    FedGELA,
    Local,
    Centralised,
)
ALGORITHMS: dict[str, type[FedAvg]] = {method.name: method for method in _METHODS}
