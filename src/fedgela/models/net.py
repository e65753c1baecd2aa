"""The net that every method trains: a backbone, one linear projection to d features, a head."""

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedgela.errors import UserError
from fedgela.inputs import InputSpec, Kind

State = dict[str, Tensor]  # a model's, server's or client's state: plain named tensors


def on_device(state: State, device: torch.device) -> State:
    return {name: value.to(device) for name, value in state.items()}


def on_cpu(state: State) -> State:
    """A state on the CPU. From a GPU all tensors of a type come in one copy, since each copy waits for it."""
    if all(value.device.type == "cpu" for value in state.values()):
        return state
    there: State = {}
    for dtype in {value.dtype for value in state.values()}:
        same = {name: value for name, value in state.items() if value.dtype == dtype}
        flat = torch.cat([value.flatten() for value in same.values()]).cpu()
        parts = torch.split(flat, [value.numel() for value in same.values()])
        there |= {name: part.view(state[name].shape) for name, part in zip(same, parts, strict=True)}
    return {name: there[name] for name in state}


def plain_copy(value: Tensor, device: torch.device | None = None) -> Tensor:
    """A copy, its numbers in memory in the order that they have in a file: sums depend on that order, and
    those of a resumed run are to be the same."""
    return value.detach().to(device, copy=True, memory_format=torch.contiguous_format)


class Backbone(nn.Module):
    """Maps a batch of samples, as an InputSpec describes them, to features [B, width]."""

    draws = False  # whether it draws random numbers in training other than in dropout layers
    stacks = True  # whether vmap can train several clients' at once (which also depends on its layers)
    takes_weights = True  # whether it computes rightly with weights that are lent to it, as lanes do
    fused = False  # whether on a GPU our own operations already do what a compiler would

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def loadable(self) -> tuple[nn.Module, tuple[str, ...]]:
        """The module that a file of weights is loaded into, and the prefixes that the names in the file may
        have: those of a run's global model, or none."""
        return self, ("backbone.", "")


def needs(model: str, kind: Kind, spec: InputSpec) -> None:
    if spec.kind != kind:
        raise UserError(f"model {model} needs {kind}, not {spec}")


def image_shape(model: str, spec: InputSpec, minimum: int) -> tuple[int, int, int]:
    """Channels, height and width of the images that a model takes."""
    if spec.kind != "image" or min(spec.shape[1:]) < minimum:
        raise UserError(f"model {model} needs images of at least {minimum}x{minimum}, not {spec}")
    channels, height, width = spec.shape
    return channels, height, width


class Net(nn.Module):
    """Backbone, projection, head. There is no activation between projection and head: after a ReLU the
    features could not reach an ETF's directions, which point into every orthant."""

    def __init__(self, backbone: Backbone, projection: nn.Linear, head: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.projection = projection
        self.head = head
        self.in_bf16 = False  # whether the backbone computes in bf16; projection, head and loss stay in fp32
        # made with requires_grad = False, which is remembered here since engines set it anew in every phase
        self.frozen = frozenset(name for name, p in self.named_parameters() if not p.requires_grad)

    def features(self, x: Tensor) -> Tensor:
        """z, [B, d]."""
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.in_bf16, cache_enabled=False):
            wide = self.backbone(x)
        if not _casts(self.projection):
            wide = wide.to(self.projection.weight.dtype)
        z: Tensor = self.projection(wide)
        return z

    def bf16_entries(self) -> set[str]:
        """Parameters that a step needs copies of in bf16: those of the backbone's convolutions and linear
        layers, unless these cast as they read."""
        if not self.in_bf16:
            return set()
        return {
            f"backbone.{name}.{entry}"
            for name, part in self.backbone.named_modules()
            if isinstance(part, (nn.Conv2d, nn.Linear)) and not _casts(part)
            for entry, _ in part.named_parameters(recurse=False)
        }

    @torch.no_grad()
    def features_of(self, state: State, x: Tensor) -> Tensor:
        """z, [B, d], by another model's state (a teacher's), in evaluation mode and without gradients."""
        if not self.backbone.takes_weights:
            raise UserError(
                "this method asks the model with other weights, which it does not take: its parameters are "
                "in a list or a lambda or have hooks, or it has activation checkpoints"
            )
        was_training = self.training
        self.eval()
        try:
            # a state dict holds tied weights under each of their names already
            z: Tensor = functional_call(self, state, (x,), {"only_features": True}, tie_weights=False)
        finally:
            self.train(was_training)
        return z

    def forward(self, x: Tensor, only_features: bool = False) -> Tensor:
        """Logits [B, C], or z [B, d]."""
        if only_features:
            return self.features(x)
        logits: Tensor = self.head(self.features(x))
        return logits


def _casts(layer: nn.Module) -> bool:
    """Whether a layer itself casts its input and weights to the type that it computes in
    (training/stacking.py)."""
    return bool(getattr(layer, "casts", False))


def default_projection(classes: int) -> int:
    """d: the paper's 84, and 512 for CIFAR100; never below the number of classes, which an ETF needs."""
    return 84 if classes <= 84 else max(512, classes)
