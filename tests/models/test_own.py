"""A user's own net, by import path."""

import contextlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedgela.config import Experiment, parse_experiment
from fedgela.errors import UserError
from fedgela.evaluation import Record
from fedgela.inputs import InputSpec
from fedgela.models import Net, build_net
from fedgela.runs import resume, run
from helpers import Notes, outcome_of, run_cut, serve, tiny

NETS = """
import random

import numpy as np
import torch
from torch import nn


class TakesSpec(nn.Module):
    def __init__(self, spec):
        super().__init__()
        self.flat = nn.Linear(spec.shape[-1], 5)

    def forward(self, x):
        return self.flat(x.flatten(1)[:, : self.flat.in_features])


class TakesNothing(nn.Module):
    width = 7

    def __init__(self, hidden=7):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.LazyLinear(hidden))

    def forward(self, x):
        return self.layers(x)


class OwnWidth(TakesNothing):
    def __init__(self, spec=None):
        super().__init__(hidden=9 if spec is None else 6)
        self.width = 6


class WrongWidth(TakesNothing):
    width = 84


class NoFeatures(nn.Module):
    def forward(self, x):
        return x


class ManyThings(nn.Module):
    def forward(self, x):
        return x, x


class Labels(nn.Module):
    def forward(self, x):
        return x.flatten(1).long()


class OfBatch(nn.Module):
    def forward(self, x):
        return x.flatten(1).mean(dim=0, keepdim=True)


class Fails(nn.Module):
    def forward(self, x):
        return torch.mm(x, x)


class DropsByFunction(nn.Module):
    def __init__(self):
        super().__init__()
        self.flat = nn.Linear(64, 5)

    def forward(self, x):
        return nn.functional.dropout(self.flat(x.flatten(1)), 0.5, self.training)


class DropsAlways(DropsByFunction):
    def forward(self, x):
        return nn.functional.dropout(self.flat(x.flatten(1)), 0.5)


class DrawsByPython(DropsByFunction):
    def forward(self, x):
        z = self.flat(x.flatten(1))
        return z if self.training and random.random() < 0.5 else 2 * z


class DrawsByNumPy(DropsByFunction):
    def forward(self, x):
        z = self.flat(x.flatten(1))
        return z if self.training and np.random.rand() < 0.5 else 2 * z


class ForgetsABuffer(DropsByFunction):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(5), persistent=False)

    def forward(self, x):
        z = self.flat(x.flatten(1))
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * z.detach().mean(dim=0)
        return z - self.mean


class Caches(DropsByFunction):
    def __init__(self):
        super().__init__()
        self.register_buffer("places", None, persistent=False)

    def forward(self, x):
        if self.places is None or self.training:
            self.places = torch.arange(64.0)
        return self.flat(x.flatten(1) + self.places)


class KeepsWeights(DropsByFunction):
    kept = None

    def forward(self, x):
        if self.training:
            self.kept = None
            return self.flat(x.flatten(1))
        if self.kept is None:
            self.kept = self.flat.weight.t().contiguous()
        return x.flatten(1) @ self.kept + self.flat.bias


class CountsSteps(DropsByFunction):
    steps = 0

    def forward(self, x):
        self.steps += self.training
        return self.flat(x.flatten(1)) * min(1.0, 0.1 * self.steps)


class FailsInTraining(DropsByFunction):
    def forward(self, x):
        return torch.mm(x, x) if self.training else super().forward(x)


class CallsALibraryWrongly(DropsByFunction):
    def forward(self, x):
        return nn.Linear(3, 5)(x.flatten(1))


class DecidesByValue(DropsByFunction):
    def forward(self, x):
        return self.flat(x.flatten(1) * 2 if x.sum() > 0 else x.flatten(1))


class ReadsAValue(DropsByFunction):
    def forward(self, x):
        return self.flat(x.flatten(1) / (1 + float(x.abs().max())))


class Norms(DropsByFunction):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(5)

    def forward(self, x):
        return self.norm(self.flat(x.flatten(1)))


class NormsByTheBatch(DropsByFunction):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(5, track_running_stats=False)

    def forward(self, x):
        return self.norm(self.flat(x.flatten(1)))


class Centres(DropsByFunction):
    def forward(self, x):
        z = self.flat(x.flatten(1))
        return z - z.mean(dim=0)


class Squeezes(DropsByFunction):
    def forward(self, x):
        return self.flat(x.flatten(1)).squeeze()


class SharesWeights(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.second = self.first

    def forward(self, x):
        return self.second(self.first(x.flatten(1)).relu())


class CannotBeMade(nn.Module):
    def __init__(self, spec):
        raise KeyError("channels")


class WantsMore(nn.Module):
    def __init__(self, spec, depth, *, rate):
        super().__init__()


class NoModule:
    pass


def function(spec):
    return nn.Flatten()


def other():
    return 3


number = 3
"""
IMAGES = InputSpec("image", (1, 8, 8))


