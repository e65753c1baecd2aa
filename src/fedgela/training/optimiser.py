"""The optimiser of local training: one choice for every method of a run."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedgela.models import State


@dataclass(frozen=True)
class Optimiser:
    """The kind of optimiser and its settings; the paper's SGD by default. Every local round begins with a new
    one, whose momentum is zero."""

    name: str = "sgd"
    momentum: float = 0.9
    weight_decay: float = 1e-4
    clip_norm: float = 0.0  # of all gradients together; 0 is off

    def over(
        self, parameters: Sequence[Tensor], lr: float | Tensor, slots: Sequence[State] | None = None
    ) -> torch.optim.Optimizer:
        """torch's optimiser of these parameters. With `slots` it keeps its state in those tensors. A learning
        rate that is a tensor may change between the replays of a captured step."""
        optimiser: torch.optim.Optimizer
        # fused: one kernel for all parameters, on CPU and GPU alike
        if self.name == "sgd":
            optimiser = torch.optim.SGD(
                parameters, lr, self.momentum, weight_decay=self.weight_decay, fused=True
            )
        else:
            kind = torch.optim.AdamW if self.name == "adamw" else torch.optim.Adam
            optimiser = kind(
                parameters,
                lr,
                weight_decay=self.weight_decay,
                fused=True,
                capturable=isinstance(lr, Tensor) and lr.is_cuda,
            )
        for parameter, slot in zip(parameters, slots or (), strict=bool(slots)):
            optimiser.state[parameter] = dict(slot)
        return optimiser

    def slots(self, parameter: Tensor) -> State:
        """The optimiser's state for a parameter before the first step: zeros. Without dampening, a momentum
        buffer of zeros does the same as torch's, which is made of the first gradient."""
        if self.name == "sgd":
            return {"momentum_buffer": torch.zeros_like(parameter)} if self.momentum else {}
        return {
            "step": torch.zeros((), device=parameter.device),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }


def clip_by_client(gradients: Sequence[Tensor], longest: float) -> None:
    """Scale every client's gradients so that the norm of all of them together is at most `longest`. Each
    tensor holds all clients' gradients, stacked: [v, ...]."""
    squares = torch.stack([g.flatten(1).square().sum(dim=1) for g in gradients])
    scale = (longest / (squares.sum(dim=0).sqrt() + 1e-6)).clamp(max=1.0)  # as clip_grad_norm_ does
    for g in gradients:
        g.mul_(scale.view(-1, *[1] * (g.dim() - 1)))
