"""A user's own method, by import path."""

import copy
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from fedgela.algorithms import FedAvg, find_algorithm, mean_statistics, name_of
from fedgela.config import Experiment, parse_experiment
from fedgela.errors import UserError
from fedgela.methods import experiments_of
from fedgela.runs import RunFolder, run
from helpers import play, same, serve, tiny, tiny_table

METHODS = """
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedgela.algorithms import FedAvg, Phase, average


@dataclass(frozen=True)
class Doubled(FedAvg):
    factor: float = 2.0

    def loss(self, net, x, y, client):
        return self.factor * super().loss(net, x, y, client)


@dataclass(frozen=True)
class Bounded(FedAvg):
    most: float | None = 3.0


@dataclass(frozen=True)
class TakesTheMean(FedAvg):
    def loss(self, net, x, y, client):
        return super().loss(net, x, y, client).mean()


@dataclass(frozen=True)
class Clashing(FedAvg):
    momentum: float = 0.5


@dataclass(frozen=True)
class Listed(FedAvg):
    widths: list[int] = field(default_factory=lambda: [1, 2])


@dataclass(frozen=True)
class Tensors(FedAvg):
    scale: Tensor = None


@dataclass(frozen=True)
class Paths(FedAvg):
    place: Path = Path("here")


@dataclass(frozen=True)
class StartsHalfWay(FedAvg):
    keeps_model: ClassVar = True

    def start(self, server, last):
        for name, value in (last or {}).items():
            if value.is_floating_point():
                value.lerp_(server[name], 0.5)
        return last or server


@dataclass(frozen=True)
class PersonalOfNobody(FedAvg):
    PA_of: ClassVar = "mine"


@dataclass(frozen=True)
class ForgetsPersonalModels(FedAvg):
    PA_of: ClassVar = "local"


@dataclass(frozen=True)
class ForgetsHeads(FedAvg):
    def travels(self, entry):
        return not entry.startswith("head.")


@dataclass(frozen=True)
class KeepsHeads(ForgetsHeads):
    PA_of: ClassVar = "local"
    keeps_model: ClassVar = True


@dataclass(frozen=True)
class GlobalOfNobody(FedAvg):
    GA_of: ClassVar = "all"


@dataclass(frozen=True)
class SearchesNothing(FedAvg):
    grid: ClassVar = {"factr": (1.0, 2.0)}
    factor: float = 1.0


@dataclass(frozen=True)
class FewLogits(FedAvg):
    def predict_global(self, net, x):
        return net(x)[:, :3]


@dataclass(frozen=True)
class PersonalLabels(FedAvg):
    def predict_personal(self, net, x, client):
        return net(x).argmax(dim=1)


@dataclass(frozen=True)
class WideHead(FedAvg):
    def head(self, d, C, seed):
        return nn.Linear(d + 1, C)


@dataclass(frozen=True)
class ShortHead(FedAvg):
    def head(self, d, C, seed):
        return nn.Linear(d, C - 1)


@dataclass(frozen=True)
class DeepHead(FedAvg):
    def head(self, d, C, seed):
        return nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, C))


@dataclass(frozen=True)
class DeepHeadNamed(DeepHead):
    def classifier(self, model, client):
        return model["head.2.weight"]


@dataclass(frozen=True)
class FeaturesForVectors(DeepHead):
    def classifier(self, model, client):
        return model["head.0.weight"]


@dataclass(frozen=True)
class BesideNothing(FedAvg):
    beside: ClassVar = ("PA_fine_tuned",)


@dataclass(frozen=True)
class TrainsNothing(FedAvg):
    def phases(self, epochs):
        return Phase(epochs), Phase(epochs, ("body.",))


@dataclass(frozen=True)
class OnePhase(FedAvg):
    def phases(self, epochs):
        return Phase(epochs)


@dataclass(frozen=True)
class GivesADict(FedAvg):
    def aggregate(self, server, updates, moment):
        return server.model


@dataclass(frozen=True)
class LosesTheHead(FedAvg):
    def aggregate(self, server, updates, moment):
        body = {name: value for name, value in average(updates).items() if not name.startswith("head")}
        return replace(server, model=body)


@dataclass(frozen=True)
class InPlace(FedAvg):
    def aggregate(self, server, updates, moment):
        for name, value in average(updates).items():
            server.model[name].copy_(value)
        return server


@dataclass(frozen=True)
class InItsPlace(FedAvg):
    def aggregate(self, server, updates, moment):
        server.model.update(average(updates))
        return server


@dataclass(frozen=True)
class OfChanges(FedAvg):
    keeps_model: ClassVar[bool] = True

    def aggregate(self, server, updates, moment):
        for update in updates:
            for name, value in update.model.items():
                value.sub_(server.model[name])
        changes = average(updates)
        moved = {name: server.model[name] + change for name, change in changes.items()}
        return replace(server, model={**server.model, **moved})


@dataclass(frozen=True)
class SharesAll(FedAvg):
    def statistics(self, counts):
        return {"prior": counts / counts.sum()}


@dataclass(frozen=True)
class SumsOverClients(FedAvg):
    def client_vectors(self, counts, server):
        return {"prior": counts / counts.sum()}


@dataclass(frozen=True)
class HidesItsVectors(FedAvg):
    def initial_extra(self, d, C, seed):
        return {"prior": torch.ones(C)}

    def client_vectors(self, counts, server):
        return {"prior": server["prior"] * counts}


@dataclass(frozen=True)
class NumbersDraws(FedAvg):
    def client_vectors(self, counts, server):
        return {"draw": counts}


@dataclass(frozen=True)
class ForgetsTheClients(FedAvg):
    def client_vectors(self, counts, server):
        return {"weight": counts.new_ones(counts.shape[-1])}


class Undecorated(FedAvg):
    factor: float = 2.0


class Stranger:
    pass
"""
DOUBLED = "own_methods_of_a_test:Doubled"


