"""A client's part, the same in Flower's simulation and on a site: a `Server` that trains one client."""

from torch import Tensor

from fedgela.algorithms import ServerState
from fedgela.models import State
from fedgela.rounds import Progress, Visit
from fedgela.server import Server


def progress_of(server: Server, round: int, model: State, extra: State) -> Progress:
    """The run as a client sees it: what travels is the server's, the rest as everybody makes it from the
    seed."""
    progress = server.begin()
    progress.round = round
    here = {name: value.to(server.device) for name, value in model.items()}
    progress.server = ServerState(
        progress.server.model | here, {name: value.to(server.device) for name, value in extra.items()}
    )
    return progress


def visit(server: Server, client: int, round: int, model: State, extra: State) -> Visit:
    """One client's round."""
    progress = progress_of(server, round, model, extra)
    return server.visits(progress, server.plan(progress), [client])[0]


def finetuned(server: Server, client: int, round: int, model: State) -> Tensor:
    """Right answers [C] of the global model fine-tuned on this client."""
    whole = progress_of(server, round, model, {}).server.model
    return server.finetuned(whole, round, [client], {})[0][client]
