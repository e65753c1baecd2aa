"""How much a cell asks for, in images, and how fast images go: what plans and budgets are made of."""

import statistics
from collections.abc import Iterable, Mapping

from fedgela.algorithms import name_of
from fedgela.config import Experiment
from fedgela.reproduce.budget import finetuning_rounds
from fedgela.reproduce.ledger import Entry

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
    """Of all clients together; None for data that is not the paper's."""
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
    share = (experiment.sample or 1) / (experiment.clients or experiment.sample or 1)
    return samples * share * experiment.epochs


def images_of_a_run(experiment: Experiment) -> float | None:
    """All rounds, and fine-tuning at the end."""
    images = images_of_a_round(experiment)
    return None if images is None else images * (experiment.rounds + finetuning_rounds(experiment))


class Rates:
    """Images a second by model, and by model and method where the ledger has that."""

    def __init__(self, entries: Iterable[Entry] = (), given: Mapping[str, float] | None = None) -> None:
        self.given = dict(given or {})
        self.seen: dict[tuple[str, ...], list[float]] = {}
        for entry in entries:
            self.learn(entry)

    def learn(self, entry: Entry) -> None:
        if entry.images_per_second:
            model, method = str(entry.config.get("model")), str(entry.config["algorithm"]["name"])
            for key in ((model,), (model, method)):
                self.seen.setdefault(key, []).append(entry.images_per_second)

    def of(self, experiment: Experiment) -> float | None:
        """What is given goes before what was measured; the newest lines count."""
        model, method = str(experiment.model), name_of(experiment.algorithm)
        if model in self.given:
            return self.given[model]
        for key in ((model, method), (model,)):
            if key in self.seen:
                return statistics.median(self.seen[key][-5:])
        return None