@pytest.fixture(autouse=True)
def own_nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the current folder, as a user's code is."""
    (tmp_path / "own_nets_of_a_test.py").write_text(NETS)
    (tmp_path / "broken_nets.py").write_text("import nothing_of_this_name\n")
    (tmp_path / "unfinished_nets.py").write_text("x = 1\nx / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])


def net_of(name: str, spec: InputSpec = IMAGES) -> Net:
    return build_net(f"own_nets_of_a_test:{name}", spec, 4, lambda: nn.Linear(4, 3), seed=0)


@pytest.mark.parametrize(
    ("name", "width"),
    [("Caches", 5), ("TakesSpec", 8 * 1 - 3), ("TakesNothing", 7), ("OwnWidth", 6), ("function", 64)],
)
def test_its_width_is_given_or_found(name: str, width: int) -> None:
    net = net_of(name)
    assert net.backbone.width == width
    assert net.projection.in_features == width
    assert net(torch.randn(3, 1, 8, 8)).shape == (3, 3)
    assert all(part.training for part in net.modules())  # trying it has left no trace


@pytest.mark.parametrize(("classes", "told"), [(7, True), (6, False)])
def test_a_net_that_seems_to_classify_is_told(tmp_path: Path, classes: int, told: bool) -> None:
    x, y = np.zeros((42, 8, 8), np.uint8), np.arange(42) % classes
    np.savez(tmp_path / "d.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    notes = Notes()
    experiment = tiny(tmp_path / "d.npz", model="own_nets_of_a_test:TakesNothing", partition="iid", rounds=1)
    run(experiment, tmp_path / "run", notes)
    assert any(f"gives as many features as there are classes, {classes}: " in n for n in notes.notes) == told


@pytest.mark.parametrize(("name", "told"), [("Centres", True), ("Norms", False)])
def test_a_net_whose_answers_depend_on_the_batch_is_told(
    npz: Path, tmp_path: Path, name: str, told: bool
) -> None:
    notes = Notes()
    run(tiny(npz, model=f"own_nets_of_a_test:{name}", rounds=1), tmp_path / "run", notes)
    assert any("answers otherwise for a sample alone than among others" in n for n in notes.notes) == told


def test_draws_without_a_layer_are_the_clients_own_too(npz: Path) -> None:
    found = []
    for engine, seed in (("lanes", 1), ("lanes", 2), ("eager", 3)):
        torch.manual_seed(seed)
        server = serve(tiny(npz, engine=engine, model="own_nets_of_a_test:DropsByFunction"))
        assert server.experiment.width == 1  # stacked, clients would share their draws
        found.append(server.step(server.begin())["train_loss"])
        server.close()
    assert found[0] == found[1] == pytest.approx(found[2], rel=1e-5)
    assert not net_of("TakesSpec").backbone.draws


def test_tokens_are_tried_as_integers(tmp_path: Path) -> None:
    (tmp_path / "own_reader.py").write_text(
        "from torch import nn\n"
        "class Reader(nn.Module):\n"
        "    def __init__(self, spec):\n"
        "        super().__init__()\n"
        "        self.embedding = nn.EmbeddingBag(spec.vocabulary, 6)\n"
        "    def forward(self, x):\n"
        "        return self.embedding(x)\n"
    )
    net = build_net("own_reader:Reader", InputSpec("tokens", (9,), 50), 4, nn.Identity, seed=0)
    assert net.backbone.width == 6


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("WrongWidth", r"its width is 84, but it gives features \[2, 7\]"),
        ("NoFeatures", r"must give features \[B, width\]; of two samples it gives .*\[2, 1, 8, 8\]"),
        ("ManyThings", r"must give features \[B, width\]; of two samples it gives a tuple"),
        ("Labels", r"must give features \[B, width\]; of two samples it gives torch.int64 \[2, 64\]"),
        ("OfBatch", r"must give features \[B, width\]; of two samples it gives torch.float32 \[1, 64\]"),
        ("DropsAlways", "draws numbers in evaluation too, so that no two evaluations agree; F.dropout, say"),
        ("DrawsByPython", "draws by Python's random or by NumPy, which a run's seed does not reach"),
        ("DrawsByNumPy", "draws by Python's random or by NumPy, which a run's seed does not reach"),
        ("KeepsWeights", "answers by what it keeps beside its state, a cache of weights or a count of steps"),
        ("CountsSteps", "answers by what it keeps beside its state, a cache of weights or a count of steps"),
        (
            "ForgetsABuffer",
            r"changes mean in training, a buffer that is no part of its state \(persistent=False\): clients",
        ),
        (
            "FailsInTraining",
            r"fails in training mode on two samples: RuntimeError: .*own_nets_of_a_test.py, line \d+",
        ),
        ("Fails", r"fails on two samples \[2, 1, 8, 8\]: RuntimeError: .*own_nets_of_a_test.py, line \d+"),
        ("CallsALibraryWrongly", r"fails on two samples .*RuntimeError: .*own_nets_of_a_test.py, line \d+"),
        ("NormsByTheBatch", "fails in evaluation on a single sample: ValueError: Expected more than 1 value"),
        ("Squeezes", r"gives features \[5\] of a single sample, instead of \[1, 5\]"),
        ("CannotBeMade", "cannot be made for image of shape 1x8x8: KeyError: 'channels'"),
        ("WantsMore", "takes spec, depth, rate; it is called with one InputSpec"),
        ("other", "must give a torch.nn.Module, not a int"),
    ],
)
def test_what_is_wrong_with_it_is_found_at_once(name: str, message: str) -> None:
    with pytest.raises(UserError, match=f"^own_nets_of_a_test:{name}: {message}") as caught:
        net_of(name)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("own_nets_of_a_test:TakesSpek", "own_nets_of_a_test has no 'TakesSpek' (did you mean 'TakesSpec'?)"),
        ("own_nets_of_a_test:NoModule", "must be a torch.nn.Module class, not the class NoModule"),
        ("own_nets_of_a_test:number", "must be a torch.nn.Module class, not a int"),
        ("no_such_package.nets:Net", "there is no module 'no_such_package', neither in"),
        ("own_nets_of_a_test.deep:Net", "there is no module 'own_nets_of_a_test.deep', neither in"),
        (
            "broken_nets:Net",
            "broken_nets cannot be imported: ModuleNotFoundError: No module named 'nothing_of",
        ),
        ("unfinished_nets:Net", "unfinished_nets cannot be imported: ZeroDivisionError"),
    ],
)
def test_a_wrong_path_is_an_error_of_the_config(path: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_experiment({"model": path})
    assert str(caught.value).startswith(f"config: model: {path}: {message}")
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    "name", ["resnet19", "own_nets_of_a_test", ":Net", "a b:Net", "nets:", "nets.py:Net:x"]
)
def test_what_is_no_path_is_an_unknown_model(name: str) -> None:
    with pytest.raises(UserError, match=r"there is no model .*package\.my_module:MyNet"):
        parse_experiment({"model": name})


