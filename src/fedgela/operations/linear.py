"""Linear layers with weights of each client's own, and with a ReLU after them if wanted."""

from typing import Any

import torch
from torch import Tensor

from fedgela.operations.dispatch import clients_of


@torch.library.custom_op("fedgela::linear", mutates_args=())
def linear(x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, relu: bool) -> Tensor:
    """y[g] = x[g] W[g]^T + b[g] for every client g, computed and returned in `dtype`.

    x [G, B, in], weight [G, out, in], bias [G, out].
    """
    from fedgela.operations.kernels.linear import forward

    return forward(x, weight, bias, dtype, relu)


@linear.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, relu: bool) -> Tensor:
    return x.new_empty(x.shape[0], x.shape[1], weight.shape[1], dtype=dtype)


@torch.library.custom_op("fedgela::linear_gradients", mutates_args=())
def linear_gradients(
    dy: Tensor, y: Tensor, x: Tensor, weight: Tensor, bias: bool, relu: bool, of_x: bool, of_weight: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, weight and bias; those that are not asked for are empty."""
    from fedgela.operations.kernels.linear import gradients

    return gradients(dy, y, x, weight, bias, relu, of_x, of_weight)


@linear_gradients.register_fake
def _(
    dy: Tensor, y: Tensor, x: Tensor, weight: Tensor, bias: bool, relu: bool, of_x: bool, of_weight: bool
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        x.new_empty(x.shape if of_x else 0),
        weight.new_empty(weight.shape if of_weight else 0),
        weight.new_empty(weight.shape[:2] if of_weight and bias else 0),
    )


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, bias, _, relu = inputs
    ctx.save_for_backward(x, weight, output)
    ctx.has_bias, ctx.relu = bias is not None, relu


def _gradients(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, y = ctx.saved_tensors
    of_x, of_weight = ctx.needs_input_grad[0], ctx.needs_input_grad[1] or ctx.needs_input_grad[2]
    dx, dweight, dbias = linear_gradients(dy, y, x, weight, ctx.has_bias, ctx.relu, of_x, of_weight)
    with_bias = of_weight and ctx.has_bias
    return dx if of_x else None, dweight if of_weight else None, dbias if with_bias else None, None, None


linear.register_autograd(_gradients, setup_context=_setup_context)


def _linear_stacked(
    info: Any,
    dims: tuple[int | None, ...],
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    dtype: torch.dtype,
    relu: bool,
) -> tuple[Tensor, int]:
    x, weight, bias = clients_of(info, dims, x, weight, bias)
    return linear(x, weight, bias, dtype, relu).unsqueeze(1), 0


torch.library.register_vmap("fedgela::linear", _linear_stacked)
