"""The yardstick does what the project's reference engine does, step by step."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedgela.bench.own import Own
from fedgela.bench.plain import Plain, average
from fedgela.config import Experiment
from fedgela.resolve import resolve
from fedgela.server import Server
from fedgela.training.interface import Plan, batches
from helpers import tiny


class SameBatches(Plain):
    """The plain loop, with the batches of the project's engines."""

    plan: Plan

    def batches(self, client: int, epoch: int) -> Iterator[Tensor]:
        samples = self.train_of[client]
        return iter(batches(self.plan, client, epoch, samples, self.experiment.batch_size))


def fedavg(npz: Path, **changes: object) -> Experiment:
    return tiny(npz, **({"algorithm": "fedavg", "epochs": 2, "engine": "eager"} | changes))


@pytest.mark.parametrize("batch_size", [5, 1000])  # with a ragged last batch, and one batch of all
def test_plain_and_eager_give_the_same_global_model(npz: Path, batch_size: int) -> None:
    experiment = fedavg(npz, batch_size=batch_size, partition="dirichlet:0.5", min_samples=4)
    resolved, federation = resolve(experiment)
    server, plain = Server(resolved, federation), SameBatches(resolved, federation)
    progress = server.begin()
    for name, value in progress.server.model.items():
        assert torch.equal(value, plain.model[name]), name
    for _ in range(2):
        record = server.step(progress)
        plain.plan = server.plan(progress)
        plain.round()
        for name, value in progress.server.model.items():
            torch.testing.assert_close(plain.model[name], value, rtol=1e-4, atol=1e-5, msg=name)
        assert plain.global_accuracy == pytest.approx(record["GA"])
        mean = sum(plain.local_accuracies) / len(plain.local_accuracies)
        assert mean == pytest.approx(record["local_accuracy"])


def test_its_own_batches_are_whole_and_shuffled(npz: Path) -> None:
    plain = Plain(*resolve(fedavg(npz, batch_size=4)))
    samples = plain.train_of[0]
    seen = [torch.cat(list(plain.batches(0, epoch))) for epoch in range(2)]
    for epoch in seen:
        assert len(epoch) == len(samples) - len(samples) % 4
        assert set(epoch.tolist()) <= set(samples.tolist())
        assert len(set(epoch.tolist())) == len(epoch)
    assert not torch.equal(*seen)


def test_samples_are_those_that_steps_see(npz: Path) -> None:
    for batch_size in (4, 1000):
        made = resolve(fedavg(npz, batch_size=batch_size))
        plain = Plain(*made)
        seen = sum(
            len(batch) for k in plain.clients for epoch in range(2) for batch in plain.batches(k, epoch)
        )
        own = Own(*made)
        own.close()
        assert plain.samples == seen == own.samples


def test_the_average_is_weighted_and_leaves_counters_alone() -> None:
    models = [
        {"w": torch.tensor([1.0]), "n": torch.tensor(3)},
        {"w": torch.tensor([5.0]), "n": torch.tensor(4)},
    ]
    mean = average(models, [3, 1])
    assert mean.keys() == {"w"}
    assert mean["w"].item() == pytest.approx(2.0)
