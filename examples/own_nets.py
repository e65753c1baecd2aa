"""A net of one's own: any torch.nn.Module that gives features [B, width].

It is called with the InputSpec of the data, or with nothing where its __init__ takes nothing.
"""

import math

from torch import Tensor, nn

from fedgela.inputs import InputSpec


class TinyNet(nn.Module):
    """One hidden layer over the flattened image. Its width is found by trying it on two samples."""

    def __init__(self, spec: InputSpec) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(math.prod(spec.shape), 64), nn.ReLU(), nn.Dropout(0.1)
        )

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.layers(x)
        return z
