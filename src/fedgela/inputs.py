"""What one sample looks like to a network."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

Kind = Literal["image", "features", "tokens"]


@dataclass(frozen=True)
class InputSpec:
    """image: [channels, height, width]; features: [d]; tokens: [length] of a vocabulary."""

    kind: Kind
    shape: tuple[int, ...]
    vocabulary: int = 0  # of tokens
    columns: str = ""  # a digest of the features' names in their order, where they have any

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> "InputSpec":
        """As `vars` gives it, after a way through JSON."""
        return cls(**{**table, "shape": tuple(table["shape"])})

    def __str__(self) -> str:
        return f"{self.kind} of shape {'x'.join(map(str, self.shape))}"

    def unlike(self, other: "InputSpec", whose: str) -> str:
        """What is told of one that should be as the others' are."""
        if replace(self, columns=other.columns) == other:
            return f"has columns of other names, or in another order, than {whose}"
        return f"has {self}, but {whose} have {other}"


def columns_of(names: Sequence[str]) -> str:
    """Tables with the same columns in the same order have the same digest, which tells no names."""
    return hashlib.sha256(json.dumps(list(names)).encode()).hexdigest()[:16] if names else ""
