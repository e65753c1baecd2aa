"""Learning rates over rounds."""

import math
from collections.abc import Callable

# (round from 1, rounds) -> factor of the learning rate
Schedule = Callable[[int, int], float]


def parse_schedule(text: str) -> Schedule:
    """From `constant`, `cosine`, `exponential:GAMMA` (every round) or `step:EVERY:GAMMA`."""
    kind, *values = text.split(":")
    try:
        if kind == "constant" and not values:
            return lambda round, rounds: 1.0
        if kind == "cosine" and not values:
            return lambda round, rounds: 0.5 * (1 + math.cos(math.pi * (round - 1) / rounds))
        if kind == "exponential" and len(values) == 1 and 0 < float(values[0]) <= 1:
            gamma = float(values[0])
            return lambda round, rounds: gamma ** (round - 1)
        if kind == "step" and len(values) == 2 and int(values[0]) > 0 and 0 < float(values[1]) <= 1:
            every, factor = int(values[0]), float(values[1])
            return lambda round, rounds: factor ** ((round - 1) // every)
    except ValueError:
        pass
    raise ValueError(
        "a schedule is 'constant', 'cosine', 'exponential:GAMMA' or 'step:EVERY:GAMMA' with GAMMA "
        f"above 0 and at most 1, not {text!r}"
    )