@pytest.fixture(autouse=True)
def own_methods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_methods_of_a_test.py").write_text(METHODS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("Clashing", "momentum is a key of every experiment; call it otherwise"),
        ("Listed", "a hyper-parameter must be a fixed value"),
        ("Tensors", "Tensors: a hyper-parameter must be a number, a string, .*Tensor'>"),
        ("Paths", "Paths: place must be a number, a string, .*, not a PosixPath"),
    ],
)
def test_hyper_parameters_that_would_be_taken_amiss_are_refused(npz: Path, name: str, told: str) -> None:
    with pytest.raises(UserError, match=told):
        tiny(npz, algorithm=f"own_methods_of_a_test:{name}")


def test_a_none_that_a_config_would_lose_is_refused(npz: Path) -> None:
    bounded = find_algorithm("own_methods_of_a_test:Bounded")
    assert tiny(npz, algorithm=bounded(most=2.0)).algorithm == bounded(most=2.0)
    with pytest.raises(UserError, match="Bounded: most cannot be None: in a config that means its default"):
        tiny(npz, algorithm=bounded(most=None))


def test_it_is_named_by_its_path_from_config_to_config(npz: Path) -> None:
    for value in (DOUBLED, {"name": DOUBLED}, find_algorithm(DOUBLED)(factor=2.0)):
        experiment = tiny(npz, algorithm=value)
        assert name_of(experiment.algorithm) == DOUBLED
        assert f'name = "{DOUBLED}"' in experiment.to_toml()
        assert experiment.with_(seed=3).algorithm == find_algorithm(DOUBLED)()
    assert name_of(tiny(npz, algorithm="fedprox").algorithm) == "fedprox"


def test_its_loss_is_what_trains(npz: Path) -> None:
    # twice the loss at half the learning rate, without weight decay, is the same training
    own, plain = (
        serve(tiny(npz, algorithm=algorithm, lr=lr, weight_decay=0.0, rounds=1))
        for algorithm, lr in ((DOUBLED, 0.02), ("fedavg", 0.04))
    )
    a, b = (server.step(server.begin()) for server in (own, plain))
    assert a["train_loss"] == pytest.approx(2 * b["train_loss"], rel=1e-4)
    assert a["GA"] == b["GA"]


