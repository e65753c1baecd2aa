"""The batch of a step: gathered, normalised and cast in one kernel."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def _gather(images, labels, index, at, scale, shift, x, y, B, row, pixels, channel, BLOCK: tl.constexpr):
    """A block of pixels, normalised, and the label of the b-th sample in row `at` of client g's index."""
    b, g = tl.program_id(1), tl.program_id(2)
    sample = tl.load(index + g * row + tl.load(at) * B + b)
    p = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = p < pixels
    c = p // channel
    value = tl.load(images + sample * pixels + p, mask=inside, other=0).to(tl.float32)
    factor = tl.load(scale + c, mask=inside, other=0.0)
    offset = tl.load(shift + c, mask=inside, other=0.0)
    out = x + (g * B + b).to(tl.int64) * pixels + p
    tl.store(out, (value * factor + offset).to(x.dtype.element_ty), mask=inside)
    if tl.program_id(0) == 0:
        tl.store(y + g * B + b, tl.load(labels + sample))


def gather(
    images: Tensor,
    labels: Tensor,
    index: Tensor,
    at: Tensor,
    scale: Tensor,
    shift: Tensor,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    v, _, B = index.shape
    shape = images.shape[1:]
    x = torch.empty(v, B, *shape, device=images.device, dtype=dtype)
    y = torch.empty(v, B, device=images.device, dtype=labels.dtype)
    pixels = shape.numel()
    kernel: Any = _gather
    kernel[(triton.cdiv(pixels, BLOCK), B, v)](
        images, labels, index, at, scale, shift, x, y, B, index.stride(0), pixels, shape[1:].numel(), BLOCK
    )
    return x, y
