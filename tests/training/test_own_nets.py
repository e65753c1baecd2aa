"""A user's own nets and methods that do unusual things: all engines give what plain PyTorch would."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from fedgela.algorithms import FedAvg, Phase
from fedgela.errors import UserError
from fedgela.models import State
from fedgela.rounds import Progress
from fedgela.training import Job, LaneEngine, Plan
from helpers import play, same, serve, tiny

NETS = """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 6)

    def forward(self, x):
        return self.linear(x.flatten(1)).tanh()


class Frozen(Plain):
    def __init__(self):
        super().__init__()
        self.linear.requires_grad_(False)
        self.after = nn.Linear(6, 6)

    def forward(self, x):
        return self.after(super().forward(x))


class AssignsBuffers(Plain):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.ones(6))
        self.register_buffer("steps", torch.tensor(0))

    def forward(self, x):
        z = super().forward(x) * self.mean / (1 + 0.1 * self.steps)
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * z.detach().abs().mean(dim=0)
            self.steps = self.steps + 1
        return z


class ListsParameters(Plain):
    def __init__(self):
        super().__init__()
        self.held = [self.linear.weight, self.linear.bias]

    def forward(self, x):
        return nn.functional.linear(x.flatten(1), *self.held).tanh()


class HoldsItselfInALambda(Plain):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6))
        self.scaled = lambda z: z * self.scale

    def forward(self, x):
        return self.scaled(super().forward(x))


class Checkpoints(Plain):
    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=False)


class HooksAParameter(Plain):
    def __init__(self):
        super().__init__()
        self.linear.weight.register_hook(lambda slope: slope / 2)


class HooksALayer(Plain):
    def __init__(self):
        super().__init__()
        self.before = nn.Linear(64, 64)
        self.linear.register_full_backward_hook(lambda layer, inner, outer: (inner[0] / 2,))

    def forward(self, x):
        return super().forward(self.before(x.flatten(1)))


class Ties(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.second = self.first

    def forward(self, x):
        return self.second(self.first(x.flatten(1)).relu())


class TakesAPart(nn.Module):
    def __init__(self):
        super().__init__()
        self.part = nn.Parameter(torch.randn(64, 64)[:, :6] / 8)
        self.repeated = nn.Parameter(torch.ones(1).expand(6))

    def forward(self, x):
        return x.flatten(1) @ self.part * self.repeated


class SharesANorm(nn.Module):
    def __init__(self, affine=True):
        super().__init__()
        self.first = nn.Linear(64, 6)
        self.second = nn.Linear(6, 6)
        self.norm = nn.BatchNorm1d(6, affine=affine)
        self.again = self.norm

    def forward(self, x):
        return self.again(self.second(self.norm(self.first(x.flatten(1))).relu()))


class SharesStatistics(SharesANorm):
    def __init__(self):
        super().__init__(affine=False)


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.volume = nn.Conv3d(1, 4, (1, 3, 3))
        self.linear = nn.Linear(4 * 36, 6)

    def forward(self, x):
        return self.linear(self.volume(x[:, None]).relu().flatten(1))


class LeavesOut(Plain):
    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.tensor(0))
        self.seldom = nn.Linear(6, 6)

    def forward(self, x):
        z = super().forward(x)
        if self.training:
            self.steps.add_(1)
        return z if self.steps % 3 < 2 else z + self.seldom(z)


