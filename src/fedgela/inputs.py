"""What one sample looks like to a network."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

Kind = Literal["image", "features", "tokens"]


@dataclass(frozen=True)
class InputSpec:
    """The shape of one sample: image [channels, height, width], features [d], or tokens [length]."""

    kind: Kind
    shape: tuple[int, ...]
    vocabulary: int = 0  # for tokens: how many different ones there are
    columns: str = ""  # for features: a digest of their names in order, if they have names

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> "InputSpec":
        """From what `vars` gives, even after JSON has made a list of the shape."""
        return cls(**{**table, "shape": tuple(table["shape"])})

    def __str__(self) -> str:
        return f"{self.kind} of shape {'x'.join(map(str, self.shape))}"

    def unlike(self, other: "InputSpec", whose: str) -> str:
        """How this spec differs from one that it should be the same as, for a message."""
        if replace(self, columns=other.columns) == other:
            return f"has columns of other names, or in another order, than {whose}"
        return f"has {self}, but {whose} have {other}"


def columns_of(names: Sequence[str]) -> str:
    """A digest of the names and order of a table's columns, which does not reveal the names."""
    return hashlib.sha256(json.dumps(list(names)).encode()).hexdigest()[:16] if names else ""
