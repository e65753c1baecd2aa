"""Tests whether a user's own net computes rightly with weights that are lent to it, as lanes do.

Lanes run one net with each client's weights, by `functional_call` and `vmap`. Here a net is tried in this way
and compared with plain PyTorch, where the weights are its own: a net for which the two differ would train
wrongly, without any error.
"""

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

SAMPLES = 4  # with fewer, gradients below a BatchNorm may be zero
RELATIVE = 1e-2  # tolerance: rounding makes far smaller differences, other weights far larger ones
LARGER, SMALLER = 1.25, 0.8  # factors of the net's weights, for weights that differ from its own


def samples_of(spec: InputSpec) -> Tensor:
    """Random inputs for a net, always the same ones."""
    draw = torch.Generator().manual_seed(0)
    if spec.kind == "tokens":
        return torch.randint(spec.vocabulary, (SAMPLES, *spec.shape), generator=draw)
    return torch.randn(SAMPLES, *spec.shape, generator=draw)


def takes_weights(net: nn.Module, x: Tensor) -> bool:
    """Whether a copy of the net computes with weights that are lent to it, and gives gradients to these.

    It does not where it reads its parameters from elsewhere than its modules (from a list, or in a lambda
    that refers to the original net), computes again in the backward pass (activation checkpoints), or has
    hooks on its parameters.
    """
    if any(p._backward_hooks or p._post_accumulate_grad_hooks for p in net.parameters()):
        return False
    there = copy.deepcopy(net).train()
    own = [p for p in (*net.parameters(), *there.parameters()) if p.requires_grad]
    weights = _scaled(net, LARGER)
    lent = list(weights.values())
    try:
        expected = _plain(net, weights, x)  # first, since the net may change weights that are lent to it
        with _seeded():
            z: Tensor = functional_call(there, weights, (x,))
            found = _slopes(z, [*lent, *own])
        unreached = not any(slope.any() for slope in found[len(lent) :])
        return unreached and _alike([z, *found[: len(lent)]], expected)
    except Exception:  # whatever it is: the plain engine lends no weights
        return False


def stacks(net: nn.Module, x: Tensor) -> bool:
    """Whether vmap can run the net forward and backward for two clients at once, with the right results.

    It cannot where a tensor's values decide what is computed, as in `if x.max() > 1`, and it computes
    something else where a module has backward hooks, which vmap does not run.
    """
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
        with warnings.catch_warnings(action="ignore"), _seeded():  # vmap warns of operations it is slow at
            z = vmap(features, randomness="different")(of_two, torch.stack(inputs))
            found = [z, *_slopes(z, trained)]
        return all(
            _alike([value[i] for value in found], _plain(net, weights, inputs[i]))
            for i, weights in enumerate(two)
        )
    except Exception:  # whatever it is: clients are trained one by one then
        return False


@torch.no_grad()
def answers_by_its_past(net: nn.Module, x: Tensor) -> bool:
    """Whether the net's output in evaluation depends on more than its state: on something that it has kept of
    earlier weights, say, or on an attribute in which it counts its steps."""
    state = {**copy.deepcopy(net.state_dict()), **_scaled(net, LARGER)}
    asked, trained = copy.deepcopy(net).eval(), copy.deepcopy(net).train()
    with _seeded():
        for one in (asked, trained):
            one(x)
            for name, value in one.state_dict().items():
                value.copy_(state[name])
        return not _alike([asked(x)], [trained.eval()(x)])


@torch.no_grad()
def one_by_one(net: nn.Module, x: Tensor) -> list[Tensor]:
    """The net's output in evaluation for each sample alone."""
    asked = copy.deepcopy(net).eval()
    return [asked(one) for one in torch.split(x, 1)]


@torch.no_grad()
def mixes_samples(net: nn.Module, x: Tensor, alone: Sequence[Tensor]) -> bool:
    """Whether what the net gives for a sample in evaluation depends on the others of its batch."""
    return not _alike([torch.cat(list(alone))], [copy.deepcopy(net).eval()(x)])


def _plain(net: nn.Module, weights: State, x: Tensor) -> list[Tensor]:
    """The output of a net that has these weights for its own, and their gradients."""
    plain = copy.deepcopy(net).train()
    with torch.no_grad():
        for name, parameter in plain.named_parameters():
            parameter.copy_(weights[name])
    plain.requires_grad_()
    with _seeded():
        z = plain(x)
        return [z, *_slopes(z, list(plain.parameters()))]


def _slopes(z: Tensor, weights: Sequence[Tensor]) -> list[Tensor]:
    """The gradients of a sum of the features z. Each has its own factor in the sum, since after a LayerNorm
    the plain sum is constant."""
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
    """Within it a net that draws random numbers draws the same ones every time."""
    with torch.random.fork_rng(devices=[]):
        seed_torch(0)
        yield
