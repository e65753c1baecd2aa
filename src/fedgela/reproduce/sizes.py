"""How much a cell asks for, in images: with rates.py, what plans and budgets are made of."""

from fedgela.config import Experiment
from fedgela.data.catalogue import known
from fedgela.data.text import LENGTH
from fedgela.reproduce.entries import federation_at_hand
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


def finetuning_rounds(experiment: Experiment) -> float:
    """What fine-tuning at the end costs, in rounds: every client, from the best model and from the last."""
    if experiment.algorithm.finetuned_as is None:
        return 0.0
    clients = (experiment.clients or 1) / (experiment.sample or experiment.clients or 1)
    return 2 * clients * experiment.finetune_epochs / experiment.epochs


def images_of_a_run(experiment: Experiment) -> float | None:
    """All rounds, and fine-tuning at the end."""
    images = images_of_a_round(experiment)
    return None if images is None else images * (experiment.rounds + finetuning_rounds(experiment))


def shape_of_a_sample(experiment: Experiment) -> tuple[int, ...] | None:
    """Of the data that is at hand, or else as the data of that name has it."""
    federation = federation_at_hand(experiment)
    return usual_shape(settings_of(experiment)) if federation is None else federation.data.spec.shape


def usual_shape(settings: Settings) -> tuple[int, ...] | None:
    """Of a sample of data that is known by its name; None for other data."""
    name = settings["dataset"]
    source = known(name)
    if source is None:
        return None
    if source.kind == "tokens":
        return (LENGTH,)
    return (1 if name == "femnist" else 3, settings["image_size"], settings["image_size"])
