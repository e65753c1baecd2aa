"""BatchNorm by the batch's own statistics, with the residual addition and the ReLU after it.

x is [M, C]: channels last, so that a row is a pixel. Forward and backward take two kernels each. The first
computes sums over chunks of rows, [P, C]; the program that finishes last adds these up, always in the same
order. The second writes the result. Sums are in float32. Those for a variance are of distances from the
chunk's first row: if values are far from zero, the difference of sums of their squares would lose all
digits.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedgela.operations.normalisation import MOST_CHANNELS

# sizes of tiles of x, measured on an H200: rows, channels and warps. For sums a program takes several tiles,
# to write results it takes one
SUMMED = (64, 32, 4)
WRITTEN = (16, 64, 2)
PROGRAMS = 528  # about so many compute sums: four on each multiprocessor
STAGES = 3  # tiles that a program loads ahead of the one that it sums
ADDED = 64  # sums of chunks that are added at a time


@triton.jit
def _tile(tile, M, C, ROWS: tl.constexpr, CHANNELS: tl.constexpr):
    """The offsets of a tile's values, and which of them exist."""
    m = tile * ROWS + tl.arange(0, ROWS)
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    return m[:, None] * C + c[None, :], (m < M)[:, None] & (c < C)[None, :]


@triton.jit
def _is_last(arrived):
    """Whether this is the last program of these channels to arrive here, so that the others' sums are
    written. The last one sets the count back to zero."""
    arrived += tl.program_id(1)
    tl.debug_barrier()  # until all threads of this program have written
    last = tl.atomic_add(arrived, 1, sem="acq_rel") == tl.num_programs(0) - 1
    if last:
        tl.store(arrived, 0)
    return last


