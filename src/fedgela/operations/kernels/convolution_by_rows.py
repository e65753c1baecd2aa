"""Convolutions as products of whole image rows with banded matrices.

A row of an image, times the matrix whose band holds a row of the weights, is that row convolved. Most of such
a matrix is zeros, and tensor cores are fast enough for that not to matter; in return rows are read as they
lie in memory, many pixels at a time, and every one of them once for each row of the weights, not once for
each weight. For bf16.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _rows(
    x, weight, bias, y, B, C, N, H, W, OH, OW, sg, sb, sc, sh, sw, wg, wo, wc,
    K: tl.constexpr, PADDING: tl.constexpr, FLIPPED: tl.constexpr, BIAS: tl.constexpr, EXACT: tl.constexpr,
    BLOCK_M: tl.constexpr, CHANNELS: tl.constexpr, BLOCK_W: tl.constexpr,
    OUTPUTS: tl.constexpr, BLOCK_J: tl.constexpr,
):  # fmt: skip
    """Output rows m = (b, i) of a block, with pixels n = (o, j) of some output channels, of client g; the sum
    is over pixels k = (c, w) of some input channels, and over the rows u of the weights."""
    g = tl.program_id(2)
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    b, i = m // OH, m % OH - PADDING
    n = tl.arange(0, OUTPUTS * BLOCK_J)
    o, j = tl.program_id(1) * OUTPUTS + n // BLOCK_J, n % BLOCK_J
    k = tl.arange(0, CHANNELS * BLOCK_W)
    w = k % BLOCK_W
    v = w[:, None] - j[None, :] + PADDING
    band = (v >= 0) & (v < K) & (o < N)[None, :] & (j < OW)[None, :]
    inside = m < B * OH
    total = tl.zeros((BLOCK_M, OUTPUTS * BLOCK_J), dtype=tl.float32)
    for step in range(0, (C + CHANNELS - 1) // CHANNELS * K):
        c, u = step // K * CHANNELS + k // BLOCK_W, step % K
        there = (c < C) & (w < W)
        seen = inside & (i + u >= 0) & (i + u < H)
        pixels = tl.load(
            x + (g * sg + b * sb + (i + u) * sh)[:, None] + (c * sc + w * sw)[None, :],
            mask=seen[:, None] & there[None, :],
            other=0.0,
        )
        tap = (K * K - 1 - u * K - v) if FLIPPED else (u * K + v)
        factors = tl.load(
            weight + g * wg + (o * wo)[None, :] + (c * wc)[:, None] + tap,
            mask=band & there[:, None],
            other=0.0,
        )
        total += tl.dot(pixels, factors.to(pixels.dtype), input_precision="ieee" if EXACT else None)
    if BIAS:
        total += tl.load(bias + g * N + o, mask=o < N, other=0.0).to(tl.float32)[None, :]
    out = y + ((g * B + b) * N * OH * OW + m % OH * OW)[:, None] + (o * (OH * OW) + j)[None, :]
    tl.store(out, total.to(y.dtype.element_ty), mask=inside[:, None] & ((o < N) & (j < OW))[None, :])


@triton.jit
def _chunks_of_weight_gradient(
    x, dy, chunks, B, C, N, G, H, W, OH, OW, sg, sb, sc, sh, sw,
    K: tl.constexpr, PADDING: tl.constexpr, EXACT: tl.constexpr, CHUNK: tl.constexpr,
    BLOCK_M: tl.constexpr, OUTPUTS: tl.constexpr, BLOCK_J: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """chunks[n, g, o, (c, u, v)]: the sum over the n-th chunk of output rows m of dy[m, (o, j)] x[m, w] with
    w = j + v, for one c and u; the last column is the bias's."""
    g = tl.program_id(2)
    c, u = tl.program_id(1) // K, tl.program_id(1) % K
    n = tl.arange(0, OUTPUTS * BLOCK_J)
    o, j = n // BLOCK_J, n % BLOCK_J
    w = tl.arange(0, BLOCK_W)
    total = tl.zeros((OUTPUTS * BLOCK_J, BLOCK_W), dtype=tl.float32)
    sums = tl.zeros((OUTPUTS * BLOCK_J,), dtype=tl.float32)
    for start in range(0, CHUNK, BLOCK_M):
        m = tl.program_id(0) * CHUNK + start + tl.arange(0, BLOCK_M)
        b, i = m // OH, m % OH
        row = i + u - PADDING
        inside = m < B * OH
        pixels = tl.load(
            x + (g * sg + c * sc + b * sb + row * sh)[:, None] + (w * sw)[None, :],
            mask=(inside & (row >= 0) & (row < H))[:, None] & (w < W)[None, :],
            other=0.0,
        )
        slopes = tl.load(
            dy + ((g * B + b) * N * OH * OW + i * OW)[:, None] + (o * (OH * OW) + j)[None, :],
            mask=inside[:, None] & ((o < N) & (j < OW))[None, :],
            other=0.0,
        ).to(pixels.dtype)
        total += tl.dot(tl.trans(slopes), pixels, input_precision="ieee" if EXACT else None)
        sums += tl.sum(slopes.to(tl.float32), axis=0)
    columns = C * K * K + 1
    each = tl.arange(0, OUTPUTS)
    out = chunks + ((tl.program_id(0) * G + g) * N + each) * columns
    shift = w[None, :] - j[:, None] + PADDING
    for v in tl.static_range(K):
        of_pixels = tl.sum(tl.where(shift == v, total, 0.0), axis=1)
        of_channels = tl.sum(tl.reshape(of_pixels, (OUTPUTS, BLOCK_J)), axis=1)
        tl.store(out + (c * K + u) * K + v, of_channels, mask=each < N)
    if tl.program_id(1) == 0:
        tl.store(out + columns - 1, tl.sum(tl.reshape(sums, (OUTPUTS, BLOCK_J)), axis=1), mask=each < N)


