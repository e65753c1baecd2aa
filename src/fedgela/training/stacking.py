"""Layers whose weights differ from client to client: clients become one more dimension of the batch.

vmap turns such a convolution into a grouped one, for which the GPU's libraries have no good kernels when a
client has few channels: ours (triton_kernels.py) take the client as a dimension of their grid. And it takes
a linear layer apart into more operations than it needs.
"""

import importlib.util
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

MOST_CHANNELS = 32  # of a layer that our kernels are made for; the libraries are good from 64 on


# -- convolutions ----------------------------------------------------------------------------------


@torch.library.custom_op("fedgela::convolve", mutates_args=())
def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, padding: int) -> Tensor:
    """y[g,b,o] = bias[g,o] + sum_c x[g,b,c] * weight[g,o,c], of stride 1, for every client g.

    x [G, B, C, H, W], weight [G, O, C, k, k], bias [G, O].
    """
    from fedgela.training.triton_kernels import forward

    return forward(x, weight, bias, padding)


@convolve.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None, padding: int) -> Tensor:
    G, B, _, H, W = x.shape
    shrink = weight.shape[3] - 1 - 2 * padding
    return x.new_empty(G, B, weight.shape[1], H - shrink, W - shrink)


@torch.library.custom_op("fedgela::convolve_input_gradient", mutates_args=())
def input_gradient(dy: Tensor, weight: Tensor, padding: int) -> Tensor:
    """A full convolution of dy with the flipped weights."""
    from fedgela.training.triton_kernels import forward

    return forward(dy, weight, None, weight.shape[3] - 1 - padding, flipped=True)


@input_gradient.register_fake
def _(dy: Tensor, weight: Tensor, padding: int) -> Tensor:
    G, B, _, H, W = dy.shape
    grow = weight.shape[3] - 1 - 2 * padding
    return dy.new_empty(G, B, weight.shape[2], H + grow, W + grow)


@torch.library.custom_op("fedgela::convolve_weight_gradient", mutates_args=())
def weight_gradient(dy: Tensor, x: Tensor, weight: Tensor, padding: int) -> tuple[Tensor, Tensor]:
    """The gradients of weight and bias."""
    from fedgela.training import triton_kernels

    return triton_kernels.weight_gradient(dy, x, weight, padding)


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
    """vmap's rule: [clients, 1, ...] of each becomes [clients, ...]. Squeezed, not indexed: the gradient of
    an index is a copy into zeros."""
    x, weight = (
        _in_front(value, dim, info).squeeze(1) for value, dim in zip((x, weight), dims, strict=False)
    )
    if bias is not None:
        bias = _in_front(bias, dims[2], info).squeeze(1)
    return convolve(x, weight, bias, padding).unsqueeze(1), 0


torch.library.register_vmap("fedgela::convolve", _convolve_stacked)


def _in_front(value: Tensor, dim: int | None, info: Any) -> Tensor:
    return value.expand(info.batch_size, *value.shape) if dim is None else value.movedim(dim, 0)


class ClientConv2d(nn.Conv2d):
    """nn.Conv2d by `convolve` on a GPU; elsewhere itself."""

    def forward(self, input: Tensor) -> Tensor:
        if not input.is_cuda:
            return super().forward(input)
        if torch.is_autocast_enabled("cuda"):
            input = input.to(torch.get_autocast_dtype("cuda"))
        bias = None if self.bias is None else self.bias[None]
        y: Tensor = convolve(input[None], self.weight[None], bias, int(self.padding[0]))
        return y.squeeze(0)


def fits(layer: nn.Conv2d) -> bool:
    """Whether our kernels can do this layer, and are good at it."""
    return (
        max(layer.in_channels, layer.out_channels) <= MOST_CHANNELS
        and layer.groups == 1
        and layer.stride == (1, 1)
        and layer.dilation == (1, 1)
        and layer.padding_mode == "zeros"
        and not isinstance(layer.padding, str)
        and layer.kernel_size[0] == layer.kernel_size[1] > layer.padding[0] == layer.padding[1]
    )


# -- pooling ---------------------------------------------------------------------------------------


