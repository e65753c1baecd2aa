"""Images that cannot be read: an error that names them, or a warning, and they are left out."""

import warnings
from collections.abc import Callable
from typing import Literal

import numpy as np

from fedgela.data.images import Decoded
from fedgela.errors import UserError

Unreadable = Literal["error", "skip"]
SHOWN = 3
HINT = '\nto go on without them: unreadable = "skip" (predict and federation site: --skip-unreadable)'


def without_unreadable(
    decoded: Decoded, name: Callable[[int], str], unreadable: Unreadable
) -> tuple[np.ndarray, np.ndarray]:
    """The images that could be read, and a mask over all that says which they are."""
    read = np.ones(len(decoded.x), dtype=bool)
    if not decoded.failed:
        return decoded.x, read
    read[list(decoded.failed)] = False
    first = "; ".join(f"{name(i)} ({why})" for i, why in list(decoded.failed.items())[:SHOWN])
    more = f"; and {len(decoded.failed) - SHOWN} more" if len(decoded.failed) > SHOWN else ""
    told = f"{len(decoded.failed)} of {len(read)} images cannot be read: {first}{more}"
    if unreadable == "error" or not read.any():
        raise UserError(told + HINT if read.any() else told)
    warnings.warn(f"{told}; they are left out", stacklevel=2)
    return decoded.x[read], read
