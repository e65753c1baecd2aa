"""Recurrent layers (LSTM, GRU, RNN) on a GPU, where cuDNN computes them.

It wants their weights in one piece, and torch moves them there when it meets new ones: the tensors that it is
given then no longer lie where a lane reads and writes them, and what is learnt would never leave the lane.
And under autocast torch computes them in fp16, whatever type was asked for; without loss scaling small
gradients are zero there.
"""

import warnings

from torch import nn


def is_recurrent(net: nn.Module) -> bool:
    return any(isinstance(part, nn.RNNBase) for part in net.modules())


def keep_weights_in_place(net: nn.Module) -> None:
    """Let cuDNN copy recurrent layers' weights at every call instead of moving them once."""
    for part in net.modules():
        if isinstance(part, nn.RNNBase):
            part.flatten_parameters = _leave  # type: ignore[method-assign]
    # that it copies them it would tell whoever trains
    warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk")


def _leave() -> None: ...
