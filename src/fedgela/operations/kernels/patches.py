"""Convolutions by patches: a thread computes neighbouring output pixels of several channels, so that it uses
every pixel and every weight that it loads several times. Sums are in float32, in registers.

If 2x2 max pooling follows the convolution, a patch is one window, or two, and the convolution's output is
never written to memory. Nor is its gradient, which is the window's at the pixel that was the largest.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedgela.operations.convolution import MOST_TAPS
from fedgela.operations.kernels.pooling import after_relu, larger

# measured on an H200, like the sizes of patches
FILLED = 25_000  # threads that keep a GPU busy
PROGRAMS = 1000  # programs of one warp for the gradient of weights; more of them would write more sums

# Sizes of images are constants of the kernels, so that a pixel's offset is part of the instruction that
# loads it.


@triton.jit
def _pixels(
    image, which, i, j, inside, H: tl.constexpr, W: tl.constexpr, LAST_I: tl.constexpr, LAST_J: tl.constexpr,
    FIRST: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, POOLED: tl.constexpr,
):  # fmt: skip
    """ROWS x COLUMNS pixels of images [H, W] from (i + FIRST, j + FIRST) on, row by row, in float32, with
    zeros beyond the edges. LAST_I and LAST_J, the largest i and j, tell which pixels may be beyond an edge
    at all.

    POOLED images are gradients of 2x2 windows: each belongs to the window's pixel that `which` names, and
    the other three pixels are zero. i and j are even then: the compiler sees which pixels share a window,
    and loads it once.
    """
    step: tl.constexpr = 2 if POOLED else 1
    row, column = i // step, j // step
    pixels = ()
    for r in tl.static_range(FIRST, FIRST + ROWS):
        for s in tl.static_range(FIRST, FIRST + COLUMNS):
            seen = inside
            if r < 0:
                seen = seen & (row >= -(r // step))
            if LAST_I + r >= H * step:
                seen = seen & (row < H - r // step)
            if s < 0:
                seen = seen & (column >= -(s // step))
            if LAST_J + s >= W * step:
                seen = seen & (column < W - s // step)
            place = row * W + column + (r // step * W + s // step)
            pixel = tl.load(image + place, mask=seen, other=0.0).to(tl.float32)
            if POOLED:
                chosen = tl.load(which + place, mask=seen, other=-1)
                pixel = tl.where(chosen == r % 2 * 2 + s % 2, pixel, 0.0)
            pixels = pixels + (pixel,)  # noqa: RUF005 - the compiler knows no other way
    return pixels


@triton.jit
def _add(total, factors, pixels, SIDE: tl.constexpr, CORNER: tl.constexpr, SPREAD: tl.constexpr):
    """Add to a total the SIDE x SIDE pixels from a corner on, times the factors; rows have SPREAD pixels."""
    for n in tl.static_range(SIDE * SIDE):
        total += factors[n] * pixels[CORNER + n // SIDE * SPREAD + n % SIDE]
    return total


@triton.jit
def _largest_of(totals, CORNER: tl.constexpr, COLUMNS: tl.constexpr, DTYPE: tl.constexpr):
    """The largest pixel of a 2x2 window of a patch, and which one it is; pixels are compared in the type that
    they would have been written in."""
    best = totals[CORNER].to(DTYPE).to(tl.float32)
    found = tl.zeros_like(best).to(tl.int8)
    for p in tl.static_range(1, 4):
        pixel = totals[CORNER + p // 2 * COLUMNS + p % 2].to(DTYPE).to(tl.float32)
        best, found = larger(best, found, pixel, p)
    return best, found


@triton.jit(do_not_specialize=["B", "C"])  # compiling takes seconds: once for all numbers of clients
def _patches(
    x, which_of_x, weight, bias, y, which, B, C, sg, sb, sc, wg, wo, wc,
    H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, N: tl.constexpr,
    K: tl.constexpr, PADDING: tl.constexpr, FLIPPED: tl.constexpr, BIAS: tl.constexpr, POOLED: tl.constexpr,
    POOL: tl.constexpr, RELU: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Patches n = (b, row, column) of ROWS x COLUMNS output pixels, in CHANNELS output channels of client g.
    If POOLED, x is gradients of windows (see _pixels). With POOL, y and `which` have one pixel for every 2x2
    window of the output."""
    g = tl.program_id(2)
    first = tl.program_id(1) * CHANNELS
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    down: tl.constexpr = (OH + ROWS - 1) // ROWS
    across: tl.constexpr = (OW + COLUMNS - 1) // COLUMNS
    spread: tl.constexpr = COLUMNS + K - 1
    size: tl.constexpr = ROWS * COLUMNS
    b, i, j = n // (down * across), n // across % down * ROWS, n % across * COLUMNS
    inside = b < B
    start = g * sg + b * sb
    totals = ()
    for o in tl.static_range(CHANNELS):
        zero = tl.zeros((BLOCK,), dtype=tl.float32)
        if BIAS:
            zero += tl.load(bias + g * N + first + o).to(tl.float32)
        for _ in tl.static_range(size):
            totals = totals + (zero,)  # noqa: RUF005
    for c in range(0, C):
        pixels = _pixels(
            x + start + c * sc, which_of_x + start + c * sc, i, j, inside, H, W,
            (down - 1) * ROWS, (across - 1) * COLUMNS, -PADDING, ROWS + K - 1, spread, POOLED,
        )  # fmt: skip
        sums = ()
        for o in tl.static_range(CHANNELS):
            taps = ()
            for k in tl.static_range(K * K):
                tap = tl.load(weight + g * wg + (first + o) * wo + c * wc + (K * K - 1 - k if FLIPPED else k))
                taps = taps + (tap.to(tl.float32),)  # noqa: RUF005
            for p in tl.static_range(size):
                total = _add(
                    totals[o * size + p], taps, pixels, K, p // COLUMNS * spread + p % COLUMNS, spread
                )
                sums = sums + (total,)  # noqa: RUF005
        totals = sums
    for o in tl.static_range(CHANNELS):
        if POOL:
            image = ((g * B + b) * N + first + o) * ((OH // 2) * (OW // 2))
            for window in tl.static_range(size // 4):
                row, column = i // 2 + window // (COLUMNS // 2), j // 2 + window % (COLUMNS // 2)
                best, found = _largest_of(
                    totals, o * size + window // (COLUMNS // 2) * 2 * COLUMNS + window % (COLUMNS // 2) * 2,
                    COLUMNS, y.dtype.element_ty,
                )  # fmt: skip
                if RELU:
                    best, found = after_relu(best, found)
                seen = inside & (row < OH // 2) & (column < OW // 2)
                place = image + row * (OW // 2) + column
                tl.store(y + place, best.to(y.dtype.element_ty), mask=seen)
                tl.store(which + place, found, mask=seen)
        else:
            image = ((g * B + b) * N + first + o) * (OH * OW)
            for p in tl.static_range(size):
                row, column = i + p // COLUMNS, j + p % COLUMNS
                total = totals[o * size + p].to(y.dtype.element_ty)
                tl.store(y + image + row * OW + column, total, mask=inside & (row < OH) & (column < OW))


@triton.jit(do_not_specialize=["B", "C", "G", "steps"])
def _chunks_by_patches(
    x, dy, which, chunks, B, C, G, sg, sb, sc, steps,
    H: tl.constexpr, W: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, N: tl.constexpr,
    K: tl.constexpr, PADDING: tl.constexpr, POOLED: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """chunks[n, g, o, k], for CHANNELS output channels o and one input channel c: the gradients of the taps
    k (the last one is the bias), summed over the n-th chunk of patches of 2x2 output pixels. A thread has
    the sums of all taps, and takes one patch at each of its steps. dy [SH, SW] is POOLED or has all output
    pixels."""
    g = tl.program_id(2)
    c, first = tl.program_id(1) % C, tl.program_id(1) // C * CHANNELS
    down: tl.constexpr = SH if POOLED else (SH + 1) // 2
    across: tl.constexpr = SW if POOLED else (SW + 1) // 2
    spread: tl.constexpr = K + 1
    columns: tl.constexpr = K * K + 1
    totals = ()
    for _ in tl.static_range(CHANNELS * columns):
        totals = totals + (tl.zeros((BLOCK,), dtype=tl.float32),)  # noqa: RUF005
    for step in range(0, steps):
        n = (tl.program_id(0) * steps + step) * BLOCK + tl.arange(0, BLOCK)
        b, i, j = n // (down * across), n // across % down * 2, n % across * 2
        inside = b < B
        image = x + g * sg + b * sb + c * sc
        pixels = _pixels(
            image, image, i, j, inside, H, W, 2 * down - 2, 2 * across - 2, -PADDING, K + 1, spread, False
        )
        sums = ()
        for o in tl.static_range(CHANNELS):
            start = ((g * B + b) * N + first + o) * (SH * SW)
            slopes = _pixels(
                dy + start, which + start, i, j, inside, SH, SW, 2 * down - 2, 2 * across - 2, 0, 2, 2, POOLED
            )
            for k in tl.static_range(K * K):
                total = _add(totals[o * columns + k], slopes, pixels, 2, k // K * spread + k % K, spread)
                sums = sums + (total,)  # noqa: RUF005
            total = totals[o * columns + K * K] + ((slopes[0] + slopes[1]) + (slopes[2] + slopes[3]))
            sums = sums + (total,)  # noqa: RUF005
        totals = sums
    for o in tl.static_range(CHANNELS):
        row = chunks + ((tl.program_id(0) * G + g) * N + first + o) * (C * K * K + 1)
        for k in tl.static_range(K * K):
            tl.store(row + c * (K * K) + k, tl.sum(totals[o * columns + k], axis=0))
        tl.store(row + C * K * K, tl.sum(totals[o * columns + K * K], axis=0), mask=c == 0)


def _in_groups(channels: int, most: int) -> int:
    """The largest size of equal groups of at most so many channels."""
    return next(size for size in range(min(channels, most), 0, -1) if channels % size == 0)


def _images_as_rows(x: Tensor) -> Tensor:
    """The images, copied if their pixels are not stored row by row; the other strides may be any."""
    return x if x.stride()[3:] == (x.shape[4], 1) else x.contiguous()


def convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    padding: int,
    flipped: bool = False,
    pooled: tuple[Tensor, tuple[int, int]] | None = None,
    pool: bool = False,
    relu: bool = False,
) -> tuple[Tensor, Tensor]:
    """The convolution, and which pixels were the largest of their windows (empty without `pool`).

    With `flipped` it is the transposed convolution, from the weight's outputs to its inputs. With `pooled`,
    x is gradients of windows, and `pooled` is which pixels they belong to, and the size of the image of
    these pixels. With `pool` the result is the largest pixel of every 2x2 window, after a ReLU with `relu`.
    """
    x = _images_as_rows(x) if pooled is None else x.contiguous()  # as `which` is
    weight = weight.contiguous()
    G, B, C, H, W = x.shape
    K = weight.shape[3]
    to, of = (2, 1) if flipped else (1, 2)
    N = weight.shape[to]
    OH, OW = (side + 2 * padding - K + 1 for side in (pooled[1] if pooled else (H, W)))
    size = (OH // 2, OW // 2) if pool else (OH, OW)
    y = torch.empty(G, B, N, *size, device=x.device, dtype=x.dtype)
    which = torch.empty(y.shape if pool else 0, device=x.device, dtype=torch.int8)
    rows, columns, channels, block = _patch(G * B, N, OH, OW)
    channels = _in_groups(N, channels)
    threads = B * triton.cdiv(OH, rows) * triton.cdiv(OW, columns)
    kernel: Any = _patches
    kernel[(triton.cdiv(threads, block), N // channels, G)](
        x, pooled[0] if pooled else x, weight, weight if bias is None else bias.contiguous(), y, which,
        B, C, *x.stride()[:3], weight.stride(0), weight.stride(to), weight.stride(of),
        H, W, OH, OW, N, K, padding, flipped, bias is not None, pooled is not None, pool, relu,
        rows, columns, channels, block, num_warps=block // 32,
    )  # fmt: skip
    return y, which


def _patch(images: int, N: int, OH: int, OW: int) -> tuple[int, int, int, int]:
    """Rows, columns and channels of a patch and threads of a block: the largest whose threads fill a GPU."""
    for columns, channels, block, enough in ((4, 6, 64, FILLED), (2, 6, 64, FILLED), (2, 3, 32, FILLED // 2)):
        if images * OH * OW // (2 * columns) * (N // _in_groups(N, channels)) >= enough:
            return 2, columns, channels, block
    return 2, 2, 1, 32


def chunks_of_weight_gradient(dy: Tensor, which: Tensor | None, x: Tensor, K: int, padding: int) -> Tensor:
    """The gradients of weight and bias in parts [n, G, N, C * K * K + 1], to be summed over n. With `which`,
    dy is gradients of windows."""
    x, dy = _images_as_rows(x), dy.contiguous()
    G, B, C, H, W = x.shape
    N, SH, SW = dy.shape[2:]
    patches = triton.cdiv(SH, 2) * triton.cdiv(SW, 2) if which is None else SH * SW
    warps = triton.cdiv(B * patches, 32)
    most = 6 * MOST_TAPS // (K * K)  # channels whose sums a thread can hold
    channels = _in_groups(N, min(6, most))
    if warps * C * (N // channels) * G < 2 * PROGRAMS:
        channels = _in_groups(N, min(3, most))  # for few samples, more programs
    groups = C * (N // channels)
    steps = min(triton.cdiv(warps * groups * G, PROGRAMS), warps)
    count = triton.cdiv(warps, steps)
    chunks = torch.empty(count, G, N, C * K * K + 1, device=x.device)
    kernel: Any = _chunks_by_patches
    kernel[(count, groups, G)](
        x, dy, dy if which is None else which, chunks, B, C, G, *x.stride()[:3], steps,
        H, W, SH, SW, N, K, padding, which is not None, channels, 32,
        num_warps=1,  # so that sums need no shared memory
    )  # fmt: skip
    return chunks
