"""The cross-entropy of every sample, and a lane's sums of losses by class."""

from typing import Any

import torch
from torch import Tensor

from fedgela.operations import dispatch
from fedgela.operations.dispatch import in_front

MOST_CLASSES = 1024  # logits of a sample that fit into one block of our kernels


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """The loss of every sample, [B], from logits [B, C] and labels [B]. As F.cross_entropy without reduction,
    but in fewer kernels under vmap, since no label is ever to be ignored."""
    if dispatch.by_kernels(logits) and logits.dtype == torch.float32 and logits.shape[1] <= MOST_CLASSES:
        losses: Tensor = losses_of(logits, y)
        return losses
    return -logits.log_softmax(dim=1).gather(1, y[:, None]).squeeze(1)


@torch.library.custom_op("fedgela::cross_entropy", mutates_args=())
def losses_of(logits: Tensor, y: Tensor) -> Tensor:
    """The losses [...] of logits [..., C] in float32 and labels y [...]."""
    from fedgela.operations.kernels import loss

    return loss.cross_entropy(logits, y)


@losses_of.register_fake
def _(logits: Tensor, y: Tensor) -> Tensor:
    return logits.new_empty(logits.shape[:-1])


@torch.library.custom_op("fedgela::cross_entropy_gradient", mutates_args=())
def gradient_of(slopes: Tensor, logits: Tensor, y: Tensor) -> Tensor:
    from fedgela.operations.kernels import loss

    return loss.cross_entropy_gradient(slopes, logits, y)


@gradient_of.register_fake
def _(slopes: Tensor, logits: Tensor, y: Tensor) -> Tensor:
    return logits.new_empty(logits.shape)


def _setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _gradient(ctx: Any, slopes: Tensor) -> tuple[Tensor, None]:
    return gradient_of(slopes, *ctx.saved_tensors), None


losses_of.register_autograd(_gradient, setup_context=_setup_context)


def _stacked(info: Any, dims: tuple[int | None, ...], logits: Tensor, y: Tensor) -> tuple[Tensor, int]:
    """Every sample has its own loss, so clients are only one more dimension of samples."""
    return losses_of(in_front(logits, dims[0], info), in_front(y, dims[1], info)), 0


torch.library.register_vmap("fedgela::cross_entropy", _stacked)


def record(losses: Tensor, y: Tensor, sums: Tensor, counters: Tensor) -> None:
    """Add losses [v, B] to the sums [width, C] of their classes, and one to every counter [1 + v]."""
    if dispatch.by_kernels(losses) and sums.shape[1] <= MOST_CLASSES:
        from fedgela.operations.kernels import loss

        loss.record(losses, y, sums, counters)
        return
    sums[: len(y)].scatter_add_(1, y, losses)
    counters.add_(1)