@torch.library.custom_op("fedgela::pool", mutates_args=())
def pool(x: Tensor) -> tuple[Tensor, Tensor]:
    """2x2 max pooling of [..., H, W], and which pixel of each window it took, int8."""
    from fedgela.training import triton_kernels

    return triton_kernels.pool(x)


@pool.register_fake
def _(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.new_empty(*x.shape[:-2], x.shape[-2] // 2, x.shape[-1] // 2)
    return y, torch.empty_like(y, dtype=torch.int8)


@torch.library.custom_op("fedgela::pool_gradient", mutates_args=())
def pool_gradient(dy: Tensor, which: Tensor, H: int, W: int) -> Tensor:
    from fedgela.training import triton_kernels

    return triton_kernels.pool_gradient(dy, which, H, W)


@pool_gradient.register_fake
def _(dy: Tensor, which: Tensor, H: int, W: int) -> Tensor:
    return dy.new_empty(*dy.shape[:-2], H, W)


def _setup_pool(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[1])
    ctx.size = inputs[0].shape[-2:]


def _pool_gradient(ctx: Any, dy: Tensor, _: Tensor) -> Tensor:
    [which] = ctx.saved_tensors
    dx: Tensor = pool_gradient(dy, which, *ctx.size)
    return dx


pool.register_autograd(_pool_gradient, setup_context=_setup_pool)
# images are pooled one by one: clients are only more of them
torch.library.register_vmap("fedgela::pool", lambda info, dims, x: (pool(x.movedim(dims[0], 0)), (0, 0)))


class ClientMaxPool2d(nn.MaxPool2d):
    """nn.MaxPool2d by `pool` on a GPU; elsewhere itself."""

    def forward(self, input: Tensor) -> Tensor:
        y: Tensor = pool(input)[0] if input.is_cuda else super().forward(input)
        return y


def halves(layer: nn.MaxPool2d) -> bool:
    """Whether it is the usual 2x2 pooling."""
    plain = (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
    return plain == (2, 2, 0, 1) and not layer.ceil_mode and not layer.return_indices


# -- linear layers ---------------------------------------------------------------------------------


class _Linear(torch.autograd.Function):
    """x W^T + b, x [B, in]; stacked over clients one batched product each for y, dx and dW."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.linear(x, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return dy.mm(weight), dy.t().mm(x), dy.sum(dim=0)

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], *inputs: Tensor) -> tuple[Tensor, int]:
        x, weight, bias = (_in_front(value, dim, info) for value, dim in zip(inputs, dims, strict=True))
        return _StackedLinear.apply(x, weight, bias), 0  # type: ignore[no-untyped-call]


class _StackedLinear(torch.autograd.Function):
    """The same of [v, B, in], [v, out, in] and [v, out]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch.baddbmm(bias[:, None], x, weight.mT)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        dx = dy.bmm(weight) if ctx.needs_input_grad[0] else None
        # in the weight's own layout, so that nothing is copied when it is kept
        return dx, dy.mT.bmm(x), dy.sum(dim=1)


class ClientLinear(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        if self.bias is None or input.dim() != 2:
            return super().forward(input)
        kind = input.device.type
        weight: Tensor = self.weight
        bias: Tensor = self.bias
        if torch.is_autocast_enabled(kind):
            dtype = torch.get_autocast_dtype(kind)
            input, weight, bias = input.to(dtype), weight.to(dtype), bias.to(dtype)
        y: Tensor = _Linear.apply(input, weight, bias)  # type: ignore[no-untyped-call]
        return y


# -- nets ------------------------------------------------------------------------------------------


def make_stackable(net: nn.Module) -> None:
    """Let the net's layers run by the ones of this file, where they can."""
    kernels = importlib.util.find_spec("triton") is not None
    for part in net.modules():
        if type(part) is nn.Conv2d and kernels and fits(part):
            part.__class__ = ClientConv2d
        elif type(part) is nn.MaxPool2d and kernels and halves(part):
            part.__class__ = ClientMaxPool2d
        elif type(part) is nn.Linear:
            part.__class__ = ClientLinear
