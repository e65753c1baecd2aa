"""Layers for several clients at once, each with its own weights: the client is one more dimension under vmap.

By itself vmap turns such a convolution into a grouped one, for which the GPU's libraries have no good kernels
when a client has few channels; ours (operations/) have the client as a dimension of their grid. And vmap
splits a linear layer into more operations than it needs.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedgela.operations import dispatch
from fedgela.operations.convolution import MOST_TAPS, convolve, convolve_and_pool
from fedgela.operations.dispatch import in_front
from fedgela.operations.linear import linear
from fedgela.operations.pooling import pool

MOST_CHANNELS = 32  # of a convolution for our kernels; the libraries' are good from 64 channels on
MOST_UNITS = 1024  # inputs or outputs of a linear layer for our kernels


class ClientConv2d(nn.Conv2d):
    """nn.Conv2d, computed by `convolve` on a GPU, where 2x2 max pooling and a ReLU can be done with it."""

    @property
    def casts(self) -> bool:
        """Whether it takes weights of any type, casting as it reads them."""
        return dispatch.by_kernels(self.weight)

    def forward(self, input: Tensor, pooled: bool = False, relu: bool = False) -> Tensor:
        if not dispatch.by_kernels(input):
            return super().forward(input)
        if torch.is_autocast_enabled("cuda"):
            input = input.to(torch.get_autocast_dtype("cuda"))
        bias = None if self.bias is None else self.bias[None]
        y: Tensor
        if pooled:
            y, _ = convolve_and_pool(input[None], self.weight[None], bias, int(self.padding[0]), relu)
        else:
            y = convolve(input[None], self.weight[None], bias, int(self.padding[0]))
        return y.squeeze(0)


def fits(layer: nn.Conv2d) -> bool:
    """Whether our kernels can do this layer, and are good at it."""
    return (
        max(layer.in_channels, layer.out_channels) <= MOST_CHANNELS
        and layer.kernel_size[0] * layer.kernel_size[1] <= MOST_TAPS
        and layer.groups == 1
        and layer.stride == (1, 1)
        and layer.dilation == (1, 1)
        and layer.padding_mode == "zeros"
        and not isinstance(layer.padding, str)
        and layer.kernel_size[0] == layer.kernel_size[1] > layer.padding[0] == layer.padding[1]
    )


class ClientMaxPool2d(nn.MaxPool2d):
    """nn.MaxPool2d, computed by `pool` on a GPU; with a ReLU after it if asked for."""

    def forward(self, input: Tensor, relu: bool = False) -> Tensor:
        if dispatch.by_kernels(input):
            y: Tensor = pool(input, relu)[0]
            return y
        y = super().forward(input)
        return y.relu() if relu else y


def halves(layer: nn.MaxPool2d) -> bool:
    """Whether it is the usual 2x2 pooling."""
    plain = (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
    return plain == (2, 2, 0, 1) and not layer.ceil_mode and not layer.return_indices


class _Linear(torch.autograd.Function):
    """x W^T + b of x [B, in]. Under vmap y, dx and dW each take one batched product over all clients."""

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
        x, weight, bias = (in_front(value, dim, info) for value, dim in zip(inputs, dims, strict=True))
        return _StackedLinear.apply(x, weight, bias), 0  # type: ignore[no-untyped-call]


class _StackedLinear(torch.autograd.Function):
    """x W^T + b for every client: x [v, B, in], W [v, out, in], b [v, out]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch.baddbmm(bias[:, None], x, weight.mT)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        dx = dy.bmm(weight) if ctx.needs_input_grad[0] else None
        # dW in the weight's own layout, so that it is not copied when it becomes the gradient
        return dx, dy.mT.bmm(x), dy.sum(dim=1)


class ClientLinear(nn.Linear):
    """nn.Linear, computed by `linear` on a GPU unless it is too large, else under vmap by the libraries'
    batched products; with a ReLU after it if asked for."""

    @property
    def casts(self) -> bool:
        """Whether it takes input and weights of any type, casting as it reads them."""
        few = max(self.in_features, self.out_features) <= MOST_UNITS
        return few and self.weight.dtype == torch.float32 and dispatch.by_kernels(self.weight)

    def forward(self, input: Tensor, relu: bool = False) -> Tensor:
        kind = input.device.type
        weight: Tensor = self.weight
        bias: Tensor | None = self.bias
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
        if self.casts and input.dim() == 2:
            y: Tensor = linear(input[None], weight[None], None if bias is None else bias[None], dtype, relu)
            return y.squeeze(0)
        if bias is None or input.dim() != 2:
            y = super().forward(input)
        else:
            y = _Linear.apply(input.to(dtype), weight.to(dtype), bias.to(dtype))  # type: ignore[no-untyped-call]
        return y.relu() if relu else y


class ClientEmbedding(nn.Embedding):
    """nn.Embedding whose padding vector gets no gradient for any client; under vmap torch's own keeps it from
    the first client's only."""

    def forward(self, input: Tensor) -> Tensor:
        if self.padding_idx is None:
            return super().forward(input)
        # without padding_idx: what it would do, for the first client only, is done below for all of them
        options = (self.max_norm, self.norm_type, self.scale_grad_by_freq, self.sparse)
        z = F.embedding(input, self.weight, None, *options)
        return torch.where((input == self.padding_idx)[..., None], z.detach(), z)


class ClientSequential(nn.Sequential):
    """nn.Sequential that on a GPU has our layers do the pooling and the ReLU which follow them."""

    def forward(self, input: Any) -> Any:
        if not (isinstance(input, Tensor) and dispatch.by_kernels(input)):
            return super().forward(input)  # type: ignore[no-untyped-call]
        layers = list(self)[::-1]

        def followed_by(kind: type[nn.Module]) -> bool:
            """Whether a layer of this kind comes next. If so it is removed: the one before does its work."""
            follows = bool(layers) and type(layers[-1]) is kind
            if follows:
                layers.pop()
            return follows

        while layers:
            layer = layers.pop()
            if isinstance(layer, ClientConv2d) and followed_by(ClientMaxPool2d):
                input = layer(input, pooled=True, relu=followed_by(nn.ReLU))
            elif isinstance(layer, ClientMaxPool2d | ClientLinear):
                input = layer(input, relu=followed_by(nn.ReLU))
            else:
                input = layer(input)
        return input


def make_stackable(net: nn.Module) -> None:
    """Turn the net's layers into the ones of this file, where there is one that can do the same."""
    for part in net.modules():
        if type(part) is nn.Conv2d and fits(part):
            part.__class__ = ClientConv2d
        elif type(part) is nn.MaxPool2d and halves(part):
            part.__class__ = ClientMaxPool2d
        elif type(part) is nn.Linear:
            part.__class__ = ClientLinear
        elif type(part) is nn.Embedding:
            part.__class__ = ClientEmbedding
        elif type(part) is nn.Sequential:
            part.__class__ = ClientSequential
