"""What the maps of classes by client have in common, in an inspection and in a report."""

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

DRAWN_CLIENTS = 100


def drawn_clients(counts: Ints) -> Ints:
    """Of counts [N, C] all clients, or DRAWN_CLIENTS of them, evenly spaced from those with the fewest
    classes to the most."""
    N = len(counts)
    if N <= DRAWN_CLIENTS:
        return np.arange(N)
    order = np.lexsort((counts.sum(axis=1), (counts > 0).sum(axis=1)))
    return order[np.linspace(0, N - 1, DRAWN_CLIENTS).round().astype(np.int64)]


def whole_ticks(most: int) -> list[int]:
    """Numbers of samples to mark on a logarithmic scale of colours, up to the most there are."""
    steps = (1,) if most >= 1000 else (1, 3) if most >= 30 else (1, 2, 5)
    return [s * 10**e for e in range(len(str(most))) for s in steps if s * 10**e <= most]
