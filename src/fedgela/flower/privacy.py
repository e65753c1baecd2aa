"""Central differential privacy: the global models tell little of what a site contributed, or whether it did.

McMahan et al., Learning Differentially Private Recurrent Language Models, ICLR 2018: every site's change is
clipped to length S, all count alike, and the server adds Gaussian noise of deviation z S to their sum:

    w <- w + (sum_k clip(w_k - w, S) + N(0, z^2 S^2)) / N

N is the number of the federation's sites, who are all asked in every round. One that is absent, or whose
answer is refused, contributes zero and is replaced by nobody, so that its presence changes the sum by S at
most: what the accounting of `epsilon` rests on. Noise comes also to a round without any answer.

Protected is what a site's training puts into the global models, towards those who see these models. The
server itself sees the updates as they are, and what sites tell beside them gets no noise: sample counts, sums
of loss and right answers, and the pooled mean and deviation of the inputs, which go to all sites.
"""

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgela.algorithms import Update
from fedgela.config import Experiment
from fedgela.errors import UserError
from fedgela.files import write_json
from fedgela.measures import state_norm
from fedgela.models import State
from fedgela.server import Server


def check_protects(experiment: Experiment, sites: int) -> None:
    """A UserError where something would leave unprotected."""
    _accounting()
    if (experiment.sample or sites) < sites:
        raise UserError(
            f"differential privacy: all {sites} sites take part in every round, since an absent one would be "
            f"replaced by another; leave out sample = {experiment.sample}"
        )
    if experiment.aggregation != "mean":
        raise UserError(
            "differential privacy: its noise is for a plain mean of clipped changes; leave aggregation at "
            '"mean"'
        )
    algorithm = experiment.algorithm
    if algorithm.shares() is not None:
        raise UserError(f"{algorithm.title} shares more than weights, which the noise does not protect")


def check_parameters(server: Server) -> None:
    """The same for the entries that travel, which are known once there is a net."""
    parameters = {name for name, _ in server.net.named_parameters()}
    for name in server.travelling(server.net.state_dict()):
        if name not in parameters:
            raise UserError(
                f"{name} is a statistic of the data and no parameter, which the noise does not protect: "
                'set batchnorm = "group" or "local"'
            )


@dataclass(frozen=True)
class CentralPrivacy:
    noise: float  # z, the noise multiplier
    clip: float  # S
    delta: float = 1e-5

    def clipped(self, before: State, updates: Sequence[Update]) -> State:
        """sum_k clip(w_k - w) over all updates; `before` has the entries that an update has."""
        total = {name: torch.zeros_like(value) for name, value in before.items()}
        for update in updates:
            change = {name: value - before[name] for name, value in update.model.items()}
            factor = clip_factor(change, self.clip)
            for name, value in change.items():
                total[name] += factor * value
        return total

    def noisy(self, before: State, total: State, sites: int) -> Update:
        """The sum of the clipped changes with noise, as if it were one update."""
        model = {}
        for name, value in total.items():
            noise = self.noise * self.clip * _normal(value.shape).to(value)
            model[name] = before[name] + (value + noise) / sites
        return Update(0, 1, model)

    def epsilon(self, releases: int) -> float:
        """Spent after so many noisy models, at delta, for adding or removing one site."""
        accounting = _accounting()
        accountant = accounting.rdp.RdpAccountant()
        accountant.compose(accounting.GaussianDpEvent(self.noise), releases)
        return float(accountant.get_epsilon(self.delta))


def clip_factor(change: State, length: float) -> float:
    """What cuts a change to this length."""
    return min(1.0, length / max(float(state_norm(change)), 1e-12))


def _normal(shape: torch.Size) -> Tensor:
    """Standard normal draws from the system's cryptographic source: the run's seed is known to the sites, and
    torch's generators have 2^32 seeds, which whoever sees a noisy model could go through."""
    draws = np.frombuffer(secrets.token_bytes(8 * shape.numel()), dtype=np.uint64)
    uniform = ((draws >> 12) + 0.5) / 2**52  # of 53 bits the largest would round to 1: infinite noise
    drawn: Tensor = torch.special.ndtri(torch.from_numpy(uniform))
    return drawn.view(shape)


class Releases:
    """How many noisy models a run has made, on disk before each of them is: a round that is done again after
    a kill has fresh noise, and costs again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = int(json.loads(path.read_text())["noisy_models"]) if path.exists() else 0

    def one_more(self, round: int) -> None:
        """Counts one for this round. There are at least as many as rounds, whatever the file has said."""
        self.count = max(self.count + 1, round)
        write_json(self.path, {"noisy_models": self.count})


def _accounting() -> Any:
    try:
        import dp_accounting
        import dp_accounting.rdp
    except ImportError:
        raise UserError(
            "differential privacy needs dp-accounting: pip install 'fedgela[flower]' dp-accounting"
        ) from None
    return dp_accounting