class Pads(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(4, 6, padding_idx=0, max_norm=0.5)
        self.linear = nn.Linear(6 * 64, 6)

    def forward(self, x):
        return self.linear(self.embedding((x.flatten(1).clamp(-1, 1) + 2).long() - 1).flatten(1))


class ChangesItselfWhenAsked(Plain):
    def __init__(self):
        super().__init__()
        self.register_buffer("asked", torch.zeros(()))

    def forward(self, x):
        with torch.no_grad():
            self.linear.weight.mul_(0.95)
            self.asked.add_(1)
        return super().forward(x)
"""
METHODS = """
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from fedgela.algorithms import FedAvg, Phase
from fedgela.randomness import uniform


@dataclass(frozen=True)
class FixedHead(FedAvg):
    def head(self, d, C, seed):
        return nn.Linear(d, C).requires_grad_(False)


@dataclass(frozen=True)
class StaysCloseLater(FedAvg):
    keeps_model: ClassVar[bool] = True

    def references(self, server, last):
        return {} if last is None else {"last": last["head.weight"]}

    def loss(self, net, x, y, client):
        losses = super().loss(net, x, y, client)
        return losses + (net.head.weight - client["last"]).square().sum() if "last" in client else losses


@dataclass(frozen=True)
class LooksAtValues(FedAvg):
    def loss(self, net, x, y, client):
        losses = super().loss(net, x, y, client)
        return 2 * losses if losses.mean() > 1 else losses


@dataclass(frozen=True)
class HasGradientsOfItsOwn(FedAvg):
    def loss(self, net, x, y, client):
        x = x.clone().requires_grad_()
        losses = super().loss(net, x, y, client)
        slopes, = torch.autograd.grad(losses.sum(), x, create_graph=True)
        return losses + slopes.flatten(1).square().sum(dim=1)


@dataclass(frozen=True)
class DoesNotFit(FedAvg):
    def loss(self, net, x, y, client):
        return super().loss(net, x, y, client) + torch.ones(999)


@dataclass(frozen=True)
class Draws(FedAvg):
    def loss(self, net, x, y, client):
        return super().loss(net, x + torch.randn_like(x), y, client)


@dataclass(frozen=True)
class DrawsItsOwn(FedAvg):
    def loss(self, net, x, y, client):
        return super().loss(net, x + uniform(client["draw"], 0, x.shape), y, client)


@dataclass(frozen=True)
class FixedHeadAlone(FixedHead):
    def phases(self, epochs):
        return (Phase(epochs, ("head.",)),)
"""
WAYS: dict[str, dict[str, Any]] = {
    "eager": {"engine": "eager"},
    "one": {"engine": "lanes", "lanes": 1, "width": 1},
    "stacked": {"engine": "lanes", "lanes": 1, "width": 3},
    "workers": {"engine": "lanes", "lanes": 2, "width": 1},
}
LANES = [way for way in WAYS if way != "eager"]


@pytest.fixture(autouse=True)
def own_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "unusual_nets.py").write_text(NETS)
    (tmp_path / "unusual_methods.py").write_text(METHODS)
    monkeypatch.syspath_prepend(str(tmp_path))


def settings(net: str = "Plain", method: str = "fedavg", **changes: Any) -> dict[str, Any]:
    algorithm = f"unusual_methods:{method}" if method[0].isupper() else method
    return {
        "model": f"unusual_nets:{net}",
        "algorithm": algorithm,
        "epochs": 2,
        "sample": 3,
        "lr": 0.3,
    } | changes


def played(npz: Path, way: str, **changes: Any) -> tuple[State, Progress, list[float]]:
    """The model that a run began with, how it ended, and the losses of its rounds."""
    server = serve(tiny(npz, **settings(**changes), **WAYS[way]))
    began = server.begin().server.model
    progress, records = play(server)
    server.close()
    return began, progress, [record["train_loss"] for record in records]


def assert_as_eager(npz: Path, way: str, **changes: Any) -> None:
    _, expected, losses = played(npz, "eager", **changes)
    _, progress, found = played(npz, way, **changes)
    assert found == pytest.approx(losses, rel=1e-4)
    for name, value in expected.server.model.items():
        torch.testing.assert_close(progress.server.model[name], value, rtol=1e-3, atol=1e-5)


# -- what is not to be trained ---------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("changes", "frozen"), [({"net": "Frozen"}, "backbone.net.linear."), ({"method": "FixedHead"}, "head.")]
)
def test_what_asks_for_no_gradient_stays_as_it_is(
    npz: Path, way: str, changes: dict[str, str], frozen: str
) -> None:
    began, progress, _ = played(npz, way, **changes)
    for name, value in progress.server.model.items():
        # averaging rounds
        assert torch.allclose(value, began[name], atol=1e-6) == name.startswith(frozen), name


def test_nor_does_fine_tuning_move_it(npz: Path) -> None:
    server = serve(tiny(npz, **settings("Frozen")))
    began = server.begin().server.model
    for outcome in server.finetune(began, 1, [0, 1], {}):
        for name, value in outcome.model.items():
            assert torch.equal(value, began[name]) == name.startswith("backbone.net.linear."), name


def test_a_phase_of_what_is_not_trained_is_told(npz: Path) -> None:
    with pytest.raises(UserError, match=r"begins with \('head.',\), and no parameter does; they begin with"):
        serve(tiny(npz, **settings(method="FixedHeadAlone")))


@pytest.mark.parametrize("way", WAYS)
def test_an_embedding_of_padding_stays_as_it_is(npz: Path, way: str) -> None:
    began, progress, _ = played(npz, way, net="Pads", weight_decay=0.0)
    moved = (
        progress.server.model["backbone.net.embedding.weight"] - began["backbone.net.embedding.weight"]
    ).abs()
    assert (moved.amax(dim=1) > 1e-6).tolist() == [False, True, True, False]
    assert_as_eager(npz, way, net="Pads")


# -- what a net changes in its forward pass --------------------------------------------------------


@pytest.mark.parametrize("way", LANES)
def test_a_buffer_may_be_assigned(npz: Path, way: str) -> None:
    assert_as_eager(npz, way, net="AssignsBuffers")


@pytest.mark.parametrize("way", LANES)
def test_being_asked_changes_nobodys_model(npz: Path, way: str) -> None:
    assert_as_eager(npz, way, net="ChangesItselfWhenAsked")


@pytest.mark.parametrize("way", WAYS)
def test_nor_does_being_a_teacher(npz: Path, way: str) -> None:
    server = serve(tiny(npz, **settings("ChangesItselfWhenAsked", "moon"), **WAYS[way]))
    progress = server.begin()
    before = {name: value.clone() for name, value in progress.server.model.items()}
    progress.round = 1
    server.visits(progress, server.plan(progress), [0, 1])
    server.close()
    assert same(progress.server.model, before)


# -- where parameters are --------------------------------------------------------------------------


@pytest.mark.parametrize("net", ["ListsParameters", "HoldsItselfInALambda", "Checkpoints", "HooksAParameter"])
def test_what_no_weights_can_be_put_into_trains_by_the_plain_engine(npz: Path, net: str) -> None:
    server = serve(tiny(npz, **settings(net)))
    assert server.experiment.engine == "eager"
    began = server.begin().server.model
    progress, _ = play(server)
    expected = play(serve(tiny(npz, **settings())))[0].server.model
    for name, value in progress.server.model.items():
        assert not torch.allclose(value, began[name]), name
        if net in ("ListsParameters", "Checkpoints"):  # which compute what the plain one does
            torch.testing.assert_close(value, expected[name], rtol=1e-3, atol=1e-5)
    with pytest.raises(
        UserError, match="lanes cannot train a model whose parameters are in a list or a lambda"
    ):
        serve(tiny(npz, **settings(net), engine="lanes"))
    with pytest.raises(UserError, match="asks the model with other weights, which it does not take"):
        play(serve(tiny(npz, **settings(net, "moon"))))


@pytest.mark.parametrize("net", ["Plain", "Frozen", "AssignsBuffers", "Pads", "Ties"])
def test_what_weights_can_be_put_into_has_teachers(npz: Path, net: str) -> None:
    server = serve(tiny(npz, **settings(net, "moon")))
    assert server.net.backbone.takes_weights
    assert server.experiment.engine == ("eager" if net == "Ties" else "lanes")
    assert play(server)[0].round == 3


def test_a_parameter_may_be_a_part_of_a_larger_tensor(npz: Path) -> None:
    server = serve(tiny(npz, **settings("TakesAPart", momentum=0.0, weight_decay=0.0), engine="eager"))
    began = server.begin().server.model
    plan = Plan(FedAvg().loss, (Phase(1),), 0.1, 0, "batches", 1)
    (outcome,) = server.engine.train(plan, [Job(0, torch.arange(5), began)])  # one step
    net, data = copy.deepcopy(server.net), server.federation.data
    net.load_state_dict(began)
    F.cross_entropy(net(data.inputs(data.x_train[:5])), data.y_train[:5]).backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(outcome.model[name], began[name] - 0.1 * parameter.grad)


def test_the_server_s_own_step_moves_a_weight_under_all_of_its_names(npz: Path) -> None:
    changes = {"server_lr": 0.5, "server_momentum": 0.5}
    model = play(serve(tiny(npz, **settings("Ties"), **changes)))[0].server.model
    assert torch.equal(model["backbone.net.first.weight"], model["backbone.net.second.weight"])


@pytest.mark.parametrize("net", ["SharesANorm", "SharesStatistics"])
def test_a_norm_in_two_places_trains_by_the_plain_engine_and_may_be_local(npz: Path, net: str) -> None:
    server = serve(tiny(npz, **settings(net, batchnorm="local")))
    assert server.experiment.engine == "eager"
    progress, _ = play(server)
    for client in range(4):
        model = server.job(progress, client).start
        for entry in ("running_mean", "running_var"):
            assert torch.equal(model[f"backbone.net.norm.{entry}"], model[f"backbone.net.again.{entry}"])


# -- what lanes make of it -------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["one", "workers"])
@pytest.mark.parametrize("net", ["Deep", "LeavesOut", "HooksALayer"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_any_layer_and_any_way_through_them_trains_alike(
    npz: Path, way: str, net: str, optimizer: str
) -> None:
    assert_as_eager(npz, way, net=net, optimizer=optimizer, lr=0.02)


@pytest.mark.parametrize("net", ["LeavesOut", "HooksALayer"])
def test_what_vmap_computes_otherwise_is_not_stacked(npz: Path, net: str) -> None:
    server = serve(tiny(npz, **settings(net)))
    assert (server.experiment.engine, server.experiment.width) == ("lanes", 1)


# -- what a method does ----------------------------------------------------------------------------


@pytest.mark.parametrize("way", LANES)
def test_references_may_be_of_some_clients_only(npz: Path, way: str) -> None:
    assert_as_eager(npz, way, method="StaysCloseLater")


@pytest.mark.parametrize("way", LANES)
def test_a_method_draws_by_its_clients_number(npz: Path, way: str) -> None:
    assert_as_eager(npz, way, method="DrawsItsOwn")
    with pytest.raises(UserError, match="loss draws numbers that are not its client's own: it takes them"):
        played(npz, way, method="Draws")


@pytest.mark.parametrize("way", LANES)
@pytest.mark.parametrize("method", ["LooksAtValues", "HasGradientsOfItsOwn"])
def test_a_loss_that_cannot_be_stacked_is_computed_client_by_client(npz: Path, way: str, method: str) -> None:
    assert_as_eager(npz, way, method=method, lr=0.05)


def test_a_loss_that_cannot_be_stacked_is_compiled_for_one_client(
    npz: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    assert_as_eager(npz, "stacked", method="LooksAtValues", lr=0.05, compile=True)


def test_that_a_loss_cannot_be_stacked_is_told(npz: Path) -> None:
    server = serve(tiny(npz, **settings(method="LooksAtValues"), **WAYS["stacked"]))
    notes: list[str] = []
    assert isinstance(server.engine, LaneEngine)
    server.engine.note = notes.append
    play(server)
    assert [note.partition(" (")[0] for note in notes] == [
        "several clients cannot be computed at once by this model or method: they train one by one"
    ]
    with pytest.raises(RuntimeError, match=r"size of tensor a .* must match the size of tensor b \(999\)"):
        play(serve(tiny(npz, **settings(method="DoesNotFit"), **WAYS["stacked"])))
