"""Any vision backbone of the Hugging Face hub, through `transformers` (the extra `fedgela[hub]`).

`hf:ID` or `hf:FOLDER` (of save_pretrained). Features are the model's pooled output, or the mean of its last
hidden state over space or tokens. Images are normalised by the data's own statistics, as for other models.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedgela.errors import UserError, first_line
from fedgela.imports import told
from fedgela.inputs import InputSpec
from fedgela.models.net import Backbone, needs
from fedgela.models.own import draws
from fedgela.reachable import why_unreachable

PREFIX = "hf:"
SHORT_NAMES = {"efficientnet-b0": "google/efficientnet-b0"}  # the paper's, for Fed-ISIC2019
# architectures that are known without asking the hub: where their configs differ from the default
KNOWN_CONFIGS: dict[str, dict[str, Any]] = {
    "google/efficientnet-b0": {
        "model_type": "efficientnet",
        "image_size": 224,
        "width_coefficient": 1.0,
        "depth_coefficient": 1.0,
        "hidden_dim": 1280,
        "dropout_rate": 0.2,
    }
}
# what models raise for images that they cannot take
NO_IMAGE = (ValueError, RuntimeError, TypeError, AttributeError)


def is_hub_model(model: str) -> bool:
    return model in SHORT_NAMES or model.startswith(PREFIX)


def hub_id(model: str) -> str:
    return SHORT_NAMES.get(model, model.removeprefix(PREFIX))


class HubBackbone(Backbone):
    def __init__(self, name: str, spec: InputSpec, model: nn.Module) -> None:
        needs(name, "image", spec)
        channels, height, width = spec.shape
        super().__init__(width=0)  # set below, once the model has been tried
        self.model = model
        config: Any = model.config
        wanted = getattr(config, "num_channels", 3)
        if channels not in (1, wanted):  # grey images are repeated in every channel
            raise UserError(f"model {name} needs images of {wanted} channels, not {spec}")
        self.channels = wanted
        self.size: tuple[int, int] | None = None  # that images are resized to; None: they are not
        _adapt(model)
        x = torch.zeros(2, channels, height, width)
        self.eval()
        with torch.no_grad():
            try:
                z = self(x)
            except NO_IMAGE as error:  # perhaps it only takes images of its own size, like a ViT
                self.size = _own_size(config)
                if self.size is None or self.size == (height, width):
                    raise UserError(f"model {name} cannot take {spec}: {told(error)}") from None
                try:
                    z = self(x)
                except NO_IMAGE as error:
                    raise UserError(f"model {name} is no backbone for images: {told(error)}") from None
        self.train()
        if z.dim() != 2:
            raise UserError(f"model {name} gives no features [B, width], but {list(z.shape)}")
        self.width = z.shape[1]
        self.draws = draws(self, x)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] != self.channels:
            x = x.expand(-1, self.channels, -1, -1)
        if self.size is not None and x.shape[2:] != self.size:
            x = F.interpolate(x, self.size, mode="bilinear", antialias=True)
        output = self.model(pixel_values=x)
        pooled: Tensor | None = getattr(output, "pooler_output", None)
        if pooled is not None:
            return pooled.flatten(1)
        last: Tensor = output.last_hidden_state
        return last.mean(dim=(2, 3) if last.dim() == 4 else 1)

    def loadable(self) -> tuple[nn.Module, tuple[str, ...]]:
        """The names are a run's, the model's own, or those of a classifier that has it as a part."""
        prefix = f"{getattr(self.model, 'base_model_prefix', '')}."
        return self.model, ("backbone.model.", "", prefix)


def _own_size(config: Any) -> tuple[int, int] | None:
    size = getattr(config, "image_size", None)
    if isinstance(size, int):
        return size, size
    return (size[0], size[1]) if isinstance(size, (list, tuple)) and len(size) == 2 else None


def _adapt(model: Any) -> None:
    """Remove an untrained pooler, and give BatchNorm the momentum that is meant."""
    pooler = getattr(model, "pooler", None)
    if isinstance(getattr(pooler, "dense", None), nn.Linear):
        model.pooler = None  # a ViT's, as BERT has it: in hardly any checkpoint for images it is trained
    for part in model.modules():
        if isinstance(part, nn.BatchNorm2d) and part.momentum is not None and part.momentum > 0.5:
            # EfficientNet's 0.99 is TensorFlow's, the share that is kept; torch's is the share of the new
            part.momentum = round(1 - part.momentum, 6)


def hub_backbone(name: str, spec: InputSpec, pretrained: bool, weights: str | None) -> HubBackbone:
    """A backbone with pretrained weights from the hub or from a folder, or with random ones.

    Where `weights` is a file, only the architecture is made: the caller loads them into it.
    """
    try:
        from transformers import AutoConfig, AutoModel
    except ImportError:
        raise UserError(f"model {name} needs transformers: pip install 'fedgela[hub]'") from None
    if weights is not None and not Path(weights).is_dir():
        pretrained, weights = False, None
    source = weights or hub_id(name)
    offline = None if Path(source).is_dir() else why_unreachable()
    fetching = {"local_files_only": offline is not None}  # what was fetched before is in the libraries' cache
    try:
        if pretrained or weights:
            model, loaded = AutoModel.from_pretrained(
                source, dtype=torch.float32, output_loading_info=True, **fetching
            )
            _check_complete(name, source, loaded["missing_keys"])
        else:
            known = KNOWN_CONFIGS.get(source)
            fetch = AutoConfig.from_pretrained
            config = AutoConfig.for_model(**known) if known else fetch(source, **fetching)
            model = AutoModel.from_config(config, dtype=torch.float32)
    except (OSError, ValueError) as error:
        reason = offline or first_line(error)
        raise _unavailable(name, source, reason, pretrained or weights is not None) from None
    return HubBackbone(name, spec, model)


def _check_complete(name: str, source: str, missing: list[str] | set[str]) -> None:
    lacking = sorted(key for key in missing if not key.startswith("pooler."))
    if lacking:
        raise UserError(
            f"model {name}: the weights of {source} lack {len(lacking)} tensors, such as {lacking[0]!r}"
        )


def _unavailable(name: str, source: str, reason: str, with_weights: bool) -> UserError:
    what = "weights" if with_weights else "config"
    go_on = "--set weights=PATH takes a folder of save_pretrained or a .safetensors file"
    if not with_weights:
        go_on = "model = 'hf:FOLDER' takes a folder of save_pretrained, which holds it"
    elif source in KNOWN_CONFIGS or Path(source).is_dir():
        go_on = f"--no-pretrained starts from random weights; {go_on}"
    else:
        go_on = f"{go_on}; --no-pretrained starts from random weights (its config is still fetched)"
    return UserError(f"model {name}: the {what} of {source} cannot be loaded ({reason})\n{go_on}")
