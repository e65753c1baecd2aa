"""2x2 max pooling, with the ReLU that follows it. It keeps which pixel of each window was the largest, so
that its gradient is one write to every pixel."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 512


@triton.jit
def larger(best, found, pixel, k):
    """The larger of the best pixel so far and the window's k-th, and which one it is. Of equal pixels the
    first counts, and NaN is the largest, as in torch."""
    better = (pixel > best) | (pixel != pixel)
    return tl.where(better, pixel, best), tl.where(better, k, found).to(tl.int8)


@triton.jit
def after_relu(best, found):
    """The window's pixel after a ReLU; where that gives zero, no pixel is the largest (-1)."""
    return tl.where(best <= 0, 0.0, best), tl.where(best <= 0, -1, found).to(tl.int8)


@triton.jit
def _largest(x, y, which, size, H, W, OH, OW, RELU: tl.constexpr, BLOCK: tl.constexpr):
    """The largest pixel of every 2x2 window, and which one it is."""
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # (image, i, j)
    corner = n // (OH * OW) * (H * W) + n // OW % OH * 2 * W + n % OW * 2
    best = tl.load(x + corner, mask=n < size, other=0.0).to(tl.float32)
    found = tl.zeros((BLOCK,), dtype=tl.int8)
    for k in tl.static_range(1, 4):
        pixel = tl.load(x + corner + k // 2 * W + k % 2, mask=n < size, other=0.0).to(tl.float32)
        best, found = larger(best, found, pixel, k)
    if RELU:
        best, found = after_relu(best, found)
    tl.store(y + n, best.to(y.dtype.element_ty), mask=n < size)
    tl.store(which + n, found, mask=n < size)


@triton.jit
def _back_to_largest(dy, which, dx, size, H, W, OH, OW, BLOCK: tl.constexpr):
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # (image, row, column) of x
    row, column = n // W % H, n % W
    inside = (n < size) & (row // 2 < OH) & (column // 2 < OW)  # an odd row or column is in no window
    window = n // (H * W) * (OH * OW) + row // 2 * OW + column // 2
    chosen = tl.load(which + window, mask=inside, other=-1)
    slope = tl.load(dy + window, mask=inside, other=0.0)
    tl.store(dx + n, tl.where(chosen == row % 2 * 2 + column % 2, slope, 0.0), mask=n < size)


def pool(x: Tensor, relu: bool) -> tuple[Tensor, Tensor]:
    *images, H, W = x.shape
    y = torch.empty(*images, H // 2, W // 2, device=x.device, dtype=x.dtype)
    which = torch.empty_like(y, dtype=torch.int8)
    kernel: Any = _largest
    grid = (triton.cdiv(y.numel(), BLOCK),)
    kernel[grid](x.contiguous(), y, which, y.numel(), H, W, H // 2, W // 2, relu, BLOCK)
    return y, which


def pool_gradient(dy: Tensor, which: Tensor, H: int, W: int) -> Tensor:
    dx = torch.empty(*dy.shape[:-2], H, W, device=dy.device, dtype=dy.dtype)
    kernel: Any = _back_to_largest
    grid = (triton.cdiv(dx.numel(), BLOCK),)
    kernel[grid](dy.contiguous(), which, dx, dx.numel(), H, W, *dy.shape[-2:], BLOCK)
    return dx
