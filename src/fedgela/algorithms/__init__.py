"""The methods by name, in the order of the paper's tables, and this project's own after them. A new method is
one file and one line here; a user's own, outside of the package, is named by its import path."""

from dataclasses import fields
from typing import get_args

from fedgela.algorithms.bounds import Centralised, Local
from fedgela.algorithms.fedavg import (
    FedAvg,
    GlobalOf,
    Moment,
    OtherAccuracy,
    PersonalOf,
    Phase,
    ServerState,
    Update,
    average,
    mean_by_samples,
    mean_statistics,
    travelling,
)
from fedgela.algorithms.fedbabu import FedBABU
from fedgela.algorithms.fedgela import FedGE, FedGELA, FedLA
from fedgela.algorithms.fedgen import FedGen
from fedgela.algorithms.fedlc import FedLC
from fedgela.algorithms.fedprior import FedPrior
from fedgela.algorithms.fedproto import FedProto
from fedgela.algorithms.fedprox import FedProx
from fedgela.algorithms.fedrep import FedRep
from fedgela.algorithms.fedrod import FedRoD
from fedgela.algorithms.fedrs import FedRS
from fedgela.algorithms.moon import MOON
from fedgela.errors import UserError, did_you_mean
from fedgela.imports import import_path, load

__all__ = [
    "ALGORITHMS",
    "MOON",
    "Centralised",
    "FedAvg",
    "FedBABU",
    "FedGE",
    "FedGELA",
    "FedGen",
    "FedLA",
    "FedLC",
    "FedPrior",
    "FedProto",
    "FedProx",
    "FedRS",
    "FedRep",
    "FedRoD",
    "Local",
    "Moment",
    "Phase",
    "ServerState",
    "Update",
    "average",
    "find_algorithm",
    "mean_by_samples",
    "mean_statistics",
    "name_of",
    "travelling",
]

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
    FedPrior,
    Local,
    Centralised,
)
ALGORITHMS: dict[str, type[FedAvg]] = {method.name: method for method in _METHODS}


def find_algorithm(name: str) -> type[FedAvg]:
    """A method by its name, or a user's own by its import path, `my_package.methods:MyMethod`."""
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    if ":" not in name:
        raise UserError(
            f"there is no method {name!r}{did_you_mean(name, ALGORITHMS)}; there are {', '.join(ALGORITHMS)}"
        )
    method = load(name)
    if not isinstance(method, type) or not issubclass(method, FedAvg):
        raise UserError(f"{name}: a method is a class derived from fedgela.algorithms.FedAvg")
    if "__dataclass_fields__" not in vars(method):
        raise UserError(f"{name}: a method is a dataclass: write @dataclass(frozen=True) above it")
    for key, kind in (("GA_of", GlobalOf), ("PA_of", PersonalOf)):
        if getattr(method, key) not in get_args(kind):
            raise UserError(
                f"{name}: {key} is one of {', '.join(get_args(kind))}, not {getattr(method, key)!r}"
            )
    if method.PA_of == "local" and not method.keeps_model:
        raise UserError(f"{name}: PA_of is local, the clients' last models, which keeps_model = True keeps")
    if not isinstance(method.beside, tuple) or set(method.beside) - set(get_args(OtherAccuracy)):
        raise UserError(
            f"{name}: beside is a tuple of {' and '.join(get_args(OtherAccuracy))}, not {method.beside!r}"
        )
    own = [field.name for field in fields(method)]
    for key in (key for names in method.grid for key in names.split(",")):
        if key not in own:
            raise UserError(
                f"{name}: its grid has {key!r}{did_you_mean(key, own)}, which is none of its fields"
            )
    return method


def name_of(algorithm: FedAvg) -> str:
    """The name by which `find_algorithm` finds it."""
    method = type(algorithm)
    return method.name if ALGORITHMS.get(method.name) is method else import_path(method)
