"""Care for a user's own method: before a run it is tried on two samples of zeros, it gets copies of states
that it may change in place, and the server state that `aggregate` gives is checked in every round."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedgela.algorithms import (
    ALGORITHMS,
    FedAvg,
    Moment,
    Phase,
    ServerState,
    Update,
    mean_statistics,
    name_of,
)
from fedgela.errors import UserError
from fedgela.imports import told
from fedgela.inputs import InputSpec
from fedgela.models import Net, State, on_device
from fedgela.models.own import two_samples


@torch.no_grad()
def check_method(algorithm: FedAvg, net: Net, spec: InputSpec, classes: int, epochs: int) -> None:
    """A UserError where a user's own method has a head, predictions or phases that do not fit net or data."""
    name = name_of(algorithm)
    if name in ALGORITHMS:
        return
    was_training = net.training
    net.eval()
    with torch.random.fork_rng(devices=[]):
        _check_head(name, net, classes)
        _check_predictions(name, algorithm, net, spec, classes)
    net.train(was_training)
    _check_classifier(name, algorithm, net, classes)
    _check_phases(name, algorithm, net, epochs)


def aggregated(
    algorithm: FedAvg, server: ServerState, updates: Sequence[Update], moment: Moment
) -> ServerState:
    """The server's next state, by the method's `aggregate`, and checked."""
    states = (server.model, server.extra, server.private)
    copies = ServerState(*(handed_to(algorithm, state) for state in states))
    updates = [replace(update, model=handed_to(algorithm, update.model)) for update in updates]
    return check_aggregated(algorithm, server, algorithm.aggregate(copies, updates, moment))


def handed_to(algorithm: FedAvg, state: State) -> State:
    """A state as its method may have it: a copy for a user's own method, which may change it in place. The
    same tensors may be part of the best model so far, be kept by a client, or be on their way to the disk."""
    return state if name_of(algorithm) in ALGORITHMS else {k: v.clone() for k, v in state.items()}


def check_aggregated(algorithm: FedAvg, before: ServerState, after: object) -> ServerState:
    """What `aggregate` gave, if it is a server state with the same model entries, of the same shapes."""
    if not isinstance(after, ServerState):
        raise UserError(f"{name_of(algorithm)}: aggregate must give a ServerState, not a {_kind(after)}")
    for entry in sorted(before.model.keys() | after.model.keys()):
        was, now = (
            _described(state.model[entry]) if entry in state.model else "none" for state in (before, after)
        )
        if was != now:
            raise UserError(f"{name_of(algorithm)}: aggregate gives {now} for the model's {entry}, not {was}")
    return after


def _check_head(name: str, net: Net, classes: int) -> None:
    z = torch.zeros(2, net.projection.out_features, device=net.projection.weight.device)
    try:
        logits = net.head(z)
    except Exception as error:  # whatever its layers raise at features of another width
        raise UserError(f"{name}: its head fails on features {list(z.shape)}: {told(error)}") from None
    _check_logits(name, "its head", logits, classes)


def _check_predictions(name: str, algorithm: FedAvg, net: Net, spec: InputSpec, classes: int) -> None:
    x = two_samples(spec).to(net.projection.weight.device)
    _check_logits(name, "predict_global", algorithm.predict_global(net, x), classes)
    if algorithm.pooled:
        return
    counts = torch.ones(classes, dtype=torch.int64)
    extra = algorithm.initial_extra(net.projection.out_features, classes, 0)
    extra = extra | mean_statistics(algorithm, counts[None])
    _check_vectors(name, algorithm, extra, classes)
    client = on_device(algorithm.client_vectors(counts, extra) | extra, x.device)
    _check_logits(name, "predict_personal", algorithm.predict_personal(net, x, client), classes)


def _check_vectors(name: str, algorithm: FedAvg, extra: State, classes: int) -> None:
    """A UserError where a client's vectors depend on whether they are made for it alone or for several
    clients at once, as they are to predict samples of many clients in one batch; or where one has the name of
    something else that the loss finds beside it."""
    counts = torch.stack([torch.arange(classes), torch.ones(classes, dtype=torch.int64)])
    together = algorithm.client_vectors(counts, extra)
    for key in sorted(together.keys() & {*extra, "draw"}):
        whose = "the number of a step's draws" if key == "draw" else "something that the server holds"
        raise UserError(
            f"{name}: client_vectors gives {key!r}, which is the name of {whose}; call it otherwise"
        )
    for i, own in enumerate(counts):
        for key, alone in algorithm.client_vectors(own, extra).items():
            rows = together.get(key)
            fits = rows is not None and rows.shape == (len(counts), *alone.shape)
            if not fits or not torch.allclose(together[key][i].double(), alone.double(), equal_nan=True):
                raise UserError(
                    f"{name}: client_vectors gives other {key!r} for a client among several, [N, C], than "
                    "for it alone, [C]: what it sums or sorts is the last dimension"
                )


def _check_logits(name: str, what: str, logits: object, classes: int) -> None:
    if not isinstance(logits, Tensor) or list(logits.shape) != [2, classes]:
        raise UserError(
            f"{name}: {what} must give logits [B, C], of two samples {[2, classes]}, "
            f"and gives {_described(logits)}"
        )


def _check_classifier(name: str, algorithm: FedAvg, net: Net, classes: int) -> None:
    state = net.state_dict()
    if type(algorithm).classifier is FedAvg.classifier and "head.weight" not in state:
        raise UserError(
            f"{name}: its head has no entry 'weight': override classifier, which gives the vectors [C, d]"
        )
    vectors = algorithm.classifier(state, {})
    if not isinstance(vectors, Tensor) or vectors.dim() != 2 or len(vectors) != classes:
        raise UserError(
            f"{name}: classifier must give the vectors [C, d] of {classes} classes, "
            f"and gives {_described(vectors)}"
        )


def _check_phases(name: str, algorithm: FedAvg, net: Net, epochs: int) -> None:
    phases: object = algorithm.phases(epochs)
    if not isinstance(phases, tuple | list) or not all(isinstance(phase, Phase) for phase in phases):
        raise UserError(f"{name}: phases must give a tuple of Phase, and gives {_described(phases)}")
    names = [parameter for parameter, _ in net.named_parameters() if parameter not in net.frozen]
    for phase in phases:
        if not any(phase.selects(parameter) for parameter in names):
            parts = ", ".join(dict.fromkeys(f"{parameter.split('.')[0]}." for parameter in names))
            raise UserError(
                f"{name}: a phase trains what begins with {phase.trains!r}, and no parameter does; "
                f"they begin with {parts}"
            )
        lost = [entry for entry in names if phase.selects(entry) and not algorithm.travels(entry)]
        if lost and not algorithm.keeps_model and not algorithm.pooled:
            raise UserError(
                f"{name}: trains {lost[0]}, which neither travels nor stays with its client, so that every "
                "visit begins with its first values again: keeps_model = True keeps it"
            )


def _described(value: object) -> str:
    return str(list(value.shape)) if isinstance(value, Tensor) else f"a {_kind(value)}"


def _kind(value: object) -> str:
    return type(value).__name__