@pytest.mark.parametrize("algorithm", ["fedavg", "fedgela", "moon", "fedrep"])
def test_it_trains_and_resumes_dropout_included(npz: Path, tmp_path: Path, algorithm: str) -> None:
    experiment = tiny(npz, model="own_nets_of_a_test:TakesNothing", algorithm=algorithm, rounds=3)
    run(experiment, tmp_path / "whole")
    run_cut(experiment, tmp_path / "cut", at=3)
    torch.manual_seed(5)  # of no consequence: a net's draws are addressed
    resume(tmp_path / "cut")
    assert outcome_of(tmp_path / "whole") == outcome_of(tmp_path / "cut")


def test_training_leaves_the_global_generator_alone(npz: Path) -> None:
    server = serve(tiny(npz, model="own_nets_of_a_test:TakesNothing"))
    before = torch.get_rng_state()
    server.step(server.begin())
    assert torch.equal(torch.get_rng_state(), before)


def trained(npz: Path, name: str, **changes: Any) -> tuple[Experiment, Record]:
    server = serve(tiny(npz, model=f"own_nets_of_a_test:{name}", **changes))
    with contextlib.closing(server):
        return server.experiment, server.step(server.begin())


@pytest.mark.parametrize("name", ["DecidesByValue", "ReadsAValue"])
def test_a_net_whose_way_its_values_decide_trains_clients_one_by_one(npz: Path, name: str) -> None:
    experiment, record = trained(npz, name)
    assert (experiment.engine, experiment.width) == ("lanes", 1)
    plain = trained(npz, name, engine="eager")[1]
    assert record["train_loss"] == pytest.approx(plain["train_loss"], rel=1e-5)


@pytest.mark.parametrize("name", ["TakesSpec", "Norms"])
def test_a_net_of_usual_layers_trains_clients_together(npz: Path, name: str) -> None:
    assert trained(npz, name)[0].width == 4


def test_a_net_with_a_parameter_in_two_places_trains_by_the_plain_engine(npz: Path) -> None:
    assert trained(npz, "SharesWeights")[0].engine == "eager"
    with pytest.raises(UserError, match="engine: lanes cannot train a model that has one parameter or"):
        trained(npz, "SharesWeights", engine="lanes")
