"""How a round's updates become one where a few clients may be broken, and the server's own step.

mean                 the method's own: weighted by p_k, the default
median               coordinate-wise: Yin et al., Byzantine-Robust Distributed Learning: Towards Optimal
                     Statistical Rates, ICML 2018
trimmed:F            coordinate-wise, the mean without the share F of the values at either end, rounded up
                     where enough are left: the same paper
krum:M               multi-Krum, for at most M broken clients: the mean of the K - M updates that are nearest
                     to their K - M - 2 nearest: Blanchard et al., Machine Learning with Adversaries,
                     NeurIPS 2017
clipped              every change w_k - w is cut to the round's median length: Sun et al., Can You Really
                     Backdoor Federated Learning?, 2019

Under all of them but the mean clients count alike, whatever the papers have: n_k is what a client says of
itself, and one that says a billion would be the mean. Lengths and distances are those of all parameters
together. Entries that are no parameters, which are BatchNorm's running statistics, have another scale, and a
variance that is too small breaks a net: of them every rule takes the coordinate-wise median.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial
from itertools import combinations
from math import ceil

import torch
from torch import Tensor

from fedgela.algorithms import FedAvg, ServerState, Update
from fedgela.errors import UserError
from fedgela.measures import distance
from fedgela.models import State

# (the parameters of the global model before, those of every client) -> those of the global model after
Combine = Callable[[State, Sequence[State]], State]


@dataclass(frozen=True)
class Rule:
    name: str
    combine: Combine
    least: int  # updates without which it protects nobody

    def together(self, before: State, updates: Sequence[Update], buffers: Collection[str]) -> Update | None:
        """All updates as one, or None where there are too few. One that is no finite number is left out, as
        a federation does with it at the door. `buffers` are the entries that are no parameters."""
        models = [update.model for update in updates if _is_finite(update.model)]
        if len(models) < self.least:
            return None
        floats = [name for name, value in models[0].items() if value.is_floating_point()]

        def part(state: State, of_buffers: bool) -> State:
            return {name: state[name] for name in floats if (name in buffers) == of_buffers}

        combined = self.combine(part(before, False), [part(model, False) for model in models])
        statistics = _median(before, [part(model, True) for model in models])
        samples = sum(update.samples for update in updates)
        return Update(updates[0].client, samples, {**combined, **statistics})


def parse_aggregation(text: str) -> Rule | None:
    """The rule of this name; None for the mean."""
    kind, *values = text.split(":")
    try:
        if kind == "mean" and not values:
            return None
        if kind in PLAIN and not values:
            return Rule(text, PLAIN[kind], least=3)
        if kind == "trimmed" and len(values) == 1 and 0 < Decimal(values[0]) < Decimal("0.5"):
            return Rule(text, partial(_trimmed, Decimal(values[0])), least=3)
        if kind == "krum" and len(values) == 1 and int(values[0]) > 0:
            return Rule(text, partial(_krum, int(values[0])), least=2 * int(values[0]) + 3)
    except (ValueError, ArithmeticError):
        pass
    raise ValueError(
        f"updates are aggregated by 'mean', {', '.join(map(repr, PLAIN))}, 'trimmed:F' with F above 0 and "
        f"below 0.5, or 'krum:M' with M of 1 or more, not {text!r}"
    )


def check_rule(rule: Rule, algorithm: FedAvg, clients: int) -> None:
    """A UserError where a rule cannot do what it is for, with so many clients a round."""
    if algorithm.shares() is not None or type(algorithm).sends is not FedAvg.sends:
        raise UserError(
            f"aggregation: {rule.name} looks at weights, and with {algorithm.title} clients send more than "
            'these; leave it at "mean"'
        )
    if clients < rule.least:
        raise UserError(
            f"aggregation: {rule.name} needs at least {rule.least} clients a round to outvote broken ones, "
            f"not {clients}"
        )


def server_step(
    before: ServerState, after: ServerState, parameters: Collection[str], lr: float, momentum: float
) -> ServerState:
    """FedAvgM: Hsu et al., Measuring the Effects of Non-Identical Data Distribution for Federated Visual
    Classification, 2019. What averaging has changed in the parameters is the server's gradient."""
    model, private = dict(after.model), dict(after.private)
    for name in parameters:
        change = before.model[name] - after.model[name]
        if momentum > 0:
            held = before.private.get(f"momentum/{name}")
            if held is not None:
                change = momentum * held + change
            private[f"momentum/{name}"] = change
        model[name] = before.model[name] - lr * change
    return replace(after, model=model, private=private)


def _is_finite(model: State) -> bool:
    return all(bool(value.isfinite().all()) for value in model.values())


# -- the rules -------------------------------------------------------------------------------------


def _median(before: State, models: Sequence[State]) -> State:
    return _without_ends(models, _half(models))


def _trimmed(share: Decimal, before: State, models: Sequence[State]) -> State:
    """Rounded up: with nine of ten clients there, two of whom are broken, a fifth is two as well."""
    return _without_ends(models, min(ceil(share * len(models)), _half(models)))


def _krum(broken: int, before: State, models: Sequence[State]) -> State:
    """Of equally good updates those of the first clients are taken."""
    K = len(models)
    apart = torch.zeros(K, K, dtype=torch.float64)
    for i, j in combinations(range(K), 2):
        apart[i, j] = apart[j, i] = distance(models[i], models[j]).square()
    nearest = apart.sort(dim=1).values[:, 1 : K - broken - 1]  # the first is the update itself
    chosen = nearest.sum(dim=1).argsort(stable=True)[: K - broken]
    return _weighted([models[k] for k in sorted(chosen.tolist())], torch.ones(K - broken))


def _clipped(before: State, models: Sequence[State]) -> State:
    lengths = torch.stack([distance(model, before).cpu() for model in models])
    shares = (lengths.median() / lengths.clamp(min=torch.finfo().tiny)).clamp(max=1)
    # w + mean of s_k (w_k - w), as a mean in which w itself stands in for what is cut
    return _weighted([*models, before], torch.cat([shares, (1 - shares).sum()[None]]))


def _half(models: Sequence[State]) -> int:
    """The most that can be cut at either end so that something is left."""
    return (len(models) - 1) // 2


PLAIN: dict[str, Combine] = {"median": _median, "clipped": _clipped}


def _without_ends(models: Sequence[State], cut: int) -> State:
    """The coordinate-wise mean without the `cut` smallest values and the `cut` largest."""
    combined = {}
    for name, first in models[0].items():
        ordered = torch.stack([model[name] for model in models]).sort(dim=0).values
        combined[name] = ordered[cut : len(models) - cut].double().mean(dim=0).to(first.dtype)
    return combined


def _weighted(models: Sequence[State], weights: Tensor) -> State:
    """The mean with these weights."""
    shares = (weights.double() / weights.double().sum()).tolist()
    combined = {}
    for name, first in models[0].items():
        total = torch.zeros_like(first, dtype=torch.float64)
        for model, share in zip(models, shares, strict=True):
            total.add_(model[name], alpha=share)
        combined[name] = total.to(first.dtype)
    return combined
