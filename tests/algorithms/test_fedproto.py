"""FedProto: class means travel, models never do."""

from pathlib import Path

import numpy as np
import pytest
import torch

from algorithms.by_hand import (
    Weights,
    assert_follows,
    ce_by_hand,
    features_by_hand,
    logits_by_hand,
    small_batch,
    small_net,
)
from fedgela.algorithms import Moment, ServerState, Update
from fedgela.algorithms.fedproto import FedProto
from fedgela.resolve import resolve
from fedgela.server import Server
from fedgela.training import Question
from helpers import Recording, play, same, serve, tiny, watch_updates

BATCH = small_batch([0, 1, 2, 1, 0, 2])
PROTOTYPES = torch.tensor([[1.0, 2, 3, 4], [0, -1, 0, 1], [9, 9, 9, 9]], dtype=torch.float64)


@pytest.mark.parametrize("known", [[True, True, True], [True, True, False], [False, False, False]])
def test_loss_and_step(known: list[bool]) -> None:
    # a class without a prototype adds no term: the row of nines is not there
    method = FedProto(lam=0.7)

    def reference(w: Weights, _: Weights) -> np.ndarray:
        z = features_by_hand(w, BATCH[0])
        terms = []
        for row, label in zip(z, BATCH[1].tolist(), strict=True):
            P = PROTOTYPES[label].numpy()
            terms.append(sum((row - P) ** 2) / len(P) if known[label] else 0.0)
        return ce_by_hand(logits_by_hand(w, BATCH[0]), BATCH[1]) + 0.7 * np.array(terms)

    client = {"prototypes": PROTOTYPES, "known": torch.tensor(known)}
    assert_follows(method, small_net(method), BATCH, client, reference)


def test_a_client_sends_the_means_of_its_classes() -> None:
    z = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 0.0]])
    y, counts = torch.tensor([0, 0, 2]), torch.tensor([2, 0, 1])
    sent = FedProto().sends(counts, lambda: (z, y))
    torch.testing.assert_close(sent["means"], torch.tensor([[2.0, 3.0], [0.0, 0.0], [5.0, 0.0]]))
    assert sent["weights"].tolist() == [2, 0, 1]
    # weighed alike, the counts stay at home
    assert FedProto(weighted=False).sends(counts, lambda: (z, y))["weights"].tolist() == [1, 0, 1]


@pytest.mark.parametrize("weighted", [True, False])
def test_prototypes_are_averaged_by_class(weighted: bool) -> None:
    method = FedProto(weighted=weighted)
    counts = torch.tensor([[3, 0, 1, 0], [1, 2, 0, 0]])
    z = torch.randn(2, 4, 5, generator=torch.Generator().manual_seed(0))  # of client and class
    updates = []
    for k in range(2):
        y = torch.repeat_interleave(torch.arange(4), counts[k])
        updates.append(Update(k, len(y), {}, method.sends(counts[k], lambda k=k, y=y: (z[k][y], y))))  # type: ignore[misc]
    before = ServerState(
        {"w": torch.ones(1)},
        {"prototypes": torch.full((4, 5), 7.0), "known": torch.tensor([False, True, False, False])},
    )
    after = method.aggregate(before, updates, Moment(0, 1))
    first = 3 / 4 * z[0, 0] + 1 / 4 * z[1, 0] if weighted else (z[0, 0] + z[1, 0]) / 2
    expected = torch.stack([first, z[1, 1], z[0, 2], torch.full((5,), 7.0)])  # nobody sent class 3
    torch.testing.assert_close(after.extra["prototypes"], expected)
    assert after.extra["known"].tolist() == [True, True, True, False]
    assert same(after.model, before.model)
    # a class that nobody sends again keeps its prototype, and stays known
    third = method.aggregate(after, updates[1:], Moment(0, 2))
    assert torch.equal(third.extra["prototypes"][2:], after.extra["prototypes"][2:])
    torch.testing.assert_close(third.extra["prototypes"][0], z[1, 0])
    assert third.extra["known"].tolist() == [True, True, True, False]


def test_models_never_reach_the_server(npz: Path) -> None:
    store = Recording()
    server = Server(*resolve(tiny(npz, algorithm="fedproto", sample=2, rounds=4)), store)
    updates, initial = watch_updates(server), server.begin().server.model
    progress, _ = play(server)
    assert same(progress.server.model, initial)
    for update in updates:
        assert update.model == {}
        assert set(update.extra) == {"means", "weights"}
    assert progress.server.extra["known"].all()
    assert not any(same(model, initial) for model in store.models.values())


