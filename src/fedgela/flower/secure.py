"""Secure aggregation, the server's part: of the sites' changes it learns their sum (masks.py)."""

import math
from collections.abc import Callable, Mapping, Sequence

from fedgela.algorithms import FedAvg
from fedgela.config import Experiment
from fedgela.errors import UserError
from fedgela.flower.incoming import Answer
from fedgela.flower.masks import FEWEST, FixedPoint, Seeds, opened
from fedgela.flower.wire import About
from fedgela.models import State
from fedgela.rounds import Progress

Ask = Callable[..., dict[int, Answer]]


def check_hides(experiment: Experiment) -> None:
    """A UserError where something would not be hidden, or is more than a sum."""
    algorithm, sample, why = experiment.algorithm, experiment.sample, ""
    if algorithm.shares() is not None:
        why = f"{algorithm.title} shares more than weights, which no mask hides"
    elif type(algorithm).aggregate is not FedAvg.aggregate:
        why = f"{algorithm.title} aggregates by itself, for which it needs single updates"
    elif experiment.aggregation != "mean":
        why = f'aggregation = "{experiment.aggregation}" looks at single updates; leave it at "mean"'
    elif sample is not None and sample < FEWEST:
        why = f"a sum needs {FEWEST} sites or more, but this is sample = {sample}"
    if why:
        raise UserError(f"--secure-aggregation: {why}")


class SecureAggregation:
    """Every site's key is for one round. It comes with the answer that opens the round before, and is asked
    for where there was no such answer."""

    def __init__(self, fixed: FixedPoint, clip: float | None, ask: Ask) -> None:
        """`clip` is the length that each site cuts its change to, where privacy is differential: then all
        sites count alike, as with privacy.py. `ask` puts a question to sites."""
        self.fixed, self.clip, self.ask = fixed, clip, ask
        self.keys: dict[int, bytes] = {}  # that have not been used
        self.asked: tuple[int, ...] = ()  # in this round
        self.absent: tuple[int, ...] = ()  # of these, whose masked change has not come
        self.unit = 1.0

    def begin(self, progress: Progress, sites: Sequence[int], samples: Mapping[int, int]) -> About:
        """What the sites of a round must know to mask their changes; those that it names take part."""
        if without := [site for site in sites if site not in self.keys]:
            for site, (_, about) in self.ask("key", {}, without, progress).items():
                self.keys[site] = bytes.fromhex(about["key"])
        keys = {site: self.keys.pop(site) for site in sites if site in self.keys}
        self.asked = tuple(keys)
        # a power of two: exact, and it tells sites little of the others' numbers of samples
        together = sum(samples[site] for site in keys) if self.clip is None else len(keys)
        self.unit = 2.0 ** math.ceil(math.log2(max(together, 1)))
        return {
            "keys": {str(site): key.hex() for site, key in keys.items()},
            "unit": self.unit,
            "clip": self.clip,
        }

    def open(self, progress: Progress, masked: Mapping[int, State]) -> State | None:
        """sum_k n_k (w_k - w) over the sites whose masked change is here, or of the clipped changes; None
        where the sum cannot be opened: too few are here, or one of them has ended since."""
        here = sorted(masked)
        if len(here) < FEWEST or 2 * len(here) <= len(self.asked):
            return None  # sites would refuse
        self.absent = tuple(sorted(set(self.asked) - set(here)))
        seeds = {}
        for site, (_, about) in self.ask("unmask", {}, here, progress, answered=here).items():
            self.keys[site] = bytes.fromhex(about["key"])
            pairs = {int(j): bytes.fromhex(seed) for j, seed in about["pairs"].items()}
            seeds[site] = Seeds(bytes.fromhex(about["own"]), pairs)
        if len(seeds) < len(here):
            return None
        total = opened(masked, seeds, self.fixed)
        return {name: (value * self.unit).float() for name, value in total.items()}
