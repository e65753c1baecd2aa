"""A multi-layer perceptron for features: tables, or what another model has computed."""

from torch import Tensor, nn

from fedgela.inputs import InputSpec
from fedgela.models.net import Backbone, needs

HIDDEN = 128


class MLP(Backbone):
    """Two hidden layers of 128 units with ReLU."""

    def __init__(self, spec: InputSpec) -> None:
        needs("mlp", "features", spec)
        super().__init__(width=HIDDEN)
        self.layers = nn.Sequential(
            nn.Linear(spec.shape[0], HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU()
        )

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.layers(x)
        return z
