"""What may leave a site, checked on the site just before it is sent: what the algorithm declares, sums over
all of the site's samples, what the site opted in to share (sharing.py), and nothing else."""

import torch
from torch import Tensor

from fedgela.algorithms import FedAvg
from fedgela.flower.wire import About, Groups
from fedgela.models import State
from fedgela.server import Server

Shapes = dict[str, dict[str, tuple[int, ...]]]  # of tensors, by group and name

# sums over all classes: no figure of these is split by class
MEASURES = {"train": {"loss_sum", "loss_count", "right"}, "score": {"right"}, "finetune": {"right"}}
# the values beside the tensors
ABOUT: dict[str, dict[str, type]] = {
    "classes": {"classes": list, "named": bool},
    "join": {"samples": int, "tested": int, "kind": str, "shape": list, "vocabulary": int, "columns": str},
    "train": {"samples": int, "state_lost": bool, "seconds": float},
    "score": {},
    "finetune": {},
    # of secure aggregation: a public key, and the seeds of masks, never those of one update alone (masks.py)
    "key": {"key": str},
    "unmask": {"own": str, "pairs": dict, "key": str},
}


class NotDeclared(Exception):
    """Something was about to leave the site that nobody declared; it has not."""


def declared_at_join(algorithm: FedAvg, sums: State, C: int) -> Shapes:
    """Sums of the input's values by channel, and what the method declares to share once."""
    return {"sums": _shapes(sums), "statistics": _shapes(statistics_like(algorithm, C))}


def statistics_like(algorithm: FedAvg, C: int) -> State:
    """What the method declares to share once, of a site that does not exist: names, shapes and types."""
    shared = statistics_of(algorithm, torch.ones(1, C, dtype=torch.int64))
    return {name: value[0] for name, value in shared.items()}


def statistics_of(algorithm: FedAvg, counts: Tensor) -> State:
    """The same of sites with these class counts, [K, C]."""
    return {} if algorithm.shares() is None else algorithm.statistics(counts)


def declared(server: Server) -> Shapes:
    """The tensors that an update of this run may hold: by the method's own account."""
    return {group: _shapes(state) for group, state in update_like(server).items()}


def update_like(server: Server) -> Groups:
    """An update of this run by a site that does not exist: names, shapes and types."""
    algorithm, C = server.algorithm, server.federation.data.classes
    net = {name: value.detach() for name, value in server.net.state_dict().items()}
    extra: State = {}
    if algorithm.shares() is not None:
        d = server.net.projection.out_features

        def features() -> tuple[Tensor, Tensor]:  # of one sample: what is sent has one shape for all
            return torch.zeros(1, d), torch.zeros(1, dtype=torch.int64)

        extra = algorithm.sends(torch.zeros(C, dtype=torch.int64), features)
    return {"model": server.travelling(net), "extra": extra}


def check(task: str, groups: Groups, about: About, allowed: Shapes, listed: bool = False) -> None:
    """NotDeclared, with the name of what was too much. Where the federation has a list of classes (`listed`),
    a site's own class names stay on it."""
    if task == "classes" and listed:
        raise NotDeclared("classes: the names of the site's own classes")
    for key in about.keys() - ABOUT[task]:
        raise NotDeclared(f"{task}: the value {key!r}")
    allowed = allowed | {"measures": dict.fromkeys(MEASURES.get(task, ()), (1,))}
    for group, state in groups.items():
        for name, value in state.items():
            if allowed.get(group, {}).get(name) != tuple(value.shape):
                raise NotDeclared(f"{task}: the tensor {group}/{name} {list(value.shape)}")


def _shapes(state: State) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in state.items()}
