"""Other weights, lent to a net while it computes, as lanes do it: held against plain PyTorch, where a net has
them for its own. What differs there would train wrongly and say nothing."""

import contextlib
import copy
import warnings
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedgela.inputs import InputSpec
from fedgela.models.net import State
from fedgela.randomness import seed_torch

SAMPLES = 4  # fewer have no slopes below a BatchNorm
RELATIVE = 1e-2  # of rounding there is far less, of other weights far more
LARGER, SMALLER = 1.25, 0.8  # than a net's own weights


def samples_of(spec: InputSpec) -> Tensor:
    """As a net is given them, drawn, and always the same."""
    draw = torch.Generator().manual_seed(0)
    if spec.kind == "tokens":
        return torch.randint(spec.vocabulary, (SAMPLES, *spec.shape), generator=draw)
    return torch.randn(SAMPLES, *spec.shape, generator=draw)


def takes_weights(net: nn.Module, x: Tensor) -> bool:
    """Whether a copy of it computes and learns with the weights that are lent to it. Not where it reads its
    parameters elsewhere than in its modules (a list, a lambda that holds the net which it was made for),
    computes once more in the backward pass (activation checkpoints), or has hooks on its parameters."""
    if any(p._backward_hooks or p._post_accumulate_grad_hooks for p in net.parameters()):
        return False
    there = copy.deepcopy(net).train()
    own = [p for p in (*net.parameters(), *there.parameters()) if p.requires_grad]
    weights = _scaled(net, LARGER)
    lent = list(weights.values())
    try:
        expected = _plain(net, weights, x)  # before the net may change what is lent to it
        with _seeded():
            z: Tensor = functional_call(there, weights, (x,))
            found = _slopes(z, [*lent, *own])
        unreached = not any(slope.any() for slope in found[len(lent) :])
        return unreached and _alike([z, *found[: len(lent)]], expected)
    except Exception:  # whatever it is, the plain engine can do without
        return False


def stacks(net: nn.Module, x: Tensor) -> bool:
    """Whether two clients' nets can go forward and backward as one. Not where a tensor's values decide what
    is computed, as in `if x.max() > 1`, and not where vmap computes something else, as it runs no module's
    hooks on the way back."""
    there = copy.deepcopy(net).train()
    two = [_scaled(net, LARGER), _scaled(net, SMALLER)]
    inputs = [x, x.flip(0)]
    of_two = {
        name: torch.stack([weights.get(name, value).detach() for weights in two])
        for name, value in there.state_dict().items()
    }
    trained = [of_two[name].requires_grad_() for name in two[0]]

    def features(weights: State, x: Tensor) -> Tensor:
        z: Tensor = functional_call(there, weights, (x,))
        return z

    try:
        with warnings.catch_warnings(action="ignore"), _seeded():  # warnings of what vmap is slow at
            z = vmap(features, randomness="different")(of_two, torch.stack(inputs))
            found = [z, *_slopes(z, trained)]
        return all(
            _alike([value[i] for value in found], _plain(net, weights, inputs[i]))
            for i, weights in enumerate(two)
        )
    except Exception:  # whatever it is, such a net trains its clients one by one
        return False


@torch.no_grad()
def answers_by_its_past(net: nn.Module, x: Tensor) -> bool:
    """Whether its answers in evaluation depend on what it has done before, and not on its state alone: it has
    kept something of its former weights, or counted its steps in an attribute."""
    state = {**copy.deepcopy(net.state_dict()), **_scaled(net, LARGER)}
    asked, trained = copy.deepcopy(net).eval(), copy.deepcopy(net).train()
    with _seeded():
        for one in (asked, trained):
            one(x)
            for name, value in one.state_dict().items():
                value.copy_(state[name])
        return not _alike([asked(x)], [trained.eval()(x)])


def _plain(net: nn.Module, weights: State, x: Tensor) -> list[Tensor]:
    """What comes out of a net that has these weights for its own, and what they learn from it."""
    plain = copy.deepcopy(net).train()
    with torch.no_grad():
        for name, parameter in plain.named_parameters():
            parameter.copy_(weights[name])
    plain.requires_grad_()
    with _seeded():
        z = plain(x)
        return [z, *_slopes(z, list(plain.parameters()))]


def _slopes(z: Tensor, weights: Sequence[Tensor]) -> list[Tensor]:
    """Of a sum of the features, each with a factor of its own: all together have none after a LayerNorm."""
    if not (weights and z.requires_grad):
        return [torch.zeros_like(weight) for weight in weights]
    shape = z.shape[-2:]
    factors = torch.arange(shape.numel(), dtype=z.dtype).cos().view(shape)
    return list(torch.autograd.grad((z * factors).sum(), weights, materialize_grads=True))


def _scaled(net: nn.Module, factor: float) -> State:
    return {name: (factor * p.detach()).requires_grad_() for name, p in net.named_parameters()}


def _alike(found: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    scale = max(float(value.detach().abs().max()) for value in expected if value.numel())
    return all(
        torch.allclose(one, other, rtol=RELATIVE, atol=0.1 * RELATIVE * scale, equal_nan=True)
        for one, other in zip(found, expected, strict=True)
    )


@contextlib.contextmanager
def _seeded() -> Iterator[None]:
    """For a net that draws: the same draws each time."""
    with torch.random.fork_rng(devices=[]):
        seed_torch(0)
        yield
