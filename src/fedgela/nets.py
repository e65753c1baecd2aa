"""The net of a resolved experiment: with its initial weights, or for a saved state to be loaded into."""

from fedgela.config import Experiment
from fedgela.data import Dataset
from fedgela.models import Net, build_net


def initial_net(experiment: Experiment, data: Dataset) -> Net:
    """The net that round 1 begins with, with weights of the hub or of a file if it is to have them."""
    return _build(experiment, data, experiment.pretrained, experiment.weights)


def empty_net(experiment: Experiment, data: Dataset) -> Net:
    """A net for a saved state: no weights are fetched or loaded, since they would be replaced anyway."""
    net = _build(experiment, data, pretrained=False, weights=None).eval()
    net.in_bf16 = experiment.precision == "bf16"  # predictions are computed as the run computed them
    return net


def _build(experiment: Experiment, data: Dataset, pretrained: bool, weights: str | None) -> Net:
    d, seed = experiment.projection, experiment.seed
    assert experiment.model is not None and d is not None, "the experiment is resolved"
    return build_net(
        experiment.model,
        data.spec,
        d,
        lambda: experiment.algorithm.head(d, data.classes, seed),
        seed,
        pretrained=pretrained,
        weights=weights,
        batchnorm=experiment.batchnorm,
    )
