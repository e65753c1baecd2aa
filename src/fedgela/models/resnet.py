"""ResNet18 and ResNet50 for 32x32 images: a 3x3 stem of stride 1 and no pooling before the stages."""

from torch import Tensor, nn

from fedgela.inputs import InputSpec
from fedgela.models.net import Backbone, image_shape
from fedgela.operations.normalisation import normalise, normalise_and_fork
from fedgela.operations.stem import StemConv2d


def _conv(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)


class _Layers(nn.Sequential):
    """Convolutions, each followed by a normalisation and a ReLU, which are computed together.

    The last ReLU may be missing from the list. If a residual is added, a ReLU follows in any case.
    """

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        return normalise(*self._up_to_the_last(x, residual))

    def forked(self, x: Tensor, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The output twice, once for each of the next block's two ways."""
        return normalise_and_fork(*self._up_to_the_last(x, residual))

    def _up_to_the_last(
        self, x: Tensor, residual: Tensor | None
    ) -> tuple[nn.Module, Tensor, Tensor | None, bool]:
        """All but the last normalisation, whose arguments are returned."""
        layers = list(self)
        *first, (convolution, norm) = zip(layers[0::3], layers[1::3], strict=True)
        for earlier, its_norm in first:
            x = normalise(its_norm, earlier(x))
        return norm, convolution(x), residual, residual is not None or len(layers) % 3 == 0


class _Block(nn.Module):
    """A residual block: `body` beside a shortcut, which is a 1x1 convolution where shapes differ.

    It takes its input twice, once for each of the two ways, and gives its output twice (normalise_and_fork).
    """

    def __init__(self, body: _Layers, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = body
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = _Layers(_conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))

    def forward(self, twice: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        x, again = twice
        return self.body.forked(x, self.shortcut(again))


def _basic(inputs: int, width: int, stride: int) -> _Block:
    body = _Layers(
        _conv(inputs, width, 3, stride),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        _conv(width, width, 3),
        nn.BatchNorm2d(width),
    )
    return _Block(body, inputs, width, stride)


def _bottleneck(inputs: int, width: int, stride: int) -> _Block:
    body = _Layers(
        _conv(inputs, width, 1),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        _conv(width, width, 3, stride),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        _conv(width, 4 * width, 1),
        nn.BatchNorm2d(4 * width),
    )
    return _Block(body, inputs, 4 * width, stride)


class ResNet(Backbone):
    """Stem, four stages of 64, 128, 256 and 512 channels, global average pooling."""

    fused = True

    def __init__(self, name: str, spec: InputSpec, depths: tuple[int, ...]) -> None:
        channels, *_ = image_shape(name, spec, minimum=16)
        make, expansion = (_basic, 1) if name == "resnet18" else (_bottleneck, 4)
        super().__init__(width=512 * expansion)
        first = StemConv2d(channels, 64, 3, padding=1, bias=False)
        self.stem = _Layers(first, nn.BatchNorm2d(64), nn.ReLU())
        blocks, inputs = [], 64
        for stage, depth in enumerate(depths):
            stage_width = 64 * 2**stage
            for i in range(depth):
                blocks.append(make(inputs, stage_width, 2 if stage > 0 and i == 0 else 1))
                inputs = stage_width * expansion
        self.blocks = nn.Sequential(*blocks)

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.blocks(self.stem.forked(x))
        features: Tensor = y.mean(dim=(2, 3))
        return features


def resnet18(spec: InputSpec) -> ResNet:
    return ResNet("resnet18", spec, (2, 2, 2, 2))


def resnet50(spec: InputSpec) -> ResNet:
    return ResNet("resnet50", spec, (3, 4, 6, 3))
