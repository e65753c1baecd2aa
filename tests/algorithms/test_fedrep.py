"""FedRep: the head, then the body; heads never leave their clients."""

from pathlib import Path

import numpy as np
import pytest
import torch

from algorithms.by_hand import Weights, assert_follows, ce_by_hand, logits_by_hand, small_batch, small_net
from fedgela.algorithms import Phase
from fedgela.algorithms.fedrep import BODY, HEAD, FedRep
from fedgela.config import parse_experiment
from fedgela.errors import UserError
from fedgela.resolve import resolve
from fedgela.server import Server
from helpers import Recording, same, tiny, watch_updates

BATCH = small_batch([0, 1, 2, 1, 0])


def head_of(model: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value for name, value in model.items() if name.startswith("head.")}


@pytest.mark.parametrize("phase", [0, 1])
def test_loss_and_step(phase: int) -> None:
    # with weight decay: what a phase does not train stays to the bit (assert_follows)
    method = FedRep()

    def reference(w: Weights, _: Weights) -> np.ndarray:
        return ce_by_hand(logits_by_hand(w, BATCH[0]), BATCH[1])

    assert_follows(method, small_net(method), BATCH, {}, reference, method.phases(10)[phase])


def test_the_parts_are_all_there_is() -> None:
    for name, _ in small_net(FedRep()).named_parameters():
        assert name.startswith(BODY) is not name.startswith(HEAD)


def test_by_default_the_local_epochs_of_the_run_are_shared_out() -> None:
    for epochs in range(2, 12):
        head, body = FedRep().phases(epochs)
        assert head.epochs + body.epochs == epochs
        assert min(head.epochs, body.epochs) >= 1
    assert [p.epochs for p in FedRep().phases(10)] == [5, 5]
    assert [p.epochs for p in FedRep().phases(1)] == [1, 1]  # one of each is the least
    assert FedRep(10, 1).phases(3) == (Phase(10, HEAD), Phase(1, BODY))  # whatever the run says


def test_one_of_the_two_alone_is_refused() -> None:
    with pytest.raises(UserError, match="head_epochs and body_epochs, or neither"):
        parse_experiment({"algorithm": {"name": "fedrep", "head_epochs": 3}})


def test_heads_never_reach_the_server_and_stay_with_their_clients(npz: Path) -> None:
    store = Recording()
    server = Server(*resolve(tiny(npz, algorithm="fedrep", sample=2, rounds=5, epochs=2)), store)
    updates, progress = watch_updates(server), server.begin()
    initial, waited = progress.server.model, 0
    for _ in range(5):
        before = {k: head_of(model) for k, model in store.models.items()}
        for client in server.select(progress.round + 1):
            start = server.job(progress, client).start
            # the server's body under its own last head
            assert same(head_of(start), before.get(client, head_of(initial)))
            assert torch.equal(start["projection.weight"], progress.server.model["projection.weight"])
        record = server.step(progress)
        for client in before.keys() - set(record["clients"]):
            assert same(head_of(store.models[client]), before[client])
            waited += 1
    assert waited
    assert updates
    for update in updates:
        assert update.model
        assert head_of(update.model) == {}
        assert update.extra == {}
    assert same(head_of(progress.server.model), head_of(initial))
    assert not torch.equal(progress.server.model["projection.weight"], initial["projection.weight"])
    heads = [head_of(model)["head.weight"] for model in store.models.values()]
    assert not any(torch.equal(head, initial["head.weight"]) for head in heads)
