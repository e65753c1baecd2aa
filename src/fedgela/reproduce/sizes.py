"""How much a cell asks for, in images, and how fast images go: what plans and budgets are made of."""

import statistics
from collections.abc import Iterable, Mapping

from fedgela.config import Experiment
from fedgela.reproduce.budget import finetuning_rounds
from fedgela.reproduce.entries import federation_at_hand
from fedgela.reproduce.ledger import Entry
from fedgela.reproduce.settings import Settings, settings_of

# training and test samples of the data that the paper names, and their shape
OFFICIAL = {
    "svhn": (73257, 26032, (3, 32, 32)),
    "cifar10": (50000, 10000, (3, 32, 32)),
    "cifar100": (50000, 10000, (3, 32, 32)),
    "fed-isic2019": (18597, 4650, None),  # FLamby's folds; the images' size is a setting
}
# of one natural client on average, where 50 of thousands are drawn; enough for a plan
TRAIN_PER_CLIENT = {"femnist": 180, "shakespeare": 3000}


def training_samples(experiment: Experiment) -> int | None:
    """Of all clients together: those of the data that is at hand, or else as many as the paper's data has;
    None for other data."""
    federation = federation_at_hand(experiment)
    if federation is not None:
        return int(federation.train.sizes.sum())
    name = experiment.dataset.replace("_", "-")
    if name in OFFICIAL:
        return OFFICIAL[name][0]
    if name in TRAIN_PER_CLIENT and experiment.clients is not None:
        return TRAIN_PER_CLIENT[name] * experiment.clients
    return None


def images_of_a_round(experiment: Experiment) -> float | None:
    samples = training_samples(experiment)
    if samples is None:
        return None
    clients = experiment.clients or 1
    return samples * (experiment.sample or clients) / clients * experiment.epochs


def images_of_a_run(experiment: Experiment) -> float | None:
    """All rounds, and fine-tuning at the end."""
    images = images_of_a_round(experiment)
    return None if images is None else images * (experiment.rounds + finetuning_rounds(experiment))


class Rates:
    """Images a second on a device: as given for a model, else as the ledger has them for the like."""

    def __init__(
        self, entries: Iterable[Entry], device: str, given: Mapping[str, float] | None = None
    ) -> None:
        """Only lines of the `device`, named as in the ledger, count: another's speed says nothing of it."""
        self.device = device
        self.given = dict(given or {})
        self.seen: dict[tuple[object, ...], list[float]] = {}
        for entry in entries:
            self.learn(entry)

    def learn(self, entry: Entry) -> None:
        settings = entry.settings()
        if entry.images_per_second and entry.device == self.device and settings is not None:
            for key in _from_near_to_far(settings):
                self.seen.setdefault(key, []).append(entry.images_per_second)

    def of(self, experiment: Experiment) -> float | None:
        """The rate given for the model, or else the median of the newest lines of the most alike runs: of the
        same model, data and method, of the model and data, of the model and method, or of the model."""
        if experiment.model in self.given:
            return self.given[experiment.model]
        for key in _from_near_to_far(settings_of(experiment)):
            if key in self.seen:
                return statistics.median(self.seen[key][-5:])
        return None


def _from_near_to_far(settings: Settings) -> tuple[tuple[object, ...], ...]:
    model, data, method = settings.get("model"), settings["dataset"], settings["algorithm"]["name"]
    return (model, data, method), (model, data), (model, None, method), (model,)
