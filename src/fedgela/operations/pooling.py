"""2x2 max pooling, with a ReLU after it if wanted."""

from typing import Any

import torch
from torch import Tensor

from fedgela.operations.dispatch import in_front


@torch.library.custom_op("fedgela::pool", mutates_args=())
def pool(x: Tensor, relu: bool = False) -> tuple[Tensor, Tensor]:
    """2x2 max pooling of [..., H, W], and which pixel of each window it took, int8; -1 where the ReLU gives
    zero, and no pixel gets a gradient."""
    from fedgela.operations.kernels import pooling

    return pooling.pool(x, relu)


@pool.register_fake
def _(x: Tensor, relu: bool = False) -> tuple[Tensor, Tensor]:
    y = x.new_empty(*x.shape[:-2], x.shape[-2] // 2, x.shape[-1] // 2)
    return y, torch.empty_like(y, dtype=torch.int8)


@torch.library.custom_op("fedgela::pool_gradient", mutates_args=())
def pool_gradient(dy: Tensor, which: Tensor, H: int, W: int) -> Tensor:
    from fedgela.operations.kernels import pooling

    return pooling.pool_gradient(dy, which, H, W)


@pool_gradient.register_fake
def _(dy: Tensor, which: Tensor, H: int, W: int) -> Tensor:
    return dy.new_empty(*dy.shape[:-2], H, W)


def _setup_context(ctx: Any, inputs: tuple[Tensor, bool], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[1])
    ctx.set_materialize_grads(False)  # no zeros as the slope of `which`
    ctx.size = inputs[0].shape[-2:]


def _gradient(ctx: Any, dy: Tensor, _: None) -> tuple[Tensor, None]:
    [which] = ctx.saved_tensors
    return pool_gradient(dy, which, *ctx.size), None


def _pool_stacked(
    info: Any, dims: tuple[int | None, ...], x: Tensor, relu: bool = False
) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
    """Every image is pooled on its own, so clients are only one more dimension of images."""
    return pool(in_front(x, dims[0], info), relu), (0, 0)


pool.register_autograd(_gradient, setup_context=_setup_context)
torch.library.register_vmap("fedgela::pool", _pool_stacked)
