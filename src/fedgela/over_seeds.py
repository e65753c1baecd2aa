"""Accuracies over seeds: mean and standard deviation, differences paired by seed, and who is best."""

import math
import statistics
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping

BOUNDS = ("local", "centralised")  # shown for comparison, not ranked

Spread = dict[str, float | None]


def spread(values: Collection[float]) -> Spread:
    """Mean and standard deviation (ddof = 1); None where there are too few values for them."""
    return {
        "mean": statistics.fmean(values) if values else None,
        "std": statistics.stdev(values) if len(values) > 1 else None,
    }


def mean_std(value: Mapping[str, float | None], sign: str = "", unit: str = "", digits: int = 2) -> str:
    """A mean with its standard deviation, where there is one; '-' where there is none."""
    mean, std = value["mean"], value["std"]
    if mean is None or math.isnan(mean):
        return "-"
    return f"{mean:{sign}.{digits}f}{unit}" + ("" if std is None else f" ± {std:.{digits}f}")


class OverSeeds(ABC):
    """Something that has accuracies by seed, such as one method of a comparison."""

    @abstractmethod
    def values(self, metric: str, when: str) -> dict[int, float]:
        """A metric's best or last value (`when`), by seed."""

    def summary(self, metric: str, when: str) -> Spread:
        return spread(self.values(metric, when).values())

    def difference(self, other: "OverSeeds", metric: str, when: str) -> Spread:
        """The difference to another one, paired by seed."""
        mine, theirs = self.values(metric, when), other.values(metric, when)
        return spread([mine[seed] - theirs[seed] for seed in mine if seed in theirs])


def ranks(ranked: Mapping[str, OverSeeds], metric: str, when: str) -> dict[str, int]:
    """0 for the best, 1 for the second and so on, by the means over the seeds that all of them have. Means
    that are the same when printed have the same rank."""
    values = {name: found for name, one in ranked.items() if (found := one.values(metric, when))}
    seeds = set.intersection(*map(set, values.values())) if values else set()
    if not seeds:
        return {}
    printed = {
        name: round(statistics.fmean(found[seed] for seed in seeds), 2) for name, found in values.items()
    }
    levels = sorted(set(printed.values()), reverse=True)
    return {name: levels.index(mean) for name, mean in printed.items()}