@pytest.mark.parametrize("how", [{"engine": "eager"}, {"width": 1}, {"width": 2}], ids=str)
def test_a_loss_that_is_no_value_a_sample_is_named(npz: Path, how: dict[str, Any]) -> None:
    server = serve(tiny(npz, algorithm="own_methods_of_a_test:TakesTheMean", lanes=1, **how))
    with pytest.raises(UserError, match=r"loss must be one value a sample, \[5\], and is \[\]"):
        server.step(server.begin())


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("PersonalOfNobody", r"PA_of is one of finetuned, local, global, not 'mine'"),
        ("GlobalOfNobody", r"GA_of is one of global, locals, not 'all'"),
        (
            "ForgetsPersonalModels",
            r"PA_of is local, the clients' last models, which keeps_model = True keeps",
        ),
        ("ForgetsHeads", r"trains head.weight, which neither travels nor stays with its client, .*"),
        ("BesideNothing", r"beside is a tuple of PA_finetuned and GA_locals, not \('PA_fine_tuned',\)"),
        (
            "SearchesNothing",
            r"its grid has 'factr' \(did you mean 'factor'\?\), which is none of its fields",
        ),
        (
            "FewLogits",
            r"predict_global must give logits \[B, C\], of two samples \[2, 4\], and gives \[2, 3\]",
        ),
        ("PersonalLabels", r"predict_personal must give logits .*, and gives \[2\]"),
        ("WideHead", r"its head fails on features \[2, 8\]: RuntimeError: .*"),
        ("ShortHead", r"its head must give logits .*, and gives \[2, 3\]"),
        ("DeepHead", r"its head has no entry 'weight': override classifier.*"),
        ("FeaturesForVectors", r"classifier must give the vectors \[C, d\] of 4 classes, and gives \[8, 8\]"),
        ("TrainsNothing", r".* begins with \('body.',\), and no parameter does; they begin with backbone.*"),
        ("SumsOverClients", r"client_vectors gives other 'prior' for a client among several, .*"),
        ("ForgetsTheClients", r"client_vectors gives other 'weight' for a client among several, .*"),
        (
            "HidesItsVectors",
            r"client_vectors gives 'prior', which is the name of something that the server .*",
        ),
        (
            "NumbersDraws",
            r"client_vectors gives 'draw', which is the name of the number of a step's draws; .*",
        ),
        ("OnePhase", r"phases must give a tuple of Phase, and gives a Phase"),
    ],
)
def test_what_it_gives_is_checked_before_a_run_begins(
    npz: Path, tmp_path: Path, name: str, told: str
) -> None:
    with pytest.raises(UserError) as caught:
        run(tiny(npz, algorithm=f"own_methods_of_a_test:{name}"), tmp_path / "run")
    assert re.fullmatch(rf"(config: algorithm: )?own_methods_of_a_test:{name}: {told}", str(caught.value))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("GivesADict", "must give a ServerState, not a dict"),
        ("LosesTheHead", r"gives none for the model's head.bias, not \[4\]"),
    ],
)
def test_what_it_makes_of_a_round_is_checked(npz: Path, name: str, told: str) -> None:
    server = serve(tiny(npz, algorithm=f"own_methods_of_a_test:{name}"))
    with pytest.raises(UserError, match=rf"^own_methods_of_a_test:{name}: aggregate {told}$"):
        server.step(server.begin())


@pytest.mark.parametrize("name", ["InPlace", "InItsPlace"])
def test_it_may_aggregate_in_place_and_leaves_the_best_model_alone(npz: Path, name: str) -> None:
    own, plain = (
        serve(tiny(npz, algorithm=algorithm, rounds=4, lr=0.3, epochs=2))
        for algorithm in (f"own_methods_of_a_test:{name}", "fedavg")
    )
    (progress, records), (expected, found) = play(own), play(plain)
    assert [record["GA"] for record in records] == [record["GA"] for record in found]
    assert 0 < expected.best_round < 4 and progress.best_round == expected.best_round
    assert same(progress.best_model, expected.best_model)


def test_a_head_that_it_keeps_is_what_the_next_visit_begins_with(npz: Path) -> None:
    server = serve(tiny(npz, algorithm="own_methods_of_a_test:KeepsHeads", rounds=1))
    progress, _ = play(server)
    kept = server.store.get(2)
    assert kept is not None
    start = server.job(progress, 2).start
    assert torch.equal(start["head.weight"], kept["head.weight"])
    assert torch.equal(start["projection.weight"], progress.server.model["projection.weight"])


def test_what_clients_keep_is_not_what_it_aggregates(npz: Path) -> None:
    server = serve(tiny(npz, algorithm="own_methods_of_a_test:OfChanges", rounds=1))
    began = server.begin().server.model
    play(server)
    for client in range(4):
        kept = server.store.get(client)
        assert kept is not None
        assert (kept["head.weight"] - began["head.weight"]).norm() < kept["head.weight"].norm()


