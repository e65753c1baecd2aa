"""Where the operations of this package run, and how vmap gives its tensors to them."""

import contextlib
import importlib.util
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

TRITON = importlib.util.find_spec("triton") is not None
_wanted = True


def by_kernels(x: Tensor) -> bool:
    """Whether kernels of ours can run where this tensor lies."""
    return x.is_cuda and TRITON and _wanted


@contextlib.contextmanager
def plain_pytorch() -> Iterator[None]:
    """Without kernels of ours: for what they are compared with."""
    global _wanted
    before, _wanted = _wanted, False
    try:
        yield
    finally:
        _wanted = before


def transformed() -> bool:
    """Whether this runs under vmap or another of torch.func's transforms."""
    return torch._C._functorch.maybe_current_level() is not None


def in_front(value: Tensor, dim: int | None, info: Any) -> Tensor:
    """Of a tensor under vmap: its clients as the first dimension."""
    return value.expand(info.batch_size, *value.shape) if dim is None else value.movedim(dim, 0)


def clients_of(
    info: Any, dims: tuple[int | None, ...], x: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Of a layer's tensors under vmap: [clients, 1, ...] of each becomes [clients, ...]. Squeezed, not
    indexed: the gradient of an index is a copy into zeros."""
    x, weight = (in_front(value, dim, info).squeeze(1) for value, dim in zip((x, weight), dims, strict=False))
    return x, weight, None if bias is None else in_front(bias, dims[2], info).squeeze(1)