def _wide(size: int) -> int:
    """A block that holds a row, and that tensor cores take."""
    return max(16, triton.next_power_of_2(size))


def forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, y: Tensor, padding: int, flipped: bool, exact: bool
) -> None:
    """As convolution.forward, into y."""
    G, B, C, H, W = x.shape
    _, _, N, OH, OW = y.shape
    to, of = (2, 1) if flipped else (1, 2)
    block_w, block_j = _wide(W), _wide(OW)
    channels = min(max(1, 64 // block_w), triton.next_power_of_2(C)) if block_w < 32 else 1
    outputs = max(1, 64 // block_j)
    block = 128 if G * triton.cdiv(B * OH, 128) * triton.cdiv(N, outputs) >= 264 else 32
    kernel: Any = _rows
    kernel[(triton.cdiv(B * OH, block), triton.cdiv(N, outputs), G)](
        x, weight, weight if bias is None else bias, y, B, C, N, H, W, OH, OW,
        *x.stride(), weight.stride(0), weight.stride(to), weight.stride(of),
        weight.shape[3], padding, flipped, bias is not None, exact,
        block, channels, block_w, outputs, block_j, num_warps=4,
    )  # fmt: skip


def chunks_of_weight_gradient(dy: Tensor, x: Tensor, K: int, padding: int, exact: bool) -> Tensor:
    """[chunks, G, N, C K K + 1]."""
    G, B, C, H, W = x.shape
    N, OH, OW = dy.shape[2:]
    rows = 512
    while rows > 64 and G * C * K * triton.cdiv(B * OH, rows) < 1000:
        rows //= 2
    count = triton.cdiv(B * OH, rows)
    chunks = torch.empty(count, G, N, C * K * K + 1, device=x.device)
    kernel: Any = _chunks_of_weight_gradient
    kernel[(count, C * K, G)](
        x, dy, chunks, B, C, N, G, H, W, OH, OW, *x.stride(), K, padding, exact, rows,
        64, triton.next_power_of_2(N), _wide(OW), _wide(W), num_warps=8 if N * _wide(OW) > 128 else 4,
    )  # fmt: skip
    return chunks
