"""What a server asks of an engine, whatever the engine does inside."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from fedgela.algorithms import Phase
from fedgela.errors import UserError
from fedgela.models import Net, State
from fedgela.randomness import generator, seed_of

Loss = Callable[[Net, Tensor, Tensor, State], Tensor]  # (net, x, y, client) -> [B]
Predict = Callable[[Net, Tensor, State], Tensor]  # (net, x, client) -> logits [B, C]


def losses_of(loss: Loss, net: Net, x: Tensor, y: Tensor, client: State) -> Tensor:
    """A method's loss of a batch: one value a sample, of which the engine takes the mean."""
    losses = loss(net, x, y, client)
    shape = list(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
    if shape != list(y.shape):
        raise UserError(
            f"the method's loss must be one value a sample, {list(y.shape)}, and is {shape}: "
            "it takes no mean (reduction='none')"
        )
    return losses


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
    """One client's local training: its samples, where it starts, what its loss reads beside the batch."""

    client: int
    samples: Tensor  # indices into the training set, on the CPU
    start: State
    vectors: State = field(default_factory=dict)
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
    """Trains and asks models on one data set, which it was made with."""

    def train(self, plan: Plan, jobs: Sequence[Job]) -> Iterator[Outcome]:
        """Train the clients of a round; outcomes come one by one, in any order."""
        ...

    def answers(self, predict: Predict, questions: Sequence[Question]) -> list[Tensor]:
        """The predicted classes of each question, [n], int64 on the CPU."""
        ...

    def features(self, model: State, samples: Tensor) -> Tensor:
        """z, [n, d], of training samples."""
        ...

    def close(self) -> None:
        """Give back what the engine holds beside memory, such as processes."""
        ...


def first_draw(plan: Plan, client: int) -> int:
    """The number of a client's first step's draws in this round; each step counts on by one."""
    return seed_of(plan.seed, plan.purpose, plan.round, client, "draws")


def size_of_batch(n: int, batch_size: int) -> int:
    """A client with less than one batch has one batch of all it has."""
    return min(batch_size, n)


def batches(plan: Plan, client: int, epoch: int, samples: Tensor, batch_size: int) -> Tensor:
    """An epoch's batches of sample indices, [steps, B]. A ragged last batch is dropped."""
    n = len(samples)
    size = size_of_batch(n, batch_size)
    steps = n // max(size, 1)
    order = torch.randperm(n, generator=generator(plan.seed, plan.purpose, plan.round, client, epoch))
    return samples[order[: steps * size]].view(steps, size)
