"""A user's own method, held against what is asked of one: before a run begins it is tried on two samples of
zeros, and the server's state that it makes of a round is looked at before it is taken over."""

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
from fedgela.models import Net, State
from fedgela.models.own import two_samples


@torch.no_grad()
def check_method(algorithm: FedAvg, net: Net, spec: InputSpec, classes: int, epochs: int) -> None:
    """A UserError where its head, predictions or phases are not what they must be for this net and data."""
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
    """The server's next state. A user's own method may change in place what it is given: it gets copies,
    since the best model so far, and what clients keep, may be the same tensors."""
    given = server
    if name_of(algorithm) not in ALGORITHMS:
        given = ServerState(*(_copied(state) for state in (server.model, server.extra, server.private)))
        updates = [replace(update, model=_copied(update.model)) for update in updates]
    return check_aggregated(algorithm, server, algorithm.aggregate(given, updates, moment))


def given(algorithm: FedAvg, last: State) -> State:
    """A client's last model, for its method. A user's own may change it in place: it gets a copy, since the
    model itself may be on its way to the disk."""
    return last if name_of(algorithm) in ALGORITHMS else _copied(last)


def check_aggregated(algorithm: FedAvg, before: ServerState, after: object) -> ServerState:
    """The server's next state, if it is one."""
    if not isinstance(after, ServerState):
        raise UserError(f"{name_of(algorithm)}: aggregate must give a ServerState, not a {_kind(after)}")
    for entry in sorted(before.model.keys() | after.model.keys()):
        was, now = (
            _found(state.model[entry]) if entry in state.model else "none" for state in (before, after)
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
    client = {k: v.to(x.device) for k, v in (algorithm.client_vectors(counts, extra) | extra).items()}
    _check_logits(name, "predict_personal", algorithm.predict_personal(net, x, client), classes)


def _check_vectors(name: str, algorithm: FedAvg, extra: State, classes: int) -> None:
    """Samples of clients that have not trained yet are predicted in one batch, a row of vectors a sample."""
    counts = torch.stack([torch.arange(classes), torch.ones(classes, dtype=torch.int64)])
    together = algorithm.client_vectors(counts, extra)
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
            f"and gives {_found(logits)}"
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
            f"and gives {_found(vectors)}"
        )


def _check_phases(name: str, algorithm: FedAvg, net: Net, epochs: int) -> None:
    phases: object = algorithm.phases(epochs)
    if not isinstance(phases, tuple | list) or not all(isinstance(phase, Phase) for phase in phases):
        raise UserError(f"{name}: phases must give a tuple of Phase, and gives {_found(phases)}")
    names = [parameter for parameter, _ in net.named_parameters() if parameter not in net.frozen]
    for phase in phases:
        if not any(phase.selects(parameter) for parameter in names):
            parts = ", ".join(dict.fromkeys(f"{parameter.split('.')[0]}." for parameter in names))
            raise UserError(
                f"{name}: a phase trains what begins with {phase.trains!r}, and no parameter does; "
                f"they begin with {parts}"
            )


def _copied(state: State) -> State:
    return {name: value.clone() for name, value in state.items()}


def _found(value: object) -> str:
    return str(list(value.shape)) if isinstance(value, Tensor) else f"a {_kind(value)}"


def _kind(value: object) -> str:
    return type(value).__name__
