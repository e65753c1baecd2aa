"""Convolutions. Those with few output channels or with pooling after them, and the gradients of the weights,
are computed by patches (patches.py); the others as a product with the unfolded image, whose columns are
loaded as they are needed and never written to memory. Sums are in float32."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedgela.operations.kernels import patches

# measured on an H200, like all sizes of blocks
FEW = 8  # output channels up to which patches are faster
PROGRAMS = 1500  # enough to fill a GPU: with fewer clients, blocks are made smaller


@triton.jit
def _unfolded(
    x, weight, bias, y, B, C, N, H, W, OH, OW, sg, sb, sc, sh, sw, wg, wo, wc,
    K: tl.constexpr, PADDING: tl.constexpr, FLIPPED: tl.constexpr, BIAS: tl.constexpr, EXACT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Output pixels m = (b, i, j) of a block, all output channels o of client g, as a product over
    k = (c, u, v)."""
    g = tl.program_id(1)
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    o = tl.arange(0, BLOCK_O)
    b, ij = m // (OH * OW), m % (OH * OW)
    i, j = ij // OW - PADDING, ij % OW - PADDING
    inside = m < B * OH * OW
    corner = g * sg + b * sb + i * sh + j * sw
    total = tl.zeros((BLOCK_M, BLOCK_O), dtype=tl.float32)
    for start in range(0, C * K * K, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        c, uv = k // (K * K), k % (K * K)
        u, v = uv // K, uv % K
        seen = inside[:, None] & (k < C * K * K)[None, :]
        if PADDING > 0:
            row, column = i[:, None] + u[None, :], j[:, None] + v[None, :]
            seen = seen & (row >= 0) & (row < H) & (column >= 0) & (column < W)
        pixels = tl.load(x + corner[:, None] + (c * sc + u * sh + v * sw)[None, :], mask=seen, other=0.0)
        tap = (K * K - 1 - uv) if FLIPPED else uv
        factors = tl.load(
            weight + g * wg + (o * wo)[None, :] + (c * wc + tap)[:, None],
            mask=(o < N)[None, :] & (k < C * K * K)[:, None],
            other=0.0,
        ).to(pixels.dtype)
        total += tl.dot(pixels, factors, input_precision="ieee" if EXACT else None)
    if BIAS:
        total += tl.load(bias + g * N + o, mask=o < N, other=0.0).to(tl.float32)[None, :]
    out = y + ((g * B + b) * N * OH * OW + ij)[:, None] + (o * (OH * OW))[None, :]
    tl.store(out, total.to(y.dtype.element_ty), mask=inside[:, None] & (o < N)[None, :])


@triton.jit
def _sum_of_chunks(chunks, dweight, dbias, count, size, columns, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    """dweight and dbias as sums over chunks, always in the same order: every run has the same bits."""
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # (g, o, k)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, count, ROWS):
        row = start + tl.arange(0, ROWS)
        part = tl.load(
            chunks + row[:, None].to(tl.int64) * size + n[None, :],
            mask=(row < count)[:, None] & (n < size)[None, :],
            other=0.0,
        )
        total += tl.sum(part, axis=0)
    go, k = n // columns, n % columns
    last = k == columns - 1
    tl.store(dweight + go * (columns - 1) + k, total.to(dweight.dtype.element_ty), mask=(n < size) & ~last)
    tl.store(dbias + go, total.to(dbias.dtype.element_ty), mask=(n < size) & last)


def _exact(x: Tensor) -> bool:
    """Whether products must be in full float32: for float32, unless TF32 is allowed for convolutions."""
    return x.dtype == torch.float32 and not torch.backends.cudnn.allow_tf32


def forward(x: Tensor, weight: Tensor, bias: Tensor | None, padding: int, flipped: bool = False) -> Tensor:
    """With `flipped` the transposed convolution: from the weight's outputs to its inputs."""
    to, of = (2, 1) if flipped else (1, 2)
    N = weight.shape[to]
    if N <= FEW:
        return patches.convolve(x, weight, bias, padding, flipped)[0]
    G, B, C, H, W = x.shape
    weight = weight.contiguous()
    K = weight.shape[3]
    OH, OW = H + 2 * padding - K + 1, W + 2 * padding - K + 1
    y = torch.empty(G, B, N, OH, OW, device=x.device, dtype=x.dtype)
    block = 256
    while block > 64 and G * triton.cdiv(B * OH * OW, block) < PROGRAMS:
        block //= 2
    kernel: Any = _unfolded
    kernel[(triton.cdiv(B * OH * OW, block), G)](
        x, weight, weight if bias is None else bias.contiguous(), y, B, C, N, H, W, OH, OW,
        *x.stride(), weight.stride(0), weight.stride(to), weight.stride(of),
        K, padding, flipped, bias is not None, _exact(x),
        block, max(16, triton.next_power_of_2(N)), 32, num_warps=block // 64,
    )  # fmt: skip
    return y


def forward_and_pool(
    x: Tensor, weight: Tensor, bias: Tensor | None, padding: int, relu: bool
) -> tuple[Tensor, Tensor]:
    return patches.convolve(x, weight, bias, padding, pool=True, relu=relu)


def input_gradient_of_pooled(
    dy: Tensor, which: Tensor, weight: Tensor, padding: int, H: int, W: int
) -> Tensor:
    """The gradient [H, W] of the input of convolution and pooling."""
    K = weight.shape[3]
    convolved = (H + 2 * padding - K + 1, W + 2 * padding - K + 1)
    pooled = (which, convolved)
    return patches.convolve(dy, weight, None, K - 1 - padding, flipped=True, pooled=pooled)[0]


def weight_gradient(
    dy: Tensor, x: Tensor, weight: Tensor, padding: int, which: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The gradients of weight and bias. With `which`, dy is of 2x2 windows, and `which` says for each window
    which of its pixels gets the gradient."""
    chunks = patches.chunks_of_weight_gradient(dy, which, x, weight.shape[3], padding)
    count, G, N, columns = chunks.shape
    dweight = torch.empty_like(weight, memory_format=torch.contiguous_format)
    dbias = torch.empty(G, N, device=weight.device, dtype=weight.dtype)
    size = G * N * columns
    kernel: Any = _sum_of_chunks
    kernel[(triton.cdiv(size, 32),)](chunks, dweight, dbias, count, size, columns, 32, 32, num_warps=4)
    return dweight, dbias
