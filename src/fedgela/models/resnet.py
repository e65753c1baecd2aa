"""ResNet18 and ResNet50 for 32x32 images: a 3x3 stem of stride 1 and no pooling before the stages."""

from torch import Tensor, nn
from torch.nn import functional as F

from fedgela.inputs import InputSpec
from fedgela.models.net import Backbone, image_shape


def _conv(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)


class _Block(nn.Module):
    """A residual block: `body` beside a shortcut, which is a 1x1 convolution where shapes differ."""

    def __init__(self, body: nn.Sequential, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = body
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(_conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


def _basic(inputs: int, width: int, stride: int) -> _Block:
    body = nn.Sequential(
        _conv(inputs, width, 3, stride),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        _conv(width, width, 3),
        nn.BatchNorm2d(width),
    )
    return _Block(body, inputs, width, stride)


def _bottleneck(inputs: int, width: int, stride: int) -> _Block:
    body = nn.Sequential(
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

    def __init__(self, name: str, spec: InputSpec, depths: tuple[int, ...]) -> None:
        channels, *_ = image_shape(name, spec, minimum=16)
        make, expansion = (_basic, 1) if name == "resnet18" else (_bottleneck, 4)
        super().__init__(width=512 * expansion)
        self.stem = nn.Sequential(_conv(channels, 64, 3), nn.BatchNorm2d(64), nn.ReLU())
        blocks, inputs = [], 64
        for stage, depth in enumerate(depths):
            stage_width = 64 * 2**stage
            for i in range(depth):
                blocks.append(make(inputs, stage_width, 2 if stage > 0 and i == 0 else 1))
                inputs = stage_width * expansion
        self.blocks = nn.Sequential(*blocks)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.stem(x))
        return x.mean(dim=(2, 3))


def resnet18(spec: InputSpec) -> ResNet:
    return ResNet("resnet18", spec, (2, 2, 2, 2))


def resnet50(spec: InputSpec) -> ResNet:
    return ResNet("resnet50", spec, (3, 4, 6, 3))
