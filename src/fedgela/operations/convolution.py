"""Convolutions with weights of each client's own, and with 2x2 max pooling after them if wanted."""

from typing import Any

import torch
from torch import Tensor

from fedgela.operations.dispatch import clients_of

MOST_TAPS = 25  # kernel size up to which a window fits into a thread's registers


@torch.library.custom_op("fedgela::convolve", mutates_args=())
def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, padding: int) -> Tensor:
    """y[g,b,o] = bias[g,o] + sum_c x[g,b,c] * weight[g,o,c], of stride 1, for every client g.

    x [G, B, C, H, W], weight [G, O, C, k, k], bias [G, O].
    """
    from fedgela.operations.kernels.convolution import forward

    return forward(x, weight, bias, padding)


@convolve.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None, padding: int) -> Tensor:
    G, B, _, H, W = x.shape
    shrink = weight.shape[3] - 1 - 2 * padding
    return x.new_empty(G, B, weight.shape[1], H - shrink, W - shrink)


@torch.library.custom_op("fedgela::convolve_input_gradient", mutates_args=())
def input_gradient(dy: Tensor, weight: Tensor, padding: int) -> Tensor:
    """A full convolution of dy with the flipped weights."""
    from fedgela.operations.kernels.convolution import forward

    return forward(dy, weight, None, weight.shape[3] - 1 - padding, flipped=True)


@input_gradient.register_fake
def _(dy: Tensor, weight: Tensor, padding: int) -> Tensor:
    G, B, _, H, W = dy.shape
    grow = weight.shape[3] - 1 - 2 * padding
    return dy.new_empty(G, B, weight.shape[2], H + grow, W + grow)


@torch.library.custom_op("fedgela::convolve_weight_gradient", mutates_args=())
def weight_gradient(dy: Tensor, x: Tensor, weight: Tensor, padding: int) -> tuple[Tensor, Tensor]:
    """The gradients of weight and bias."""
    from fedgela.operations.kernels import convolution

    return convolution.weight_gradient(dy, x, weight, padding)


@weight_gradient.register_fake
def _(dy: Tensor, x: Tensor, weight: Tensor, padding: int) -> tuple[Tensor, Tensor]:
    return weight.new_empty(weight.shape), weight.new_empty(weight.shape[:2])


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, bias, padding = inputs
    ctx.save_for_backward(x, weight)
    ctx.padding, ctx.has_bias = padding, bias is not None


def _gradients(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    dy = dy.contiguous()
    dx = dweight = dbias = None
    if ctx.needs_input_grad[0]:
        dx = input_gradient(dy, weight, ctx.padding)
    if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
        dweight, dbias = weight_gradient(dy, x, weight, ctx.padding)
    return dx, dweight, dbias if ctx.has_bias else None, None


convolve.register_autograd(_gradients, setup_context=_setup_context)


def _convolve_stacked(
    info: Any, dims: tuple[int | None, ...], x: Tensor, weight: Tensor, bias: Tensor | None, padding: int
) -> tuple[Tensor, int]:
    x, weight, bias = clients_of(info, dims, x, weight, bias)
    return convolve(x, weight, bias, padding).unsqueeze(1), 0


torch.library.register_vmap("fedgela::convolve", _convolve_stacked)


@torch.library.custom_op("fedgela::convolve_and_pool", mutates_args=())
def convolve_and_pool(
    x: Tensor, weight: Tensor, bias: Tensor | None, padding: int, relu: bool
) -> tuple[Tensor, Tensor]:
    """`pool` of `convolve`, without writing the intermediate result to memory."""
    from fedgela.operations.kernels.convolution import forward_and_pool

    return forward_and_pool(x, weight, bias, padding, relu)


@convolve_and_pool.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None, padding: int, relu: bool) -> tuple[Tensor, Tensor]:
    G, B, _, H, W = x.shape
    shrink = weight.shape[3] - 1 - 2 * padding
    y = x.new_empty(G, B, weight.shape[1], (H - shrink) // 2, (W - shrink) // 2)
    return y, torch.empty_like(y, dtype=torch.int8)


@torch.library.custom_op("fedgela::pooled_convolution_input_gradient", mutates_args=())
def input_gradient_of_pooled(
    dy: Tensor, which: Tensor, weight: Tensor, padding: int, H: int, W: int
) -> Tensor:
    from fedgela.operations.kernels import convolution

    return convolution.input_gradient_of_pooled(dy, which, weight, padding, H, W)


@input_gradient_of_pooled.register_fake
def _(dy: Tensor, which: Tensor, weight: Tensor, padding: int, H: int, W: int) -> Tensor:
    return dy.new_empty(*dy.shape[:2], weight.shape[2], H, W)


@torch.library.custom_op("fedgela::pooled_convolution_weight_gradient", mutates_args=())
def weight_gradient_of_pooled(
    dy: Tensor, which: Tensor, x: Tensor, weight: Tensor, padding: int
) -> tuple[Tensor, Tensor]:
    from fedgela.operations.kernels import convolution

    return convolution.weight_gradient(dy, x, weight, padding, which)


@weight_gradient_of_pooled.register_fake
def _(dy: Tensor, which: Tensor, x: Tensor, weight: Tensor, padding: int) -> tuple[Tensor, Tensor]:
    return weight.new_empty(weight.shape), weight.new_empty(weight.shape[:2])


def _setup_context_of_pooled(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, weight, bias, padding, _ = inputs
    ctx.save_for_backward(x, weight, output[1])
    ctx.set_materialize_grads(False)  # no zeros as the slope of `which`
    ctx.padding, ctx.has_bias = padding, bias is not None


def _gradients_of_pooled(ctx: Any, dy: Tensor, _: None) -> tuple[Tensor | None, ...]:
    x, weight, which = ctx.saved_tensors
    dx = dweight = dbias = None
    if ctx.needs_input_grad[0]:
        dx = input_gradient_of_pooled(dy, which, weight, ctx.padding, *x.shape[3:])
    if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
        dweight, dbias = weight_gradient_of_pooled(dy, which, x, weight, ctx.padding)
    return dx, dweight, dbias if ctx.has_bias else None, None, None


convolve_and_pool.register_autograd(_gradients_of_pooled, setup_context=_setup_context_of_pooled)


def _convolve_and_pool_stacked(
    info: Any,
    dims: tuple[int | None, ...],
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    padding: int,
    relu: bool,
) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
    x, weight, bias = clients_of(info, dims, x, weight, bias)
    y, which = convolve_and_pool(x, weight, bias, padding, relu)
    return (y.unsqueeze(1), which.unsqueeze(1)), (0, 0)


torch.library.register_vmap("fedgela::convolve_and_pool", _convolve_and_pool_stacked)
