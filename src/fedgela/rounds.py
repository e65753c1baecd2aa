"""What a run carries from round to round, and what comes back from a client."""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from fedgela.algorithms import ServerState, Update
from fedgela.models import State

TALLIES = ("visited", "right", "right_on_union")  # tensors of a Progress that stay on the CPU


class ClientStore(Protocol):
    """Where clients keep their last local models between rounds."""

    def get(self, client: int, entries: Collection[str] | None = None) -> State | None:
        """A client's last local model, or None before its first visit; at least these entries of it."""

    def put(self, client: int, model: State) -> None: ...


@dataclass
class InMemoryStore:
    """A store for runs without a folder."""

    models: dict[int, State] = field(default_factory=dict)

    def get(self, client: int, entries: Collection[str] | None = None) -> State | None:
        return self.models.get(client)

    def put(self, client: int, model: State) -> None:
        self.models[client] = model


@dataclass
class Progress:
    """All that a run carries from round to round; a checkpoint is this and the clients' models."""

    server: ServerState
    visited: Tensor  # [N], int64: the last round in which a client trained, 0 before its first
    right: Tensor  # [N, C], int64: own test samples that the client's last local model got right
    right_on_union: Tensor  # [N, C]: the same on the union of the test sets, where GA is of local models
    round: int = 0
    best_round: int = 0
    best_GA: float = -1.0
    best_model: State = field(default_factory=dict)  # of the best GA so far
    # where BatchNorm does not travel: that of the best round, of the clients that have trained since
    best_norms: dict[int, State] = field(default_factory=dict)
    averaged: State = field(default_factory=dict)  # of the rounds' global models; empty where not asked for

    @property
    def global_model(self) -> State:
        """The one that is measured and kept: the server's, or the average over rounds. Clients always begin
        with the server's."""
        return self.averaged or self.server.model

    def average(self, earlier: float) -> None:
        """Take the server's model into the running average, in which the rounds before have this weight. It
        begins as a plain mean, so that the first round's model does not stay in it for long."""
        newest = max(1 - earlier, 1 / self.round)
        before = self.averaged or self.server.model
        self.averaged = {
            # what no round changes, such as a fixed ETF, stays the very same tensor
            name: value
            if value is before[name] or not value.is_floating_point()
            else torch.lerp(before[name], value, newest)
            for name, value in self.server.model.items()
        }

    def held(self) -> "Progress":
        """A copy that later rounds do not change: they replace a model's tensors, but change the tallies in
        place."""
        tallies = {name: getattr(self, name).clone() for name in TALLIES}
        return replace(self, **tallies, best_norms=dict(self.best_norms))

    def keep_best(self, GA: float | None) -> None:
        """Keep the global model of this round if its GA is higher than any before."""
        if GA is not None and self.best_GA < GA:
            self.best_GA, self.best_round = GA, self.round
            self.best_model, self.best_norms = self.global_model, {}


@dataclass(frozen=True)
class Visit:
    """What comes back from a client in a round: its update, and what was measured of its local model."""

    update: Update
    own_norm: State  # BatchNorm that does not travel, only for evaluating the global model
    loss_sum: Tensor  # [C], see Outcome
    loss_count: Tensor  # [C]
    classifier: Tensor | None = None  # [C, d], of its local model
    right: Tensor | None = None  # [C]: own test samples that its local model got right
    right_on_union: Tensor | None = None  # [C]: the same on the union, where GA is of local models
    tracked: Tensor | None = None  # [M]: what `track` asks for, of its local model