@pytest.mark.parametrize("partition", ["classes:2", "dirichlet:0.1"])
def test_only_a_client_whose_means_are_far_too_long_is_out_of_line(partition: str) -> None:
    """Clients of other classes are not, on real digits."""
    server = serve(tiny(Path("digits"), algorithm="fedproto", partition=partition, clients=10, rounds=4))
    updates = watch_updates(server)
    progress = server.begin()
    for _ in range(4):
        server.step(progress)
        sent = [update.extra for update in updates]
        assert server.algorithm.out_of_line(sent) == {}
        sent[3] = sent[3] | {"means": 1000 * sent[3]["means"]}
        assert set(server.algorithm.out_of_line(sent)) == {3}
        updates.clear()


def test_prototypes_are_of_the_trained_model_on_all_training_samples(npz: Path) -> None:
    store = Recording()
    server = Server(*resolve(tiny(npz, algorithm="fedproto", rounds=1)), store)
    updates = watch_updates(server)
    play(server)
    federation = server.federation
    for update in updates:
        server.net.load_state_dict(store.models[update.client])
        server.net.eval()
        samples = federation.train[update.client]
        with torch.no_grad():
            z = server.net.features(federation.data.inputs(federation.data.x_train[samples]))
        y = federation.data.y_train[samples]
        for c in y.unique().tolist():
            torch.testing.assert_close(update.extra["means"][c], z[y == c].mean(dim=0))


def test_prediction_by_the_nearest_prototype() -> None:
    method = FedProto(prediction="prototype")
    net, x = small_net(method), BATCH[0]
    z = net.features(x).detach()
    prototypes = torch.stack([z[0], z[1], z[2]]) + 1e-3
    everything = torch.ones(3, dtype=torch.bool)
    client = {"prototypes": prototypes, "known": torch.tensor([True, True, False]), "present": everything}
    nearest = [min((0, 1), key=lambda c: (row - prototypes[c]).norm().item()) for row in z]
    predicted = method.predict_personal(net, x, client).argmax(dim=1)
    assert predicted.tolist() == nearest  # the third, unknown, is nobody's nearest
    assert predicted[:2].tolist() == [0, 1]
    client["present"] = torch.tensor([True, False, True])  # only among the client's own classes
    assert method.predict_personal(net, x, client).argmax(dim=1).eq(0).all()
    by_head = FedProto().predict_personal(net, x, client)
    assert torch.equal(by_head, net(x))


def test_before_any_prototype_is_known_the_head_predicts() -> None:
    method = FedProto(prediction="prototype")
    net, x = small_net(method), BATCH[0]
    nothing, everything = torch.zeros(3, dtype=torch.bool), torch.ones(3, dtype=torch.bool)
    client = {"prototypes": torch.zeros(3, 4).double(), "known": nothing, "present": everything}
    assert torch.equal(method.predict_personal(net, x, client).argmax(dim=1), net(x).argmax(dim=1))


def test_what_is_shared_is_said() -> None:
    weighted, alike = FedProto().shares(), FedProto(weighted=False).shares()
    assert weighted is not None
    assert alike is not None
    assert "class means and their counts" in weighted
    assert "counts" not in alike


def test_lambda_of_zero_is_local_training(npz: Path) -> None:
    models = []
    for algorithm in ({"name": "fedproto", "lam": 0.0}, "local"):
        server = serve(tiny(npz, algorithm=algorithm, rounds=2, sample=3))
        _, records = play(server)
        models.append((dict(server.store.models), [(r["GA"], r["PA"]) for r in records]))  # type: ignore[attr-defined]
    assert models[0][1] == models[1][1]
    assert all(same(models[0][0][k], models[1][0][k]) for k in models[0][0])


def test_clients_that_were_never_there_predict_by_prototypes_on_all_test_samples_too(npz: Path) -> None:
    method = {"name": "fedproto", "prediction": "prototype"}
    server = serve(tiny(npz, algorithm=method, sample=2, epochs=5, engine="eager"))
    progress = server.begin()
    server.step(progress)
    new = (progress.visited == 0).nonzero().flatten().tolist()
    assert new
    for k in new:
        vectors = server.algorithm.client_vectors(server.federation.train_counts[k], progress.server.extra)
        union = server.scorer.union
        question = Question(progress.server.model, union, vectors | progress.server.extra)
        (predicted,) = server.engine.answers(server.algorithm.predict_personal, [question])
        right = server.scorer.right(predicted, union)
        assert torch.equal(progress.right_on_union[k], right)
