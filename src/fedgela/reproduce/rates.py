"""How fast images go on a device: as the ledger has it, or as it is given."""

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fedgela.config import Experiment
from fedgela.reproduce.ledger import Entry
from fedgela.reproduce.settings import settings_of
from fedgela.reproduce.sizes import shape_of_a_sample, usual_shape

NEWEST = 5  # lines of a method that count: code becomes faster
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Rate:
    images_per_second: float
    rests_on: str = ""  # in the ledger
    is_guess: bool = False  # from samples of another size


class Rates:
    def __init__(
        self, entries: Iterable[Entry], device: str, given: Mapping[str, float] | None = None
    ) -> None:
        """Only lines of the `device`, named as in the ledger, count: another's speed says nothing of it.
        `given` are rates by model."""
        self.device = device
        self.given = dict(given or {})
        self.seen: dict[str, dict[Shape, dict[str, list[float]]]] = {}  # by model, shape and method
        for entry in entries:
            self.learn(entry)

    def learn(self, entry: Entry) -> None:
        settings = entry.settings()
        if settings is None or entry.device != self.device or not entry.images_per_second:
            return
        model, shape = settings.get("model"), entry.data.shape or usual_shape(settings)
        if model is not None and shape is not None:
            methods = self.seen.setdefault(model, {}).setdefault(shape, {})
            methods.setdefault(settings["algorithm"]["name"], []).append(entry.images_per_second)

    def of(self, experiment: Experiment) -> Rate | None:
        """The rate given for the model; or that of runs with the same model and samples of the same shape: of
        the same method, or else of the others; or a guess by images of the size that is nearest."""
        settings, shape = settings_of(experiment), shape_of_a_sample(experiment)
        model, method = settings.get("model", ""), settings["algorithm"]["name"]
        if model in self.given:
            return Rate(self.given[model])
        shapes = self.seen.get(model, {})
        if shape is None or not shapes:
            return None
        if shape in shapes:
            return _of_runs(shapes[shape], model, method, shape)
        images = [seen for seen in shapes if len(seen) == len(shape) == 3]
        if not images:
            return None
        nearest = min(images, key=lambda seen: abs(math.log(_pixels(seen) / _pixels(shape))))
        found = _of_runs(shapes[nearest], model, method, nearest)
        told = f"{found.rests_on}; for {_written(shape)} a guess, by the number of pixels"
        return Rate(found.images_per_second * _pixels(nearest) / _pixels(shape), told, is_guess=True)


def _of_runs(methods: Mapping[str, list[float]], model: str, method: str, shape: Shape) -> Rate:
    """By the method's own runs, or else by the others', where each method counts once: their rates differ
    more than those of its runs."""
    own = methods.get(method, [])[-NEWEST:]
    rates = own or [statistics.median(rates[-NEWEST:]) for rates in methods.values()]
    if own:
        runs = f"its {len(own)} newest runs" if len(own) > 1 else "its one run"
    else:
        runs = f"{len(rates)} other methods" if len(rates) > 1 else f"{next(iter(methods))}"
    between = " to ".join(f"{rate:,.0f}" for rate in sorted({min(rates), max(rates)}))
    told = f"{method}, {model}: by {runs}, {between} images of {_written(shape)} a second"
    return Rate(statistics.median(rates), told)


def _pixels(shape: Shape) -> int:
    return shape[1] * shape[2]


def _written(shape: Shape) -> str:
    return "x".join(map(str, shape))
