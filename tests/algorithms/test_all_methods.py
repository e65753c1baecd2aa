"""What holds for every method."""

import dataclasses
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedgela.algorithms import ALGORITHMS, FedAvg, Phase
from fedgela.config import parse_experiment
from fedgela.inputs import InputSpec
from fedgela.models import Net, State, build_net
from fedgela.resolve import resolve
from fedgela.server import Server
from helpers import Recording, play, same, serve, tiny

EVERY = pytest.mark.parametrize("name", ALGORITHMS)
SMALL: dict[str, dict[str, Any]] = {"fedgen": {"hidden": 16, "noise": 4, "generator_steps": 3}}


def table(name: str) -> dict[str, Any]:
    return {"name": name, **SMALL.get(name, {})}


# -- partial participation -------------------------------------------------------------------------


@EVERY
def test_a_client_not_sampled_keeps_its_state(npz: Path, name: str) -> None:
    store = Recording()
    server = Server(*resolve(tiny(npz, algorithm=table(name), sample=2, rounds=5)), store)
    progress, waited = server.begin(), 0
    for _ in range(5):
        before = {k: {n: v.clone() for n, v in model.items()} for k, model in store.models.items()}
        seen = progress.visited.clone()
        record = server.step(progress)
        for client in before.keys() - set(record.get("clients", [])):
            assert same(store.models[client], before[client])
            assert progress.visited[client] == seen[client]
            waited += 1
    if ALGORITHMS[name].keeps_model:
        assert waited
    else:
        assert store.models == {}


# -- what is measured ------------------------------------------------------------------------------

ONE = {"", "_balanced", "_by_class"}  # of one model on one test set
SPREAD = ONE | {"_worst", "_p10", "_weighted", "_clients_left_out"}  # of a model a client


def keys(**groups: set[str]) -> set[str]:
    return {name + suffix for name, suffixes in groups.items() for suffix in suffixes}


G_FL = keys(GA=ONE, local_accuracy=SPREAD)  # one global model; its PA is fine-tuned at the end
P_FL = keys(GA=SPREAD, PA=SPREAD, local_accuracy=SPREAD)  # GA is the mean of local models
BOTH = keys(GA=ONE, PA=SPREAD, local_accuracy=SPREAD)  # both directly
# method: (keys of a round, which PA is fine-tuned after the last)
FAMILIES: dict[str, tuple[set[str], str | None]] = {
    "fedavg": (G_FL, "PA"),
    "fedprox": (G_FL, "PA"),
    "moon": (G_FL, "PA"),
    "fedrs": (G_FL, "PA"),
    "fedgen": (G_FL, "PA"),
    "fedlc": (G_FL, "PA"),
    "fedrep": (P_FL, None),
    "fedproto": (P_FL, None),
    "fedbabu": (G_FL | keys(GA_locals=SPREAD), "PA"),
    "fedrod": (BOTH, None),
    "fedge": (BOTH, "PA_finetuned"),
    "fedla": (BOTH, "PA_finetuned"),
    "fedgela": (BOTH, None),
    "fedprior": (BOTH, None),
    "local": (P_FL, None),
    "centralised": (keys(GA=ONE, PA=SPREAD), None),
}


def test_every_method_has_a_family() -> None:
    assert FAMILIES.keys() == ALGORITHMS.keys()


@EVERY
def test_a_method_is_measured_as_its_family_is(npz: Path, name: str) -> None:
    server = serve(tiny(npz, algorithm=table(name), rounds=1))
    progress, [record] = play(server)
    expected, finetuned = FAMILIES[name]
    assert {key for key in record if key.startswith(("GA", "PA", "local"))} == expected
    assert record["GA"] is not None
    finished = server.finish(progress)
    if finetuned is None:
        assert finished == {}
    else:
        for which in ("best", "last"):
            measured = {key for key in finished[which] if key.startswith(("GA", "PA"))}
            assert measured == keys(**{finetuned: SPREAD})


# -- config ----------------------------------------------------------------------------------------


@EVERY
def test_defaults_come_back_from_toml(name: str) -> None:
    method = ALGORITHMS[name]()
    experiment = parse_experiment({"algorithm": name})
    assert experiment.algorithm == method
    again = parse_experiment(tomllib.loads(experiment.to_toml()))
    assert again == experiment
    assert type(again.algorithm) is type(method)
    changed = {
        f.name: v for f in dataclasses.fields(method) if isinstance(v := getattr(method, f.name), float)
    }
    if changed:  # other values too
        own = {key: (value or 1.0) / 2 for key, value in changed.items()}
        if not getattr(method, "adapt", True):
            del own["phi_floor"]
        other = parse_experiment({"algorithm": {"name": name, **own}})
        assert other != experiment
        assert parse_experiment(tomllib.loads(other.to_toml())) == other