@triton.jit(do_not_specialize=["M", "steps"])  # compiled once for all sizes of batches
def _moments(
    x, chunks, arrived, statistics, running_mean, running_var, batches, M, C, steps, eps, momentum,
    ADDED: tl.constexpr, STAGES: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Means and inverse deviations of the channels, and the running statistics. chunks[0] are the means of
    chunks of rows, chunks[1] the sums of squared distances from these."""
    p, P = tl.program_id(0), tl.num_programs(0)
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    there = c < C
    rows = steps * ROWS
    near = tl.load(x + p * rows * C + c, mask=there, other=0.0).to(tl.float32)
    total = tl.zeros((ROWS, CHANNELS), dtype=tl.float32)
    squares = tl.zeros((ROWS, CHANNELS), dtype=tl.float32)
    for step in tl.range(0, steps, num_stages=STAGES):
        place, inside = _tile(p * steps + step, M, C, ROWS, CHANNELS)
        pixels = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
        distance = tl.where(inside, pixels - near[None, :], 0.0)
        total += distance
        squares += distance * distance
    count = tl.minimum(M - p * rows, rows).to(tl.float32)
    mean = tl.sum(total, axis=0) / count
    tl.store(chunks + p * C + c, near + mean, mask=there)
    tl.store(chunks + (P + p) * C + c, tl.sum(squares, axis=0) - count * mean * mean, mask=there)
    if _is_last(arrived):
        mean, variance = _moments_of_all(chunks, c, M, C, rows, ADDED, CHANNELS)
        tl.store(statistics + c, mean, mask=there)
        tl.store(statistics + C + c, tl.rsqrt(variance + eps), mask=there)
        before = tl.load(running_mean + c, mask=there, other=0.0)
        tl.store(running_mean + c, before + momentum * (mean - before), mask=there)
        unbiased = variance * (M / (M - 1.0))
        before = tl.load(running_var + c, mask=there, other=0.0)
        tl.store(running_var + c, before + momentum * (unbiased - before), mask=there)
        if tl.program_id(1) == 0:
            tl.store(batches, tl.load(batches) + 1)


@triton.jit
def _moments_of_all(chunks, c, M, C, rows, ADDED: tl.constexpr, CHANNELS: tl.constexpr):
    """Mean and variance of the channels c, from those of the chunks, which have `rows` rows each."""
    P = tl.num_programs(0)
    near = tl.load(chunks + c, mask=c < C, other=0.0, cache_modifier=".cg")
    total = tl.zeros((ADDED, CHANNELS), dtype=tl.float32)
    squares = tl.zeros((ADDED, CHANNELS), dtype=tl.float32)
    for start in range(0, P, ADDED):
        p = start + tl.arange(0, ADDED)
        place, inside = p[:, None] * C + c[None, :], (p < P)[:, None] & (c < C)[None, :]
        count = tl.minimum(M - p * rows, rows).to(tl.float32)[:, None]
        # past the L1 cache, since other programs have written these
        mean = tl.load(chunks + place, mask=inside, other=0.0, cache_modifier=".cg")
        square = tl.load(chunks + P * C + place, mask=inside, other=0.0, cache_modifier=".cg")
        distance = tl.where(inside, mean - near[None, :], 0.0)
        total += count * distance
        squares += count * distance * distance + square
    away = tl.sum(total, axis=0) / M
    return near + away, tl.maximum(tl.sum(squares, axis=0) / M - away * away, 0.0)


@triton.jit(do_not_specialize=["M"])
def _normalise(
    x, residual, statistics, weight, bias, y, M, C,
    RESIDUAL: tl.constexpr, RELU: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    there = c < C
    place, inside = _tile(tl.program_id(0), M, C, ROWS, CHANNELS)
    pixels = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    mean = tl.load(statistics + c, mask=there, other=0.0)
    scale = tl.load(statistics + C + c, mask=there, other=0.0) * tl.load(weight + c, mask=there, other=0.0)
    z = (pixels - mean[None, :]) * scale[None, :] + tl.load(bias + c, mask=there, other=0.0)[None, :]
    if RESIDUAL:
        z += tl.load(residual + place, mask=inside, other=0.0).to(tl.float32)
    if RELU:
        z = tl.where(z <= 0, 0.0, z)
    tl.store(y + place, z.to(y.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["M", "steps"])
def _sums_of_slopes(
    dy, also, y, x, statistics, weight, bias, dz, chunks, arrived, dweight, dbias, M, C, steps,
    FORKED: tl.constexpr, RESIDUAL: tl.constexpr, RELU: tl.constexpr,
    ADDED: tl.constexpr, STAGES: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """dweight and dbias. chunks[0] are the sums of dz over chunks of rows, chunks[1] those of dz times the
    normalised x.

    dz is the gradient before the ReLU: dy, or for a FORKED y the sum of both its gradients, with zeros where
    the ReLU gave zero. Where that is, is seen in y, or without a RESIDUAL in x, which is read anyway. dz is
    written if it is needed later and is not dy itself: if it is a sum, or the gradient of the RESIDUAL.
    """
    p, P = tl.program_id(0), tl.num_programs(0)
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    there = c < C
    mean = tl.load(statistics + c, mask=there, other=0.0)
    inverse = tl.load(statistics + C + c, mask=there, other=0.0)
    scale = inverse * tl.load(weight + c, mask=there, other=0.0)
    shift = tl.load(bias + c, mask=there, other=0.0)
    total = tl.zeros((ROWS, CHANNELS), dtype=tl.float32)
    products = tl.zeros((ROWS, CHANNELS), dtype=tl.float32)
    for step in tl.range(0, steps, num_stages=STAGES):
        place, inside = _tile(p * steps + step, M, C, ROWS, CHANNELS)
        slopes = tl.load(dy + place, mask=inside, other=0.0).to(tl.float32)
        if FORKED:
            slopes += tl.load(also + place, mask=inside, other=0.0).to(tl.float32)
            slopes = slopes.to(dz.dtype.element_ty).to(tl.float32)  # as it is written
        distance = tl.load(x + place, mask=inside, other=0.0).to(tl.float32) - mean[None, :]
        if RELU:
            if RESIDUAL:
                z = tl.load(y + place, mask=inside, other=0.0).to(tl.float32)
            else:
                z = distance * scale[None, :] + shift[None, :]
            slopes = tl.where(z <= 0, 0.0, slopes)
        if FORKED or (RELU and RESIDUAL):
            tl.store(dz + place, slopes.to(dz.dtype.element_ty), mask=inside)
        total += slopes
        products += slopes * distance
    tl.store(chunks + p * C + c, tl.sum(total, axis=0), mask=there)
    tl.store(chunks + (P + p) * C + c, tl.sum(products, axis=0) * inverse, mask=there)
    if _is_last(arrived):
        tl.store(dbias + c, _sum_of_all(chunks, c, C, ADDED, CHANNELS), mask=there)
        tl.store(dweight + c, _sum_of_all(chunks + P * C, c, C, ADDED, CHANNELS), mask=there)


@triton.jit
def _sum_of_all(chunks, c, C, ADDED: tl.constexpr, CHANNELS: tl.constexpr):
    P = tl.num_programs(0)
    total = tl.zeros((ADDED, CHANNELS), dtype=tl.float32)
    for start in range(0, P, ADDED):
        p = start + tl.arange(0, ADDED)
        inside = (p < P)[:, None] & (c < C)[None, :]
        total += tl.load(chunks + p[:, None] * C + c[None, :], mask=inside, other=0.0, cache_modifier=".cg")
    return tl.sum(total, axis=0)


@triton.jit(do_not_specialize=["M"])
def _gradients(
    dz, x, statistics, weight, bias, dweight, dbias, dx, M, C,
    RELU: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """dx from dz. With RELU, dz was not written: dy is given in its place, and the ReLU still applied."""
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    there = c < C
    place, inside = _tile(tl.program_id(0), M, C, ROWS, CHANNELS)
    slopes = tl.load(dz + place, mask=inside, other=0.0).to(tl.float32)
    distance = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    distance -= tl.load(statistics + c, mask=there, other=0.0)[None, :]
    inverse = tl.load(statistics + C + c, mask=there, other=0.0)
    scale = inverse * tl.load(weight + c, mask=there, other=0.0)
    level = tl.load(dbias + c, mask=there, other=0.0) / M
    tilt = tl.load(dweight + c, mask=there, other=0.0) * inverse / M
    if RELU:
        shift = tl.load(bias + c, mask=there, other=0.0)
        slopes = tl.where(distance * scale[None, :] + shift[None, :] <= 0, 0.0, slopes)
    slopes = (slopes - level[None, :] - distance * tilt[None, :]) * scale[None, :]
    tl.store(dx + place, slopes.to(dx.dtype.element_ty), mask=inside)


_arrived: dict[tuple[torch.device, int], Tensor] = {}


def _counts(device: torch.device) -> Tensor:
    """Counters of the programs of each block of channels that have arrived; zero between kernels.

    Every stream has its own, since the kernels of one stream run one after another. They are made when a
    stream is first used, which is before any capture.
    """
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    if (device, stream) not in _arrived:
        _arrived[device, stream] = torch.zeros(MOST_CHANNELS, dtype=torch.int32, device=device)
    return _arrived[device, stream]


def _to_sum(M: int, C: int) -> tuple[tuple[int, int], int]:
    """The grid for sums, chunks of rows by blocks of channels, and the number of tiles of each program."""
    rows, channels, _ = SUMMED
    tiles, across = triton.cdiv(M, rows), triton.cdiv(C, channels)
    steps = triton.cdiv(tiles, max(1, PROGRAMS // across))
    return (triton.cdiv(tiles, steps), across), steps


def _to_write(M: int, C: int) -> tuple[int, int]:
    rows, channels, _ = WRITTEN
    return triton.cdiv(M, rows), triton.cdiv(C, channels)


def forward(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    running: tuple[Tensor, Tensor, Tensor],
    eps: float,
    momentum: float,
    relu: bool,
) -> tuple[Tensor, Tensor]:
    """y, and the channels' means and inverse deviations, [2, C]. `running` (mean, variance, number of
    batches) is updated in place."""
    C = x.shape[1]
    M = x.numel() // C
    grid, steps = _to_sum(M, C)
    statistics = torch.empty(2, C, device=x.device)
    chunks = torch.empty(2, grid[0], C, device=x.device)
    *tile, warps = SUMMED
    moments: Any = _moments
    moments[grid](
        x, chunks, _counts(x.device), statistics, *running, M, C, steps, eps, momentum, ADDED, STAGES, *tile,
        num_warps=warps,
    )  # fmt: skip
    return by_statistics(x, residual, statistics, weight, bias, relu), statistics


def by_statistics(
    x: Tensor, residual: Tensor | None, statistics: Tensor, weight: Tensor, bias: Tensor, relu: bool
) -> Tensor:
    """y, by these means and inverse deviations of the channels, [2, C]."""
    C = x.shape[1]
    y = torch.empty_like(x)
    *tile, warps = WRITTEN
    kernel: Any = _normalise
    kernel[_to_write(x.numel() // C, C)](
        x, x if residual is None else residual, statistics, weight, bias, y, x.numel() // C, C,
        residual is not None, relu, *tile, num_warps=warps,
    )  # fmt: skip
    return y


def gradients(
    dy: Tensor,
    also: Tensor | None,
    y: Tensor | None,
    x: Tensor,
    statistics: Tensor,
    weight: Tensor,
    bias: Tensor,
    relu: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """dx, dz, dweight and dbias. `also` is another gradient of the same output, to be added to dy. `y` is
    given if there was a residual, whose gradient is dz."""
    C = x.shape[1]
    M = x.numel() // C
    grid, steps = _to_sum(M, C)
    dx = torch.empty_like(x)
    written = also is not None or (relu and y is not None)
    dz = torch.empty_like(x) if written else dy
    dweight, dbias = torch.empty_like(weight), torch.empty_like(bias)
    chunks = torch.empty(2, grid[0], C, device=x.device)
    *tile, warps = SUMMED
    sums: Any = _sums_of_slopes
    sums[grid](
        dy, dy if also is None else also, x if y is None else y, x, statistics, weight, bias, dz, chunks,
        _counts(x.device), dweight, dbias, M, C, steps,
        also is not None, y is not None, relu, ADDED, STAGES, *tile, num_warps=warps,
    )  # fmt: skip
    *tile, warps = WRITTEN
    kernel: Any = _gradients
    kernel[_to_write(M, C)](
        dz, x, statistics, weight, bias, dweight, dbias, dx, M, C, relu and not written, *tile,
        num_warps=warps,
    )  # fmt: skip
    return dx, dz, dweight, dbias
