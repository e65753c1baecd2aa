"""The optimiser of local training: one choice for every method of a run."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class Optimiser:
    """SGD with the paper's values as defaults. Made anew for every local round: momentum starts at 0."""

    name: str = "sgd"
    momentum: float = 0.9
    weight_decay: float = 1e-4
    clip_norm: float = 0.0  # of all gradients together; 0 is off

    def over(self, parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
        parameters = list(parameters)
        # fused: one kernel for all parameters, on CPU and GPU alike
        if self.name == "sgd":
            return torch.optim.SGD(parameters, lr, self.momentum, weight_decay=self.weight_decay, fused=True)
        kind = torch.optim.AdamW if self.name == "adamw" else torch.optim.Adam
        return kind(parameters, lr, weight_decay=self.weight_decay, fused=True)
