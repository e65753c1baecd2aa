"""The two bounds, against plain training by hand."""

from pathlib import Path

import torch
from torch.nn import functional as F

from algorithms.by_hand import snapshot
from fedgela.algorithms.bounds import Centralised, Local
from fedgela.data import Federation
from fedgela.models import Net, State
from fedgela.resolve import resolve
from fedgela.server import Server
from fedgela.training import Plan
from fedgela.training.interface import batches
from helpers import Recording, play, same, serve, tiny, watch_updates


def assert_close(model: State, expected: State) -> None:
    for name, value in expected.items():
        torch.testing.assert_close(model[name], value, rtol=1e-4, atol=1e-6)


def train_by_hand(net: Net, server: Server, federation: Federation, client: int, round: int) -> None:
    """A round of plain SGD on one client's samples; momentum starts anew."""
    e, data = server.experiment, federation.data
    net.train()
    for parameter in net.parameters():
        parameter.requires_grad_(True)
    sgd = torch.optim.SGD(net.parameters(), e.lr, e.momentum, weight_decay=e.weight_decay)
    address = Plan(Local().loss, (), e.lr, e.seed, "batches", round)
    for epoch in range(e.epochs):
        for batch in batches(address, client, epoch, federation.train[client], e.batch_size):
            sgd.zero_grad()
            F.cross_entropy(net(data.inputs(data.x_train[batch])), data.y_train[batch]).backward()
            sgd.step()


def test_a_local_client_is_as_if_it_were_alone(npz: Path) -> None:
    store = Recording()
    server = Server(*resolve(tiny(npz, algorithm="local", rounds=4, epochs=2, sample=2)), store)
    initial = server.begin().server.model
    updates = watch_updates(server)
    progress, records = play(server)
    assert all(update.model == {} and update.extra == {} for update in updates)
    assert same(progress.server.model, initial)
    visits = {k: [r["round"] for r in records if k in r["clients"]] for k in range(4)}
    assert any(len(rounds) > 1 for rounds in visits.values())
    for client, rounds in visits.items():
        net = server.net
        net.load_state_dict(initial)
        for round in rounds:
            train_by_hand(net, server, server.federation, client, round)
        if rounds:
            assert_close(store.models[client], snapshot(net))


def test_what_the_others_hold_does_not_matter_to_a_local_client(npz: Path) -> None:
    models = []
    for sample in (1, 4):
        # clients one by one: in lockstep, floats depend on how many there are
        experiment = tiny(npz, algorithm="local", rounds=1, sample=sample, width=1)
        server = Server(*resolve(experiment), store := Recording())
        play(server)
        models.append(dict(store.models))
    [client] = models[0]
    assert same(models[0][client], models[1][client])


def test_centralised_is_plain_sgd_on_the_pooled_data(npz: Path) -> None:
    server = serve(tiny(npz, algorithm="centralised", rounds=2, epochs=2))
    initial = server.begin().server.model
    progress, _ = play(server)
    assert server.trainees.train[0].tolist() == list(range(60))  # all samples, each once
    server.net.load_state_dict(initial)
    for round in (1, 2):
        train_by_hand(server.net, server, server.trainees, 0, round)
    assert_close(progress.server.model, snapshot(server.net))


def test_centralised_does_not_depend_on_who_holds_what(npz: Path) -> None:
    ends = []
    for partition, clients in (("classes:2", 4), ("dirichlet:0.3", 3)):
        table = {"partition": partition, "clients": clients, "rounds": 2, "algorithm": "centralised"}
        progress, records = play(serve(tiny(npz, **table)))
        ends.append((progress.server.model, [r["GA"] for r in records]))
    assert same(ends[0][0], ends[1][0])
    assert ends[0][1] == ends[1][1]


def test_the_loss_of_both_is_plain_cross_entropy() -> None:
    logits, y = torch.tensor([[1.0, 2.0, 0.5], [0.0, 0.0, 3.0]]), torch.tensor([0, 2])
    for method in (Local(), Centralised()):
        loss = method.loss(lambda x: x, logits, y, {})  # type: ignore[arg-type]  # a net that only passes on
        torch.testing.assert_close(loss, -logits.softmax(dim=1)[[0, 1], y].log())
