"""How far models move: local from global, adapted classifier from ETF."""

from collections.abc import Callable

import torch
from torch import Tensor

from fedgela.models import State


def state_norm(state: State) -> Tensor:
    """The Euclidean norm of all float entries together, such as a gradient's; a 0-dimensional tensor."""
    # sorted, since a state that was read from a file may have another order, and rounding depends on it
    squares = [v.double().square().sum() for _, v in sorted(state.items()) if v.is_floating_point()]
    return torch.stack(squares).sum().sqrt() if squares else torch.zeros((), dtype=torch.float64)


def distance(local: State, server: State) -> Tensor:
    """||w_k - w|| over the float entries that both have."""
    return state_norm(
        {
            name: value.double() - server[name].to(value.device).double()
            for name, value in local.items()
            if name in server and value.is_floating_point()
        }
    )


def drift(local: State, server: State, included: Callable[[str], bool] = lambda name: True) -> Tensor:
    """||w_k - w|| / ||w|| over the included entries, such as those that travel; w is the global model that
    the local one started from."""
    chosen = {name: value for name, value in server.items() if included(name)}
    return distance(local, chosen).cpu() / state_norm(chosen).cpu()


def adaptation_cost(phi: Tensor, lengths: Tensor | float = 1.0) -> Tensor:
    """||Phi_k W - W|| (Frobenius), [...], from Phi_k [..., C] and the lengths |W_c| of the classifier's
    vectors, [C] or one for all. It does not depend on their directions."""
    cost: Tensor = torch.linalg.vector_norm((phi.double() - 1) * lengths, dim=-1)
    return cost
