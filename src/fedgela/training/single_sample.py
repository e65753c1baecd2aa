"""Clients whose batches have a single sample, which has no variance for BatchNorm. A net that cannot train on
one is refused before the run begins, not in the round in which such a client is first drawn."""

import copy
from collections.abc import Sequence

import torch
from torch import nn

from fedgela.client_names import client_names
from fedgela.config import Experiment
from fedgela.data import Federation
from fedgela.errors import UserError
from fedgela.imports import told
from fedgela.models import Net
from fedgela.models.own import two_samples
from fedgela.training.interface import size_of_batch


def check_single_samples(experiment: Experiment, net: Net, trainees: Federation) -> None:
    """If some client trains on one sample at a time, try the net on one of zeros; a UserError if it fails."""
    sizes = trainees.train.sizes.tolist()
    alone = [k for k, n in enumerate(sizes) if size_of_batch(n, experiment.batch_size) == 1]
    if not alone:
        return
    x = two_samples(trainees.data.spec)[:1].to(net.projection.weight.device)
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            copy.deepcopy(net).train()(x)
    except Exception as error:  # whatever its layers raise
        raise UserError(
            f"{_who(experiment, trainees, alone)}, and model {experiment.model} cannot train on a single "
            f"sample ({told(error)}): {', or '.join(_ways_out(experiment, net))}"
        ) from None


def _who(experiment: Experiment, trainees: Federation, alone: Sequence[int]) -> str:
    if experiment.batch_size == 1:
        return "batch_size is 1"
    names = client_names(experiment, trainees)
    more = f", and so have {len(alone) - 1} more" if len(alone) > 1 else ""
    return f"client {(names and names[alone[0]]) or alone[0]} has one training sample{more}"


def _ways_out(experiment: Experiment, net: Net) -> list[str]:
    ways = ["raise batch_size" if experiment.batch_size == 1 else "give it more, or leave it out"]
    if experiment.batchnorm != "group" and any(isinstance(part, nn.BatchNorm2d) for part in net.modules()):
        ways.append('set batchnorm = "group"')
    return [*ways, "take a model that can, as with LayerNorm for BatchNorm"]
