"""The interface between the server and the engines that train clients."""

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
    """A method's losses of a batch, checked to be one value a sample; the engine takes their mean."""
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
    """What is the same for all clients of a round. (seed, purpose, round) is the address of their draws."""

    loss: Loss
    phases: tuple[Phase, ...]
    lr: float
    seed: int
    purpose: str
    round: int


@dataclass(frozen=True)
class Job:
    """One client's local training. `vectors` and `references` are what its loss reads beside the batch."""

    client: int
    samples: Tensor  # indices into the training set, on the CPU
    start: State
    vectors: State = field(default_factory=dict)
    references: State = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    client: int
    model: State  # the whole local model, of plain copies; the engine does not touch it again
    loss_sum: Tensor  # [C], of the losses of all samples that steps have seen, by class
    loss_count: Tensor  # [C], how many these were


@dataclass(frozen=True)
class Question:
    """Which classes does this model predict for these test samples?"""

    model: State
    samples: Tensor  # indices into the test set
    vectors: State = field(default_factory=dict)  # of the client whose samples they are
    # where the samples are of several clients: one row for each sample, [n, C], of its own client's vectors
    rows: State = field(default_factory=dict)


class Engine(Protocol):
    """Trains and evaluates models on the data set that it was made with."""

    # the peak of the largest worker process, bytes; pages that it shares with this process count, too
    workers_memory: int

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
        """Release what the engine holds beside memory, such as processes."""
        ...


def first_draw(plan: Plan, client: int) -> int:
    """The draw number of a client's first step in a round; every step increments it (randomness.uniform)."""
    return seed_of(plan.seed, plan.purpose, plan.round, client, "draws")


def size_of_batch(n: int, batch_size: int) -> int:
    """A client with fewer samples than a batch trains on one batch of all its samples."""
    return min(batch_size, n)


def batches(plan: Plan, client: int, epoch: int, samples: Tensor, batch_size: int) -> Tensor:
    """An epoch's batches of sample indices, [steps, B]. A ragged last batch is dropped."""
    n = len(samples)
    size = size_of_batch(n, batch_size)
    steps = n // max(size, 1)
    order = torch.randperm(n, generator=generator(plan.seed, plan.purpose, plan.round, client, epoch))
    return samples[order[: steps * size]].view(steps, size)
