"""What a server asks of an engine, whatever the engine does inside."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from fedgela.algorithms import Phase
from fedgela.data import Federation
from fedgela.models import Net, State
from fedgela.randomness import generator, seed_of

Loss = Callable[[Net, Tensor, Tensor, State], Tensor]  # (net, x, y, client) -> [B]
Predict = Callable[[Net, Tensor, State], Tensor]  # (net, x, client) -> logits [B, C]


@dataclass(frozen=True)
class Plan:
    """What all clients of a round have in common. (seed, purpose, round) addresses their draws."""

    loss: Loss
    phases: tuple[Phase, ...]
    lr: float
    seed: int
    purpose: str
    round: int


@dataclass(frozen=True)
class Job:
    """One client's local training: where it starts, and what its loss reads beside the batch."""

    client: int
    start: State
    vectors: State
    references: State = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    client: int
    model: State  # the whole local model, the engine's no longer
    loss_sum: Tensor  # [C], over all samples of a class that a step saw, at the time it saw them
    loss_count: Tensor  # [C]


@dataclass(frozen=True)
class Question:
    """Which classes does this model predict for these test samples?"""

    model: State
    samples: Tensor  # indices into the test set
    vectors: State = field(default_factory=dict)  # of one client
    rows: State = field(default_factory=dict)  # the same for samples of many: one row a sample, [n, C]


class Engine(Protocol):
    def train(self, plan: Plan, jobs: Sequence[Job], federation: Federation) -> Iterator[Outcome]:
        """Train the clients of a round; outcomes come one by one, in any order."""
        ...

    def answer(self, predict: Predict, question: Question, federation: Federation) -> Tensor:
        """The predicted classes, [n], int64 on the CPU."""
        ...

    def features(self, model: State, samples: Tensor, federation: Federation) -> Tensor:
        """z, [n, d], of training samples."""
        ...


def first_draw(plan: Plan, client: int) -> int:
    """The number of a client's first step's draws in this round; each step counts on by one."""
    return seed_of(plan.seed, plan.purpose, plan.round, client, "draws")


def batches(plan: Plan, client: int, epoch: int, samples: Tensor, batch_size: int) -> Tensor:
    """An epoch's batches of sample indices, [steps, B].

    A ragged last batch is dropped; a client with less than one batch has one batch of all it has.
    """
    n = len(samples)
    size = min(batch_size, n)
    steps = n // max(size, 1)
    order = torch.randperm(n, generator=generator(plan.seed, plan.purpose, plan.round, client, epoch))
    return samples[order[: steps * size]].view(steps, size)
