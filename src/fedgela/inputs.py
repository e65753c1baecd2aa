"""What one sample looks like to a network."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["image", "features", "tokens"]


@dataclass(frozen=True)
class InputSpec:
    """image: [channels, height, width]; features: [d]; tokens: [length] of a vocabulary."""

    kind: Kind
    shape: tuple[int, ...]
    vocabulary: int = 0  # of tokens

    def __str__(self) -> str:
        return f"{self.kind} of shape {'x'.join(map(str, self.shape))}"
