"""Whether this package's own GPU kernels are used, and how tensors under vmap are given to them."""

import contextlib
import importlib.util
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

TRITON = importlib.util.find_spec("triton") is not None
_wanted = True


def by_kernels(x: Tensor) -> bool:
    """Whether our own kernels are to be used for this tensor: on a GPU, with Triton, unless switched off."""
    return x.is_cuda and TRITON and _wanted


@contextlib.contextmanager
def plain_pytorch() -> Iterator[None]:
    """Within it our own kernels are not used: for the engine that they are tested against."""
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
    """A tensor under vmap with the clients as its first dimension."""
    return value.expand(info.batch_size, *value.shape) if dim is None else value.movedim(dim, 0)


def clients_of(
    info: Any, dims: tuple[int | None, ...], x: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """A layer's tensors under vmap: from [1, ...] for each client to [clients, ...]. By squeezing, since the
    gradient of an index would be a copy into zeros."""
    x, weight = (in_front(value, dim, info).squeeze(1) for value, dim in zip((x, weight), dims, strict=False))
    return x, weight, None if bias is None else in_front(bias, dims[2], info).squeeze(1)
