"""Where the operations of this package run, and how vmap gives its tensors to them."""

import importlib.util
from typing import Any

from torch import Tensor

TRITON = importlib.util.find_spec("triton") is not None


def by_kernels(x: Tensor) -> bool:
    """Whether kernels of ours can run where this tensor lies."""
    return x.is_cuda and TRITON


def in_front(value: Tensor, dim: int | None, info: Any) -> Tensor:
    """Of a tensor under vmap: its clients as the first dimension."""
    return value.expand(info.batch_size, *value.shape) if dim is None else value.movedim(dim, 0)
