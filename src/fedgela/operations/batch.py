"""The batch of a step of several clients, from images that are on the GPU as uint8."""

import torch
from torch import Tensor

from fedgela.operations import dispatch


def gathers(images: Tensor) -> bool:
    """Whether `gather` can make batches of these images."""
    return dispatch.by_kernels(images) and images.dtype == torch.uint8 and images.is_contiguous()


def gather(
    images: Tensor,
    labels: Tensor,
    index: Tensor,
    at: Tensor,
    normalisation: tuple[Tensor, Tensor],
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """x [v, B, ...] and y [v, B] of the samples in row at[0] of the index [v, rows, B]; x is normalised by
    (scale, shift) of its channel, and in `dtype`."""
    from fedgela.operations.kernels import batch

    return batch.gather(images, labels, index, at, *normalisation, dtype)
