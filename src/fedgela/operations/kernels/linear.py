"""Linear layers with bias and ReLU. Products are in the type that is asked for, DTYPE, whatever the types of
input and weights; sums are in float32."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16}


@triton.jit
def _linear(
    x, weight, bias, y, B, IN: tl.constexpr, OUT: tl.constexpr, DTYPE: tl.constexpr, BIAS: tl.constexpr,
    RELU: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_I: tl.constexpr,
):  # fmt: skip
    """y[b, o] of a block of samples and outputs of client g."""
    g = tl.program_id(2)
    b = tl.program_id(0) * BLOCK_B + tl.arange(0, BLOCK_B)
    o = tl.program_id(1) * BLOCK_O + tl.arange(0, BLOCK_O)
    total = tl.zeros((BLOCK_B, BLOCK_O), dtype=tl.float32)
    for start in range(0, IN, BLOCK_I):
        i = start + tl.arange(0, BLOCK_I)
        inputs = tl.load(
            x + (g * B + b)[:, None] * IN + i[None, :], mask=(b < B)[:, None] & (i < IN)[None, :], other=0.0
        )
        factors = tl.load(
            weight + (g * OUT + o)[None, :] * IN + i[:, None],
            mask=(o < OUT)[None, :] & (i < IN)[:, None],
            other=0.0,
        )
        total += tl.dot(inputs.to(DTYPE), factors.to(DTYPE), input_precision="ieee")
    if BIAS:
        total += tl.load(bias + g * OUT + o, mask=o < OUT, other=0.0).to(tl.float32)[None, :]
    if RELU:
        total = tl.where(total <= 0, 0.0, total)
    out = y + (g * B + b)[:, None] * OUT + o[None, :]
    tl.store(out, total.to(y.dtype.element_ty), mask=(b < B)[:, None] & (o < OUT)[None, :])


@triton.jit
def _slopes(dy, y, place, inside, RELU: tl.constexpr, DTYPE: tl.constexpr):
    """dy, with zeros where the ReLU gave zero."""
    slopes = tl.load(dy + place, mask=inside, other=0.0)
    if RELU:
        slopes = tl.where(tl.load(y + place, mask=inside, other=0.0) <= 0, 0.0, slopes)
    return slopes.to(DTYPE)


@triton.jit
def _gradient_of_input(
    dy, y, weight, dx, B, g, block, i,
    IN: tl.constexpr, OUT: tl.constexpr, DTYPE: tl.constexpr, RELU: tl.constexpr,
    BLOCK_B: tl.constexpr, BLOCK_I: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    b = block * BLOCK_B + tl.arange(0, BLOCK_B)
    total = tl.zeros((BLOCK_B, BLOCK_I), dtype=tl.float32)
    for start in range(0, OUT, DEPTH):
        o = start + tl.arange(0, DEPTH)
        place = (g * B + b)[:, None] * OUT + o[None, :]
        slopes = _slopes(dy, y, place, (b < B)[:, None] & (o < OUT)[None, :], RELU, DTYPE)
        factors = tl.load(
            weight + (g * OUT + o)[:, None] * IN + i[None, :],
            mask=(o < OUT)[:, None] & (i < IN)[None, :],
            other=0.0,
        )
        total += tl.dot(slopes, factors.to(DTYPE), input_precision="ieee")
    out = dx + (g * B + b)[:, None] * IN + i[None, :]
    tl.store(out, total.to(dx.dtype.element_ty), mask=(b < B)[:, None] & (i < IN)[None, :])


@triton.jit
def _gradient_of_weight(
    dy, y, x, dweight, dbias, B, g, block, i, column,
    IN: tl.constexpr, OUT: tl.constexpr, DTYPE: tl.constexpr, BIAS: tl.constexpr, RELU: tl.constexpr,
    BLOCK_O: tl.constexpr, BLOCK_I: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    o = block * BLOCK_O + tl.arange(0, BLOCK_O)
    total = tl.zeros((BLOCK_O, BLOCK_I), dtype=tl.float32)
    sums = tl.zeros((BLOCK_O,), dtype=tl.float32)
    for start in range(0, B, DEPTH):
        b = start + tl.arange(0, DEPTH)
        place = (g * B + b)[None, :] * OUT + o[:, None]
        slopes = _slopes(dy, y, place, (b < B)[None, :] & (o < OUT)[:, None], RELU, DTYPE)
        inputs = tl.load(
            x + (g * B + b)[:, None] * IN + i[None, :], mask=(b < B)[:, None] & (i < IN)[None, :], other=0.0
        )
        total += tl.dot(slopes, inputs.to(DTYPE), input_precision="ieee")
        sums += tl.sum(slopes.to(tl.float32), axis=1)
    out = dweight + (g * OUT + o)[:, None] * IN + i[None, :]
    tl.store(out, total.to(dweight.dtype.element_ty), mask=(o < OUT)[:, None] & (i < IN)[None, :])
    if BIAS:  # noqa: SIM102 - this one is decided by the compiler
        if column == 0:  # one block of a row is enough
            tl.store(dbias + g * OUT + o, sums.to(dbias.dtype.element_ty), mask=o < OUT)


@triton.jit
def _linear_gradients(
    dy, y, x, weight, dx, dweight, dbias, B, blocks_of_x,
    IN: tl.constexpr, OUT: tl.constexpr, DTYPE: tl.constexpr, BIAS: tl.constexpr, RELU: tl.constexpr,
    BLOCK_B: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_I: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """The first blocks compute dx, the others dweight and dbias, which are independent of one another."""
    g = tl.program_id(1)
    n = tl.program_id(0)
    across: tl.constexpr = (IN + BLOCK_I - 1) // BLOCK_I
    i = n % across * BLOCK_I + tl.arange(0, BLOCK_I)
    if n < blocks_of_x:
        _gradient_of_input(
            dy, y, weight, dx, B, g, n // across, i, IN, OUT, DTYPE, RELU, BLOCK_B, BLOCK_I, DEPTH
        )
    else:
        block = (n - blocks_of_x) // across
        _gradient_of_weight(
            dy, y, x, dweight, dbias, B, g, block, i, n % across,
            IN, OUT, DTYPE, BIAS, RELU, BLOCK_O, BLOCK_I, DEPTH,
        )  # fmt: skip


def _depth(dtype: torch.dtype) -> int:
    """How many terms a block adds at a time: float32 takes twice the registers of bf16."""
    return 64 if dtype == torch.bfloat16 else 32


def forward(x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, relu: bool) -> Tensor:
    G, B, inputs = x.shape
    outputs = weight.shape[1]
    y = torch.empty(G, B, outputs, device=x.device, dtype=dtype)
    kernel: Any = _linear
    kernel[(triton.cdiv(B, 16), triton.cdiv(outputs, 32), G)](
        x.contiguous(), weight.contiguous(), weight if bias is None else bias.contiguous(), y, B,
        inputs, outputs, TYPES[dtype], bias is not None, relu, 16, 32, _depth(dtype), num_warps=4,
    )  # fmt: skip
    return y


def gradients(
    dy: Tensor, y: Tensor, x: Tensor, weight: Tensor, bias: bool, relu: bool, of_x: bool, of_weight: bool
) -> tuple[Tensor, Tensor, Tensor]:
    G, B, inputs = x.shape
    outputs = weight.shape[1]
    dx = torch.empty(x.shape if of_x else 0, device=x.device, dtype=x.dtype)
    dweight = torch.empty(weight.shape if of_weight else 0, device=x.device, dtype=weight.dtype)
    dbias = torch.empty((G, outputs) if of_weight and bias else 0, device=x.device, dtype=weight.dtype)
    across = triton.cdiv(inputs, 32)
    blocks_of_x = triton.cdiv(B, 16) * across if of_x else 0
    blocks_of_weight = triton.cdiv(outputs, 16) * across if of_weight else 0
    kernel: Any = _linear_gradients
    kernel[(blocks_of_x + blocks_of_weight, G)](
        dy.contiguous(), y, x.contiguous(), weight.contiguous(), dx, dweight, dbias, B, blocks_of_x,
        inputs, outputs, TYPES[y.dtype], bias, relu, 16, 16, 32, _depth(y.dtype), num_warps=4,
    )  # fmt: skip
    return dx, dweight, dbias
