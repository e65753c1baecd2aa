"""Recurrent layers (LSTM, GRU, RNN) on a GPU, where cuDNN computes them.

cuDNN wants all weights of a layer in one block of memory, and torch moves weights there when it first sees
them. They are then no longer where a lane reads and writes them, and what they learn would be lost. Under
autocast, torch computes these layers in fp16 whatever type was asked for; without loss scaling, small
gradients become zero in fp16.
"""

import warnings

from torch import nn


def is_recurrent(net: nn.Module) -> bool:
    return any(isinstance(part, nn.RNNBase) for part in net.modules())


def keep_weights_in_place(net: nn.Module) -> None:
    """Have torch copy recurrent layers' weights for cuDNN at every call, instead of moving them once."""
    for part in net.modules():
        if isinstance(part, nn.RNNBase):
            part.flatten_parameters = _leave  # type: ignore[method-assign]
    # torch warns of these copies
    warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk")


def _leave() -> None: ...
