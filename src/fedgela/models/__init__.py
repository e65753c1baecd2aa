"""Models by name, and the net that every method trains: backbone, projection, head."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from fedgela.errors import UserError, did_you_mean
from fedgela.imports import is_import_path
from fedgela.inputs import InputSpec
from fedgela.models.cnn import SimpleCNN, TinyCNN
from fedgela.models.hub import PREFIX, SHORT_NAMES, hub_backbone, hub_id, is_hub_model
from fedgela.models.lstm import LSTM
from fedgela.models.mlp import MLP
from fedgela.models.net import Backbone, Net, State, default_projection, on_cpu, on_device, plain_copy
from fedgela.models.norm import Policy, batchnorm_entries, with_groupnorm
from fedgela.models.own import own_backbone, own_maker
from fedgela.models.resnet import resnet18, resnet50
from fedgela.models.weights import load_weights
from fedgela.randomness import seed_of, seed_torch

__all__ = [
    "BACKBONES",
    "Backbone",
    "Net",
    "Policy",
    "State",
    "batchnorm_entries",
    "build_net",
    "check_model",
    "default_model",
    "default_projection",
    "on_cpu",
    "on_device",
    "plain_copy",
    "resolved_model",
]

BACKBONES: dict[str, Callable[[InputSpec], Backbone]] = {
    "tiny-cnn": TinyCNN,
    "simple-cnn": SimpleCNN,
    "resnet18": resnet18,
    "resnet50": resnet50,
    "lstm": LSTM,
    "mlp": MLP,
}


def default_model(spec: InputSpec) -> str:
    """The paper's ResNet18 for images, or a small net where they are too small for it; LEAF's LSTM for
    tokens, an MLP for features."""
    if spec.kind == "tokens":
        return "lstm"
    if spec.kind == "features":
        return "mlp"
    return "resnet18" if min(spec.shape[1:]) >= 16 else "tiny-cnn"


def resolved_model(name: str) -> str:
    """The model's name with the whole path of a folder in it, so that a run finds it from anywhere."""
    folder = Path(hub_id(name))
    return f"{PREFIX}{folder.resolve()}" if name.startswith(PREFIX) and folder.is_dir() else name


def check_model(name: str) -> None:
    """A UserError where no model has this name; a user's own is imported."""
    if name in BACKBONES or is_hub_model(name):
        return
    if is_import_path(name):
        own_maker(name)
        return
    names = [*BACKBONES, *SHORT_NAMES]
    raise UserError(
        f"there is no model {name!r}{did_you_mean(name, names)}; there are {', '.join(names)}, "
        "hf:ID of the Hugging Face hub, and your own as my_package.my_module:MyNet"
    )


def make_backbone(
    model: str,
    spec: InputSpec,
    pretrained: bool = True,
    weights: str | None = None,
    batchnorm: Policy = "averaged",
) -> Backbone:
    """A backbone by its model's name. `pretrained` is for models of the hub; `weights` is a .safetensors
    file, or for models of the hub also a folder of save_pretrained."""
    if weights is not None:
        check_weights(model, Path(weights))
    if is_hub_model(model):
        backbone: Backbone = hub_backbone(model, spec, pretrained, weights)
    elif model in BACKBONES:
        backbone = BACKBONES[model](spec)
    else:
        backbone = own_backbone(model, spec)
    if batchnorm == "group":
        with_groupnorm(backbone)
    if weights is not None and Path(weights).is_file():  # hub_backbone has loaded those of a folder
        load_weights(Path(weights), *backbone.loadable())
    return backbone


def check_weights(model: str | None, weights: Path) -> None:
    """A UserError where there are none; without a name the model is a default one, of this package's own."""
    if not weights.exists():
        raise UserError(f"weights: there is no file or folder {weights}")
    if weights.is_dir() and not (model and is_hub_model(model)):
        which = f"model {model}" if model else "a model of this package"
        raise UserError(f"weights: {weights} is a folder; {which} takes a .safetensors file")


def build_net(
    model: str,
    spec: InputSpec,
    d: int,
    head: Callable[[], nn.Module],
    seed: int,
    *,
    pretrained: bool = True,
    weights: str | None = None,
    batchnorm: Policy = "averaged",
) -> Net:
    """A net with initial weights drawn by the seed. Body and head have seeds of their own, so that all
    methods start from the same body, whatever their heads."""
    with torch.random.fork_rng(devices=[]):
        seed_torch(seed_of(seed, "init", "body"))
        backbone = make_backbone(model, spec, pretrained, weights, batchnorm)
        projection = nn.Linear(backbone.width, d)
        seed_torch(seed_of(seed, "init", "head"))
        net = Net(backbone, projection, head())
    _close_gaps(net)
    return net


def _close_gaps(net: Net) -> None:
    """Copy parameters that are views with gaps, such as `nn.Parameter(U[:, :r])`, into memory of their own.
    torch's fused optimisers on a CPU assume that there are no gaps, and would write into them."""
    for parameter in net.parameters():
        if torch.empty_like(parameter, device="meta").stride() != parameter.stride():
            parameter.data = parameter.data.clone()
