"""The paper's Simple-CNN, and a smaller one for images as small as 8x8.

Pooling comes before the ReLU: the result is the same in both orders, and the ReLU has a quarter of the work.
"""

from torch import Tensor, nn

from fedgela.inputs import InputSpec
from fedgela.models.net import Backbone, image_shape


class SimpleCNN(Backbone):
    """Two 5x5 convolutions (6 and 16 channels), each with 2x2 max pooling, then 120 and 84 units."""

    def __init__(self, spec: InputSpec) -> None:
        channels, height, width = image_shape("simple-cnn", spec, minimum=16)
        super().__init__(width=84)
        flat = 16 * _after_two(height) * _after_two(width)
        self.layers = nn.Sequential(
            nn.Conv2d(channels, 6, 5),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(6, 16, 5),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(flat, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
        )

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.layers(x)
        return z


def _after_two(size: int) -> int:
    """A side's length after two valid 5x5 convolutions with 2x2 pooling."""
    return ((size - 4) // 2 - 4) // 2


class TinyCNN(Backbone):
    """Two padded 3x3 convolutions (16 and 32 channels) with 2x2 max pooling: made for 8x8 digits."""

    def __init__(self, spec: InputSpec) -> None:
        channels, height, width = image_shape("tiny-cnn", spec, minimum=4)
        super().__init__(width=32 * (height // 4) * (width // 4))
        self.layers = nn.Sequential(
            nn.Conv2d(channels, 16, 3, padding=1),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Flatten(),
        )

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.layers(x)
        return z
