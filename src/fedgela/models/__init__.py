"""Backbones that give features, and the net: backbone, projection, head."""

from collections.abc import Callable

import torch
from torch import nn

from fedgela.inputs import InputSpec
from fedgela.models.cnn import SimpleCNN, TinyCNN
from fedgela.models.net import Backbone, Net, State, default_projection
from fedgela.models.resnet import resnet18, resnet50
from fedgela.randomness import seed_of

__all__ = [
    "BACKBONES",
    "Backbone",
    "Net",
    "State",
    "build_net",
    "default_model",
    "default_projection",
]

BACKBONES: dict[str, Callable[[InputSpec], Backbone]] = {
    "tiny-cnn": TinyCNN,
    "simple-cnn": SimpleCNN,
    "resnet18": resnet18,
    "resnet50": resnet50,
}


def default_model(spec: InputSpec) -> str:
    """The paper's ResNet18, or the small net where images are too small for it."""
    return "resnet18" if min(spec.shape[1:]) >= 16 else "tiny-cnn"


def build_net(model: str, spec: InputSpec, d: int, head: Callable[[], nn.Module], seed: int) -> Net:
    """A net with initial weights from the seed: the same body for every method, whatever its head."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(seed, "init", "body"))
        backbone = BACKBONES[model](spec)
        projection = nn.Linear(backbone.width, d)
        torch.manual_seed(seed_of(seed, "init", "head"))
        return Net(backbone, projection, head())
