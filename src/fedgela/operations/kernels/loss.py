"""The cross-entropy of rows of logits, and sums of losses by class."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 16  # samples in a block


@triton.jit
def _cross_entropy(logits, y, losses, size, CLASSES: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, BLOCK)
    inside = (n < size)[:, None] & (c < CLASSES)[None, :]
    values = tl.load(logits + n[:, None] * CLASSES + c[None, :], mask=inside, other=float("-inf"))
    values = tl.where((n < size)[:, None], values, 0.0)  # no NaN in rows past the end
    label = tl.load(y + n, mask=n < size, other=0)
    highest = tl.max(values, axis=1)
    total = tl.sum(tl.exp(values - highest[:, None]), axis=1)
    own = tl.sum(tl.where(c[None, :] == label[:, None], values, 0.0), axis=1)
    tl.store(losses + n, tl.log(total) + highest - own, mask=n < size)


@triton.jit
def _slopes_of_logits(
    slopes, logits, y, dlogits, size, CLASSES: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr
):
    """(softmax - one-hot) times the sample's slope."""
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, BLOCK)
    inside = (n < size)[:, None] & (c < CLASSES)[None, :]
    place = n[:, None] * CLASSES + c[None, :]
    values = tl.load(logits + place, mask=inside, other=float("-inf"))
    values = tl.where((n < size)[:, None], values, 0.0)
    label = tl.load(y + n, mask=n < size, other=0)
    slope = tl.load(slopes + n, mask=n < size, other=0.0)
    powers = tl.exp(values - tl.max(values, axis=1)[:, None])
    shares = powers / tl.sum(powers, axis=1)[:, None]
    wanted = tl.where(c[None, :] == label[:, None], 1.0, 0.0)
    tl.store(dlogits + place, (shares - wanted) * slope[:, None], mask=inside)


@triton.jit
def _record(
    losses, y, sums, counters, B, CLASSES: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_C: tl.constexpr
):
    """sums[g, c] += the losses of client g's samples of class c, in a fixed order; all counters += 1."""
    g = tl.program_id(0)
    c = tl.arange(0, BLOCK_C)
    total = tl.zeros((BLOCK_C,), dtype=tl.float32)
    for start in range(0, B, BLOCK_B):
        b = start + tl.arange(0, BLOCK_B)
        label = tl.load(y + g * B + b, mask=b < B, other=-1)
        loss = tl.load(losses + g * B + b, mask=b < B, other=0.0)
        total += tl.sum(tl.where(label[:, None] == c[None, :], loss[:, None], 0.0), axis=0)
    out = sums + g * CLASSES + c
    before = tl.load(out, mask=c < CLASSES, other=0.0)
    tl.store(out, before + total, mask=c < CLASSES)
    tl.store(counters + 1 + g, tl.load(counters + 1 + g) + 1)
    if g == 0:
        tl.store(counters, tl.load(counters) + 1)


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    classes = logits.shape[-1]
    losses = torch.empty(logits.shape[:-1], device=logits.device)
    kernel: Any = _cross_entropy
    block = triton.next_power_of_2(classes)
    grid = (triton.cdiv(losses.numel(), ROWS),)
    kernel[grid](logits.contiguous(), y.contiguous(), losses, losses.numel(), classes, block, ROWS)
    return losses


def cross_entropy_gradient(slopes: Tensor, logits: Tensor, y: Tensor) -> Tensor:
    classes = logits.shape[-1]
    dlogits = torch.empty(logits.shape, device=logits.device)
    kernel: Any = _slopes_of_logits
    block = triton.next_power_of_2(classes)
    grid = (triton.cdiv(y.numel(), ROWS),)
    kernel[grid](
        slopes.contiguous(), logits.contiguous(), y.contiguous(), dlogits, y.numel(), classes, block, ROWS
    )
    return dlogits


def record(losses: Tensor, y: Tensor, sums: Tensor, counters: Tensor) -> None:
    clients, B = y.shape
    classes = sums.shape[1]
    kernel: Any = _record
    block = triton.next_power_of_2(classes)
    kernel[(clients,)](
        losses.contiguous(), y.contiguous(), sums, counters, B, classes, max(1, min(64, 4096 // block)), block
    )
