"""Central differential privacy: the global models tell little of whether a site took part.

McMahan et al., Learning Differentially Private Recurrent Language Models, ICLR 2018: every site's change is
clipped to length S, all count alike, and the server adds Gaussian noise of deviation z S to their sum:

    w <- w + (sum_k clip(w_k - w, S) + N(0, z^2 S^2)) / K

K is the number of sites asked in a round, so that a site's absence changes the sum only. The server itself
sees the sites' updates as they are.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fedgela.algorithms import Update
from fedgela.errors import UserError
from fedgela.measures import state_norm
from fedgela.models import State
from fedgela.server import Server


@dataclass(frozen=True)
class CentralPrivacy:
    noise: float  # z, the noise multiplier
    clip: float  # S
    delta: float = 1e-5

    def check(self, server: Server) -> None:
        """A UserError where something would leave unprotected."""
        _accounting()
        if not (self.noise > 0 and self.clip > 0 and 0 < self.delta < 1):
            raise UserError("differential privacy: noise and clip are above 0, delta between 0 and 1")
        algorithm = server.algorithm
        if algorithm.shares() is not None:
            raise UserError(f"{algorithm.title} shares more than weights, which the noise does not protect")
        parameters = {name for name, _ in server.net.named_parameters()}
        for name in server.travelling(server.net.state_dict()):
            if name not in parameters:
                raise UserError(
                    f"{name} is a statistic of the data and no parameter, which the noise does not protect: "
                    'set batchnorm = "group" or "local"'
                )

    def together(self, before: State, updates: Sequence[Update], asked: int) -> Update:
        """All updates as one, clipped and with noise."""
        total = {name: torch.zeros_like(value) for name, value in updates[0].model.items()}
        for update in updates:
            change = {name: value - before[name] for name, value in update.model.items()}
            factor = min(1.0, self.clip / max(float(state_norm(change)), 1e-12))
            for name, value in change.items():
                total[name] += factor * value
        # not from the run's seed, which the sites know
        draws = torch.Generator().manual_seed(secrets.randbits(63))
        for value in total.values():
            value += self.noise * self.clip * torch.randn(value.shape, generator=draws).to(value)
        model = {name: before[name] + value / asked for name, value in total.items()}
        return Update(updates[0].client, 1, model)

    def epsilon(self, rounds: int) -> float:
        """Spent after so many rounds, at delta, for adding or removing one site. Who is sampled is no secret
        (the sites know the seed), so that sampling does not count in favour."""
        accounting = _accounting()
        accountant = accounting.rdp.RdpAccountant()
        accountant.compose(accounting.GaussianDpEvent(self.noise), rounds)
        return float(accountant.get_epsilon(self.delta))


def _accounting() -> Any:
    try:
        import dp_accounting
        import dp_accounting.rdp
    except ImportError:
        raise UserError(
            "differential privacy needs dp-accounting: pip install 'fedgela[flower]' dp-accounting"
        ) from None
    return dp_accounting
