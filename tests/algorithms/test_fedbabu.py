"""FedBABU: the head stays at its random start until a client fine-tunes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from algorithms.by_hand import Weights, assert_follows, ce_by_hand, logits_by_hand, small_batch, small_net
from fedgela.algorithms.fedbabu import FedBABU
from fedgela.resolve import resolve
from fedgela.server import Server
from helpers import Recording, play, tiny, watch_updates

BATCH = small_batch([0, 1, 2, 1, 0])


def test_loss_and_step() -> None:
    method = FedBABU()

    def reference(w: Weights, _: Weights) -> np.ndarray:
        return ce_by_hand(logits_by_hand(w, BATCH[0]), BATCH[1])

    [phase] = method.phases(10)
    assert phase.epochs == 10
    assert_follows(method, small_net(method), BATCH, {}, reference, phase)


def test_the_head_moves_in_fine_tuning_only(npz: Path) -> None:
    # weight decay is what moves a head that only has no gradient
    store = Recording()
    experiment = tiny(npz, algorithm="fedbabu", weight_decay=0.1, rounds=3, sample=3, server_momentum=0.5)
    server = Server(*resolve(experiment), store)
    initial = server.begin().server.model
    updates = watch_updates(server)
    progress, _ = play(server)
    models = [model for _, model in store.log] + [progress.server.model, progress.best_model]
    for name in ("head.weight", "head.bias"):
        assert all(torch.equal(model[name], initial[name]) for model in models)
        assert not any(name in update.model for update in updates)
    assert not torch.equal(progress.server.model["projection.weight"], initial["projection.weight"])

    tuned, train = [], server.engine.train

    def watched(*arguments: Any) -> Iterator[Any]:
        for outcome in train(*arguments):
            tuned.append(outcome.model)
            yield outcome

    server.engine.train = watched  # type: ignore[method-assign]
    server.finish(progress)
    assert len(tuned) in (4, 8)  # every client, from the best model and from the last
    for name, value in initial.items():
        assert not any(torch.equal(model[name], value) for model in tuned), name  # all parameters
