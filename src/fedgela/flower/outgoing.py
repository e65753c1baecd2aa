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
ABOUT = {
    "classes": {"classes"},
    "join": {"samples", "tested", "kind", "shape", "vocabulary"},
    "train": {"samples", "state_lost", "seconds"},
    "score": set(),
    "finetune": set(),
}


class NotDeclared(Exception):
    """Something was about to leave the site that nobody declared; it has not."""


def declared_at_join(algorithm: FedAvg, sums: State, C: int) -> Shapes:
    """Sums of the input's values by channel, and what the method declares to share once."""
    shared = {}
    if algorithm.shares() is not None:
        shared = algorithm.statistics(torch.ones(1, C, dtype=torch.int64))
    return {"sums": _shapes(sums), "statistics": {name: tuple(v.shape[1:]) for name, v in shared.items()}}


def declared(server: Server) -> Shapes:
    """The tensors that an update of this run may hold: by the method's own account."""
    algorithm, C = server.algorithm, server.federation.data.classes
    net = {name: value.detach() for name, value in server.net.state_dict().items()}
    extra: State = {}
    if algorithm.shares() is not None:
        d = server.net.projection.out_features

        def features() -> tuple[Tensor, Tensor]:  # of one sample: what is sent has one shape for all
            return torch.zeros(1, d), torch.zeros(1, dtype=torch.int64)

        extra = algorithm.sends(torch.zeros(C, dtype=torch.int64), features)
    return {"model": _shapes(server.travelling(net)), "extra": _shapes(extra)}


def check(task: str, groups: Groups, about: About, allowed: Shapes) -> None:
    """NotDeclared, with the name of what was too much."""
    for key in about.keys() - ABOUT[task]:
        raise NotDeclared(f"{task}: the value {key!r}")
    allowed = allowed | {"measures": dict.fromkeys(MEASURES.get(task, ()), (1,))}
    for group, state in groups.items():
        for name, value in state.items():
            if allowed.get(group, {}).get(name) != tuple(value.shape):
                raise NotDeclared(f"{task}: the tensor {group}/{name} {list(value.shape)}")


def _shapes(state: State) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in state.items()}
