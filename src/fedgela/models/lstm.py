"""LEAF's net for Shakespeare: characters are embedded in 8 numbers and read by a two-layer LSTM.

Caldas et al., LEAF: A Benchmark for Federated Settings, 2018.
"""

from torch import Tensor, nn

from fedgela.inputs import InputSpec
from fedgela.models.net import Backbone, needs

EMBEDDING, HIDDEN, LAYERS = 8, 256, 2


class LSTM(Backbone):
    """Its features are the upper layer's hidden state after the last token."""

    def __init__(self, spec: InputSpec) -> None:
        needs("lstm", "tokens", spec)
        super().__init__(width=HIDDEN)
        self.embedding = nn.Embedding(spec.vocabulary, EMBEDDING)
        self.lstm = nn.LSTM(EMBEDDING, HIDDEN, LAYERS, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        hidden, _ = self.lstm(self.embedding(x))  # [B, length, 256]
        last: Tensor = hidden[:, -1]
        return last
