"""BatchNorm with the residual addition and the ReLU that follow it, as one operation on a GPU.

As separate operations each would read and write the whole batch again.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from fedgela.operations import dispatch

MOST_NUMBERS = 2**31  # entries of a tensor that our kernels' 32-bit offsets can address
MOST_CHANNELS = 16_384  # that our kernels have counters for


def normalise(layer: nn.Module, x: Tensor, residual: Tensor | None = None, relu: bool = True) -> Tensor:
    """The layer's normalisation of x, plus the residual, then a ReLU."""
    return _normalise(layer, x, residual, relu, fork=False)[0]


def normalise_and_fork(
    layer: nn.Module, x: Tensor, residual: Tensor | None = None, relu: bool = True
) -> tuple[Tensor, Tensor]:
    """The same result twice, for two readers, whose gradients the backward kernel adds up itself."""
    return _normalise(layer, x, residual, relu, fork=True)


def _normalise(
    layer: nn.Module, x: Tensor, residual: Tensor | None, relu: bool, fork: bool
) -> tuple[Tensor, Tensor]:
    if type(layer) is nn.BatchNorm2d and _fits(layer, x, residual):
        if layer.training:
            running = (layer.running_mean, layer.running_var, layer.num_batches_tracked)
            settings = (layer.eps, layer.momentum, relu, fork)
            y, again = _BatchNorm.apply(x, residual, layer.weight, layer.bias, running, *settings)  # type: ignore[no-untyped-call]
            return y, again
        if not torch.is_grad_enabled():
            y = _by_running_statistics(layer, x, residual, relu)
            return y, y
    y = layer(x)
    if residual is not None:
        y = y + residual
    y = F.relu(y) if relu else y
    return y, y


def _by_running_statistics(layer: nn.BatchNorm2d, x: Tensor, residual: Tensor | None, relu: bool) -> Tensor:
    from fedgela.operations.kernels.normalisation import by_statistics

    assert layer.running_mean is not None and layer.running_var is not None
    inverse = torch.rsqrt(layer.running_var + layer.eps)
    statistics = torch.stack((layer.running_mean, inverse))
    return by_statistics(x, residual, statistics, layer.weight, layer.bias, relu)


def _fits(layer: nn.BatchNorm2d, x: Tensor, residual: Tensor | None) -> bool:
    """Whether our kernels can do this. They are not used when compiling, since a compiler fuses by itself,
    nor under vmap, where every client has its own statistics."""
    return (
        not torch.compiler.is_compiling()
        and dispatch.by_kernels(x)
        and not dispatch.transformed()
        and layer.affine
        and layer.track_running_stats
        and layer.momentum is not None
        and layer.weight.dtype == torch.float32
        and x.dtype in (torch.float32, torch.bfloat16)
        and x.shape[1] < x.numel() < MOST_NUMBERS  # a single value a channel has no variance: torch's error
        and x.shape[1] <= MOST_CHANNELS
        and _is_channels_last(x)
        and (residual is None or residual.dtype == x.dtype)
        and (residual is None or (residual.shape == x.shape and _is_channels_last(residual)))
    )


def _is_channels_last(x: Tensor) -> bool:
    return x.is_contiguous(memory_format=torch.channels_last)


class _BatchNorm(torch.autograd.Function):
    """An autograd function, since an operation of torch.library that changes its arguments, here the running
    statistics, cannot have gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        residual: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        running: tuple[Tensor, Tensor, Tensor],
        eps: float,
        momentum: float,
        relu: bool,
        fork: bool,
    ) -> tuple[Tensor, Tensor | None]:
        from fedgela.operations.kernels.normalisation import forward

        y, statistics = forward(x, residual, weight, bias, running, eps, momentum, relu)
        ctx.save_for_backward(x, None if residual is None else y, statistics, weight, bias)
        ctx.relu = relu
        ctx.set_materialize_grads(False)
        return y, y.detach() if fork else None

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *slopes: Tensor | None) -> tuple[Tensor | None, ...]:
        from fedgela.operations.kernels.normalisation import gradients

        x, y, statistics, weight, bias = ctx.saved_tensors
        there = [dy.contiguous(memory_format=torch.channels_last) for dy in slopes if dy is not None]
        if not there:
            return (None,) * 9
        dy, also = there if len(there) == 2 else (there[0], None)
        dx, dz, dweight, dbias = gradients(dy, also, y, x, statistics, weight, bias, ctx.relu)
        return dx, None if y is None else dz, dweight, dbias, None, None, None, None, None