def points(method: type[FedAvg], key: str) -> list[dict[str, Any]]:
    names = key.split(",")
    values = [value if len(names) > 1 else (value,) for value in method.grid[key]]
    return [dict(zip(names, value, strict=True)) for value in values]  # type: ignore[attr-defined]


@EVERY
def test_every_point_of_a_grid_is_another_valid_method(name: str) -> None:
    method = ALGORITHMS[name]
    fields = {field.name for field in dataclasses.fields(method)}
    for key in method.grid:
        made = [parse_experiment({"algorithm": {"name": name, **point}}) for point in points(method, key)]
        assert set(key.split(",")) <= fields
        assert len({repr(experiment.algorithm) for experiment in made}) == len(made) > 1
        effects = {repr(effect(experiment.algorithm)) for experiment in made}
        assert len(effects) == len(made), f"{key} changes nothing"


def effect(method: FedAvg) -> Any:
    """What a value can act by: the head, the client's vectors, the phases, the server, or the loss itself."""
    torch.manual_seed(0)
    vectors = method.client_vectors(torch.tensor([5, 1, 0, 0]), {})
    reads = {k: v for k, v in vars(method).items() if k not in ("phi", "E_W", "head_epochs", "body_epochs")}
    return vectors, method.phases(7), sorted(method.head(8, 4, 0).state_dict().items()), reads


@EVERY
def test_the_default_stands_first_in_a_grid(name: str) -> None:
    method = ALGORITHMS[name]
    for key in method.grid:
        first = method(**points(method, key)[0])
        # FedRep's default is a rule that gives 5 + 5 of the paper's 10 epochs
        assert first == method() or (name == "fedrep" and first.phases(10) == method().phases(10))


# -- the loss --------------------------------------------------------------------------------------


def situation(name: str) -> tuple[FedAvg, Net, Tensor, Tensor, State]:
    """A client on its second visit that lacks two of four classes, in a late round of the run."""
    method = ALGORITHMS[name](**SMALL.get(name, {}))
    d, C = 8, 4
    net, last = (
        build_net("tiny-cnn", InputSpec("image", (1, 8, 8)), d, lambda: method.head(d, C, 0), seed)
        for seed in (0, 1)
    )
    extra = method.initial_extra(d, C, 0)
    if name == "fedgen":
        extra["strength"] = torch.tensor([9.0, 9.0])
    if name == "fedproto":
        extra = {"prototypes": torch.ones(C, d), "known": torch.tensor([True, False, True, True])}
    client = {
        **method.client_vectors(torch.tensor([4, 2, 0, 0]), extra),
        **extra,
        **method.references(dict(net.state_dict()), dict(last.state_dict())),
        "draw": torch.tensor(77),
    }
    client = {key: value.clone() for key, value in client.items()}
    x = torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    return method, net, x, torch.tensor([0, 1, 0, 0, 1, 0]), client


@EVERY
def test_a_loss_is_one_finite_number_a_sample(name: str) -> None:
    method, net, x, y, client = situation(name)
    for size in (6, 1):
        loss = method.loss(net, x[:size], y[:size], client)
        assert loss.shape == (size,)
        assert loss.isfinite().all()
        net.zero_grad()
        loss.mean().backward()
        gradients = [p.grad for p in net.parameters() if p.grad is not None]
        assert gradients
        assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_loss_is_one_graph_without_a_branch_on_data(name: str) -> None:
    # what a captured step needs: whole in one graph, and true for other data than it was traced with
    method, net, x, y, client = situation(name)
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda x, y, client: method.loss(net, x, y, client), backend="eager", fullgraph=True, dynamic=False
    )
    compiled(x, y, client)
    assert torch.equal(compiled(x, y, client), method.loss(net, x, y, client))
    other = x.flip(0) * 2, 1 - y
    with torch._dynamo.config.patch(error_on_recompile=True):
        assert torch.equal(compiled(*other, client), method.loss(net, *other, client))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_loss_draws_nothing_from_the_global_generator(name: str) -> None:
    # randomness is addressed, not consumed
    method, net, x, y, client = situation(name)
    before = torch.get_rng_state()
    first = method.loss(net, x, y, client)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(method.loss(net, x, y, client), first)


@EVERY
def test_phases_train_for_the_epochs_of_the_run(name: str) -> None:
    phases = ALGORITHMS[name]().phases(10)
    assert sum(phase.epochs for phase in phases) == 10
    _, net, *_ = situation(name)
    for parameter, _ in net.named_parameters():
        trains = sum(phase.selects(parameter) for phase in phases)
        frozen = name == "fedbabu" and parameter.startswith("head.")
        assert trains == (0 if frozen else 1)
    assert all(isinstance(phase, Phase) for phase in phases)
