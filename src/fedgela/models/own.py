"""A user's own torch.nn.Module as a backbone, by import path: `my_package.nets:TinyNet`."""

import copy
import inspect
import random
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from fedgela.errors import UserError
from fedgela.imports import load, told
from fedgela.inputs import InputSpec
from fedgela.models.lending import (
    answers_by_its_past,
    mixes_samples,
    one_by_one,
    samples_of,
    stacks,
    takes_weights,
)
from fedgela.models.net import Backbone, State


class OwnBackbone(Backbone):
    mixes = False  # whether its answer for a sample depends on the others of the batch

    def __init__(self, net: nn.Module, width: int) -> None:
        super().__init__(width)
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.net(x)
        return z

    def loadable(self) -> tuple[nn.Module, tuple[str, ...]]:
        return self.net, ("backbone.net.", "")


def own_maker(path: str) -> Callable[..., nn.Module]:
    """The class (or a function) at an import path that makes a module."""
    maker = load(path)
    if not callable(maker) or (isinstance(maker, type) and not issubclass(maker, nn.Module)):
        raise UserError(f"{path}: must be a torch.nn.Module class, not {_kind(maker)}")
    return maker


def own_backbone(path: str, spec: InputSpec) -> Backbone:
    """Make the net at an import path, and try it: a UserError where it cannot be trained as a backbone. What
    it can do is noted in the backbone's attributes, by which an engine is chosen."""
    maker = own_maker(path)
    arguments = (spec,) if _takes_spec(path, maker) else ()
    try:
        net = maker(*arguments)
    except Exception as error:
        raise UserError(f"{path}: cannot be made for {spec}: {told(error)}") from None
    if not isinstance(net, nn.Module):
        raise UserError(f"{path}: must give a torch.nn.Module, not {_kind(net)}")
    backbone = OwnBackbone(net, _width(path, net, spec))
    try:
        backbone.draws = draws(net, two_samples(spec))
    except Exception as error:
        raise UserError(f"{path}: fails in training mode on two samples: {told(error)}") from None
    _check_draws(path, net, two_samples(spec))
    x = samples_of(spec)
    try:
        _check_buffers(path, net, x)
        stale = answers_by_its_past(net, x)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{path}: fails on samples that are no zeros: {told(error)}") from None
    if stale:
        raise UserError(
            f"{path}: answers by what it keeps beside its state, a cache of weights or a count of steps, and "
            "would by another model's; a buffer is part of its state"
        )
    try:
        alone = one_by_one(net, x)
    except Exception as error:
        raise UserError(f"{path}: fails in evaluation on a single sample: {told(error)}") from None
    if list(alone[0].shape) != [1, backbone.width]:
        raise UserError(
            f"{path}: gives features {list(alone[0].shape)} of a single sample, instead of "
            f"[1, {backbone.width}]"
        )
    backbone.mixes = mixes_samples(net, x, alone)
    backbone.stacks = stacks(net, x)
    backbone.takes_weights = takes_weights(net, x)
    return backbone


def _takes_spec(path: str, maker: Callable[..., object]) -> bool:
    """Whether it is called with the InputSpec: it requires an argument, or has one that is called `spec`."""
    parameters = inspect.signature(maker).parameters
    required = [
        p.name
        for p in parameters.values()
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if len(required) > 1:
        raise UserError(
            f"{path}: takes {', '.join(required)}; it is called with one InputSpec, or with nothing: "
            "give the others defaults"
        )
    return bool(required) or "spec" in parameters


def _width(path: str, net: nn.Module, spec: InputSpec) -> int:
    """The width of the net's features; a UserError where it does not give any."""
    x = two_samples(spec)
    net.eval()
    try:
        with torch.no_grad():
            z = net(x)
    except Exception as error:
        raise UserError(f"{path}: fails on two samples {list(x.shape)}: {told(error)}") from None
    net.train()
    if not isinstance(z, Tensor) or z.dim() != 2 or len(z) != 2 or not z.is_floating_point():
        found = f"{z.dtype} {list(z.shape)}" if isinstance(z, Tensor) else _kind(z)
        raise UserError(f"{path}: must give features [B, width]; of two samples it gives {found}")
    if not z.isfinite().all():
        raise UserError(f"{path}: gives features that are no finite numbers, even of two samples of zeros")
    width = getattr(net, "width", z.shape[1])
    if width != z.shape[1]:
        raise UserError(f"{path}: its width is {width!r}, but it gives features {list(z.shape)}")
    return z.shape[1]


def two_samples(spec: InputSpec) -> Tensor:
    """Two samples of zeros, to try a net on."""
    return torch.zeros(2, *spec.shape, dtype=torch.int64 if spec.kind == "tokens" else torch.float32)


def draws(net: nn.Module, x: Tensor, training: bool = True) -> bool:
    """Whether the net draws random numbers in a forward pass, in training mode or else in evaluation:
    functional dropout, an LSTM's, stochastic depth. It is seen by the state of torch's generator."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        before = torch.get_rng_state()
        copy.deepcopy(net).train(training)(x)
        return not torch.equal(before, torch.get_rng_state())


def _check_draws(path: str, net: nn.Module, x: Tensor) -> None:
    """A UserError where the net draws numbers that a run could not repeat."""
    before = _other_generators()
    if draws(net, x, training=False):
        raise UserError(
            f"{path}: draws numbers in evaluation too, so that no two evaluations agree; "
            "F.dropout, say, takes training=self.training"
        )
    draws(net, x)
    if _other_generators() != before:
        raise UserError(
            f"{path}: draws by Python's random or by NumPy, which a run's seed does not reach; draw by torch"
        )


def _check_buffers(path: str, net: nn.Module, x: Tensor) -> None:
    """A UserError where training changes a buffer that is no part of the net's state: clients would share it,
    and checkpoints would lack it. A cache that does not change after the first pass does no harm."""
    there = copy.deepcopy(net).train()
    unkept = [name for name, _ in there.named_buffers() if name not in there.state_dict()]
    seen: list[State] = []
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        for part in torch.split(x, 2) if unkept else ():
            there(part)
            seen.append({name: there.get_buffer(name).clone() for name in unkept})
    for name in unkept:
        if not torch.equal(seen[0][name], seen[1][name]):
            raise UserError(
                f"{path}: changes {name} in training, a buffer that is no part of its state "
                "(persistent=False): clients would share it, and a resumed run would not have it"
            )


def _other_generators() -> tuple[object, ...]:
    """The states of Python's and NumPy's global random generators."""
    _, keys, place, *_ = np.random.get_state()  # noqa: NPY002 (the one that a net may have moved)
    return random.getstate(), np.asarray(keys).tobytes(), place


def _kind(thing: object) -> str:
    return f"the class {thing.__name__}" if isinstance(thing, type) else f"a {type(thing).__name__}"