def test_it_may_change_a_clients_last_model_and_what_a_checkpoint_takes_to_the_disk_stays(npz: Path) -> None:
    server = serve(tiny(npz, algorithm="own_methods_of_a_test:StartsHalfWay"))
    progress, _ = play(server, 1)
    kept = [server.store.get(client) for client in range(4)]
    before = copy.deepcopy(kept)
    server.step(progress)
    for model, was in zip(kept, before, strict=True):
        assert model is not None and was is not None and same(model, was)


def test_what_it_has_clients_share_is_of_each_alone() -> None:
    counts = torch.tensor([[3, 1, 0], [0, 0, 4], [1, 1, 2]])
    shared = mean_statistics(find_algorithm("own_methods_of_a_test:SharesAll")(), counts)
    shares = counts / counts.sum(dim=1, keepdim=True)
    torch.testing.assert_close(shared["prior"], shares.mean(dim=0))  # they have as many samples each


def test_a_head_of_several_layers_is_fine_if_its_vectors_are_named(npz: Path) -> None:
    server = serve(tiny(npz, algorithm="own_methods_of_a_test:DeepHeadNamed"))
    assert server.net.training  # trying it has left no trace
    assert server.step(server.begin())["GA"] >= 0


def test_its_hyper_parameters_are_validated(npz: Path) -> None:
    assert tiny(npz, algorithm={"name": DOUBLED, "factor": 3.0}).algorithm.factor == 3.0  # type: ignore[attr-defined]
    with pytest.raises(UserError, match=r"algorithm.factor: .* not '3'"):
        tiny(npz, algorithm={"name": DOUBLED, "factor": "3"})
    with pytest.raises(UserError, match=r"'algorithm.facto' \(did you mean 'algorithm.factor'"):
        tiny(npz, algorithm={"name": DOUBLED, "facto": 3.0})


def test_a_run_of_it_says_so(npz: Path, tmp_path: Path) -> None:
    result = run(tiny(npz, algorithm=DOUBLED, rounds=1), tmp_path / "run")
    assert result["algorithm"] == DOUBLED
    assert name_of(RunFolder(tmp_path / "run").experiment().algorithm) == DOUBLED


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("own_methods_of_a_test:Double", "own_methods_of_a_test has no 'Double' (did you mean 'Doubled'?)"),
        ("own_methods_of_a_test:Stranger", "a method is a class derived from fedgela.algorithms.FedAvg"),
        ("own_methods_of_a_test:dataclass", "a method is a class derived from fedgela.algorithms.FedAvg"),
        ("own_methods_of_a_test:Undecorated", "a method is a dataclass: write @dataclass(frozen=True)"),
        ("no_such_methods:Method", "there is no module 'no_such_methods', neither in"),
    ],
)
def test_a_wrong_path_is_an_error_of_the_config(path: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_experiment({"algorithm": path})
    assert str(caught.value).startswith(f"config: algorithm: {path}: {message}")


def test_a_method_that_no_config_could_name_is_an_error() -> None:
    @dataclass(frozen=True)
    class Hidden(FedAvg):
        pass

    with pytest.raises(UserError, match=r"Hidden.* is no import path"):
        Experiment(algorithm=Hidden())


def test_it_stands_in_a_comparison_under_its_class_name(npz: Path) -> None:
    table = tiny_table(npz)
    del table["algorithm"]
    experiments = experiments_of(table, [DOUBLED, "fedavg"], "config")
    assert list(experiments) == ["Doubled", "fedavg"]
    assert name_of(experiments["Doubled"].algorithm) == DOUBLED
    table["methods"] = {"twice": {"name": DOUBLED, "factor": 4.0, "lr": 0.5}}
    twice = experiments_of(table, [], "config")["twice"]
    assert (twice.algorithm, twice.lr) == (find_algorithm(DOUBLED)(factor=4.0), 0.5)
    alone = experiments_of(tiny_table(npz, algorithm={"factor": 5.0}), [DOUBLED], "config")
    assert alone["Doubled"].algorithm == find_algorithm(DOUBLED)(factor=5.0)
    with pytest.raises(UserError, match="two methods are called 'Doubled'"):
        experiments_of(table, [DOUBLED, DOUBLED], "config")
    with pytest.raises(UserError, match=r"there is no method 'doubled'"):
        experiments_of(table, ["doubled"], "config")
