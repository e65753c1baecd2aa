"""Robust aggregation: its rules against plain NumPy, what broken clients can do to them, what is refused."""

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from algorithms.by_hand import Array
from fedgela.aggregation import Rule, parse_aggregation
from fedgela.algorithms import ALGORITHMS, FedAvg, Update
from fedgela.errors import UserError
from fedgela.models import State
from fedgela.rounds import Progress, Visit
from fedgela.runs import run
from fedgela.server import Server
from helpers import Notes, assert_same_run, play, same, serve, tiny, tiny_npz, watch_updates

RULES = ["median", "trimmed:0.2", "krum:2", "clipped"]
K = 8
BROKEN = 2  # of K, which all of these rules are made for
of_every_rule = pytest.mark.parametrize("name", RULES)


def rule_of(name: str) -> Rule:
    rule = parse_aggregation(name)
    assert rule is not None
    return rule


def random_state(draws: np.random.Generator, scale: float = 1.0) -> State:
    shapes = {"a.weight": (3, 2), "a.bias": (3,), "norm.running_var": (3,)}
    state = {
        name: torch.from_numpy(scale * draws.normal(size=shape)).float() for name, shape in shapes.items()
    }
    return state | {"norm.running_var": state["norm.running_var"].abs()}


BUFFERS = {"norm.running_var"}
BEFORE = random_state(np.random.default_rng(100))


def honest(number: int, seed: int = 0) -> list[State]:
    """Models a step away from the one before, in one direction but for noise."""
    draws = np.random.default_rng(seed)
    step = random_state(draws)
    models = []
    for _ in range(number):
        noise = random_state(draws, 0.3)
        models.append({name: BEFORE[name] + step[name] + noise[name] for name in BEFORE})
    return models


def updates_of(models: Sequence[State]) -> list[Update]:
    return [Update(k, 10 + k, model) for k, model in enumerate(models)]


def together(name: str, models: Sequence[State]) -> State:
    update = rule_of(name).together(BEFORE, updates_of(models), BUFFERS)
    assert update is not None
    return update.model


def flat(state: State) -> Array:
    """The parameters as one vector."""
    return np.concatenate([state[name].double().numpy().ravel() for name in ("a.weight", "a.bias")])


# -- against plain NumPy ---------------------------------------------------------------------------


def without_ends(vectors: Array, cut: int) -> Array:
    columns = [sorted(column)[cut : len(column) - cut] for column in vectors.T.tolist()]
    return np.array([sum(column) / len(column) for column in columns])


def krum_by_hand(vectors: Array, broken: int) -> Array:
    number = len(vectors)
    scores = []
    for i in range(number):
        to_others = [((vectors[i] - vectors[j]) ** 2).sum() for j in range(number) if j != i]
        scores.append(sum(sorted(to_others)[: number - broken - 2]))
    chosen = sorted(range(number), key=lambda k: scores[k])[: number - broken]
    mean: Array = vectors[chosen].mean(axis=0)
    return mean


def clipped_by_hand(vectors: Array, before: Array) -> Array:
    changes = vectors - before
    lengths = [float(np.sqrt((change**2).sum())) for change in changes]
    most = sorted(lengths)[(len(lengths) - 1) // 2]
    cut = [change * min(1.0, most / length) for change, length in zip(changes, lengths, strict=True)]
    total: Array = before + sum(cut) / len(cut)
    return total


BY_HAND: dict[str, Callable[[Array, Array], Array]] = {
    "median": lambda vectors, before: np.median(vectors, axis=0),
    "trimmed:0.2": lambda vectors, before: without_ends(vectors, 2),  # of 7, 8 and 10
    "trimmed:0.49": lambda vectors, before: np.median(vectors, axis=0),
    "krum:1": lambda vectors, before: krum_by_hand(vectors, 1),
    "krum:2": lambda vectors, before: krum_by_hand(vectors, 2),
    "clipped": clipped_by_hand,
}


@pytest.mark.parametrize(("name", "number"), list(itertools.product(BY_HAND, [7, 8, 10])))
def test_a_rule_is_what_plain_numpy_makes_of_it(name: str, number: int) -> None:
    for seed in range(10):
        draws = np.random.default_rng(seed)  # lengths of many sizes: who is near to whom is close
        models = [random_state(draws, draws.exponential()) for _ in range(number)]
        found = together(name, models)
        expected = BY_HAND[name](np.stack([flat(model) for model in models]), flat(BEFORE))
        np.testing.assert_allclose(flat(found), expected, rtol=1e-6, atol=1e-6)
        assert {key: value.dtype for key, value in found.items()} == dict.fromkeys(BEFORE, torch.float32)


@pytest.mark.parametrize(
    ("share", "clients", "cut"),
    [
        ("0.1", 30, 3),
        ("0.07", 100, 7),
        ("0.2", 9, 2),
        ("0.4", 5, 2),
        ("0.4", 8, 3),
        ("0.4", 4, 1),
        ("1e-9", 3, 1),
    ],
)
def test_a_share_of_the_clients_is_rounded_up_where_something_is_left(
    share: str, clients: int, cut: int
) -> None:
    """0.1 * 30 and 0.07 * 100 are more than 3 and 7 as floats have it."""
    values = [{"w": torch.tensor([float(2**k % 1009)])} for k in range(clients)]
    update = rule_of(f"trimmed:{share}").together({"w": torch.zeros(1)}, updates_of(values), set())
    assert update is not None
    left = sorted(float(value["w"]) for value in values)[cut : clients - cut]
    assert float(update.model["w"]) == pytest.approx(sum(left) / len(left))


# -- what holds whatever clients send --------------------------------------------------------------


@of_every_rule
def test_the_order_of_the_clients_makes_no_difference(name: str) -> None:
    models = honest(K)
    expected = together(name, models)
    for seed in range(5):
        random.Random(seed).shuffle(models)
        found = together(name, models)
        for key, value in expected.items():
            torch.testing.assert_close(found[key], value)


@of_every_rule
def test_equal_updates_give_that_update(name: str) -> None:
    """Also where the sum of seven thirds is none of a third."""
    (model,) = honest(1)
    assert same(together(name, [model] * 7), model)
    assert same(together(name, [BEFORE] * 7), BEFORE)


@of_every_rule
def test_what_a_client_says_of_its_samples_makes_no_difference(name: str) -> None:
    models, rule = honest(K), rule_of(name)
    liars = [replace(update, samples=10**12 * (update.client == 1) + 1) for update in updates_of(models)]
    update = rule.together(BEFORE, liars, BUFFERS)
    assert update is not None
    assert same(update.model, together(name, models))


@of_every_rule
@pytest.mark.parametrize("size", [1e2, 1e10, 1e37, -1e37, "away from each other"])
def test_broken_clients_of_any_size_move_the_result_no_further_than_honest_ones_are(
    name: str, size: float | str
) -> None:
    models = honest(K - BROKEN)
    sizes = (1e37, -1e37) if isinstance(size, str) else (size, size)
    broken = [{key: torch.full_like(value, one) for key, value in BEFORE.items()} for one in sizes]
    found = flat(together(name, models + broken))
    vectors = np.stack([flat(model) for model in models])
    reach = np.sqrt(((vectors - flat(BEFORE)) ** 2).sum(axis=1)).max()
    assert np.sqrt(((found - flat(BEFORE)) ** 2).sum()) <= reach
    if name != "clipped":  # which has the broken ones pull, only no harder than others do
        assert (vectors.min(axis=0) <= found).all()
        assert (found <= vectors.max(axis=0)).all()


@of_every_rule
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_an_update_that_is_no_finite_number_is_left_out(name: str, value: float) -> None:
    models = honest(K)
    lost = {**models[0], "a.bias": torch.tensor([0.0, value, 0.0])}
    assert same(together(name, [lost, *models]), together(name, models))


@of_every_rule
def test_running_statistics_are_the_median_s_and_no_variance_falls_below_zero(name: str) -> None:
    models = honest(K - BROKEN)
    below = [{**BEFORE, "norm.running_var": torch.full((3,), size)} for size in (-1.0, -1e30)]
    found = together(name, models + below)["norm.running_var"]
    variances = np.stack([model["norm.running_var"].numpy() for model in models + below])
    np.testing.assert_allclose(found.numpy(), np.median(variances, axis=0), rtol=1e-6)
    assert (found >= 0).all()


@pytest.mark.parametrize(
    ("name", "least"), [("median", 3), ("trimmed:0.1", 3), ("clipped", 3), ("krum:2", 7)]
)
def test_too_few_updates_are_not_aggregated(name: str, least: int) -> None:
    assert rule_of(name).least == least
    for number in range(least):
        assert rule_of(name).together(BEFORE, updates_of(honest(number)), BUFFERS) is None
    assert rule_of(name).together(BEFORE, updates_of(honest(least)), BUFFERS) is not None


def test_of_updates_that_are_equally_good_krum_takes_the_first_clients() -> None:
    at = [0.0, 0.0, 0.0, 5.0, -5.0]  # of the last two, which are as far away, one is to go
    models = [{"w": torch.tensor([value])} for value in at]
    update = rule_of("krum:1").together({"w": torch.zeros(1)}, updates_of(models), set())
    assert update is not None
    assert float(update.model["w"]) == pytest.approx(5.0 / 4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@of_every_rule
def test_on_a_gpu_a_rule_gives_the_same(name: str) -> None:
    models = honest(K)
    there = [{key: value.cuda() for key, value in model.items()} for model in models]
    before = {key: value.cuda() for key, value in BEFORE.items()}
    update = rule_of(name).together(before, updates_of(there), BUFFERS)
    assert update is not None
    for key, value in together(name, models).items():
        torch.testing.assert_close(update.model[key].cpu(), value)


# -- in a run --------------------------------------------------------------------------------------

SIX = {"partition": "iid", "clients": 6, "min_samples": 1}


def test_the_default_is_the_mean_of_the_method(npz: Path) -> None:
    assert serve(tiny(npz)).rule is None
    assert tiny(npz).aggregation == "mean"


@pytest.mark.usefixtures("norm_net")
def test_a_round_takes_the_median_of_what_travels_and_server_momentum_moves_it(npz: Path) -> None:
    server = serve(
        tiny(npz, model="norm", aggregation="median", server_lr=0.5, server_momentum=0.8, server_average=0.5)
    )
    seen = watch_updates(server)
    progress = server.begin()
    parameters = {name for name, _ in server.net.named_parameters()}
    before, momentum = progress.server.model, dict.fromkeys(parameters, 0.0)
    for _ in range(2):
        seen.clear()
        server.step(progress)
        for name in seen[0].model:
            median = np.median(np.stack([update.model[name].numpy() for update in seen]), axis=0)
            expected = median
            if name in parameters:
                momentum[name] = 0.8 * momentum[name] + (before[name].numpy() - median)
                expected = before[name].numpy() - 0.5 * momentum[name]
            np.testing.assert_allclose(
                progress.server.model[name].numpy(), expected, rtol=1e-4, atol=1e-6, err_msg=name
            )
        before = progress.server.model
    assert not same(progress.global_model, before)  # the average over rounds


@pytest.mark.usefixtures("norm_net")
def test_batchnorm_that_does_not_travel_is_evaluated_by_the_rule_too(npz: Path) -> None:
    server = serve(tiny(npz, model="norm", batchnorm="local", aggregation="median"))
    norms: list[State] = []
    visits = server.visits

    def watched(*given: Any) -> list[Visit]:
        found = visits(*given)
        norms.extend(visit.own_norm for visit in found)
        return found

    server.visits = watched  # type: ignore[method-assign]
    progress, _ = play(server, 1)
    floats = {name for name, value in server.own_norm.items() if value.is_floating_point()}
    assert {"backbone.norm.weight", "backbone.norm.running_var"} <= floats < server.own_norm.keys()
    for name in floats:
        median = np.median(np.stack([norm[name].numpy() for norm in norms]), axis=0)
        np.testing.assert_allclose(progress.server.model[name].numpy(), median, rtol=1e-6)


def test_a_round_of_too_few_updates_leaves_the_model_as_it_is_and_says_so(npz: Path) -> None:
    notes: list[str] = []
    server = serve(tiny(npz, aggregation="median", server_momentum=0.9))
    server.note = notes.append
    progress = server.begin()
    server.step(progress)
    before, private, visits = progress.server.model, progress.server.private, server.visits

    def visited(*given: Any) -> list[Visit]:
        found = visits(*given)
        for visit in found[:2]:  # of four
            visit.update.model["projection.bias"] = torch.full((8,), torch.nan)
        return found

    server.visits = visited  # type: ignore[method-assign]
    server.step(progress)
    assert same(progress.server.model, before)
    assert same(progress.server.private, private)
    assert notes == [
        "round 2: too few updates of finite numbers for aggregation = 'median'; "
        "the global model stays as it is"
    ]


def attacked(patch: pytest.MonkeyPatch, broken: int) -> None:
    """The first clients send the opposite of what they learned, enlarged."""
    visits = Server.visits

    def visited(server: Server, progress: Progress, *given: Any) -> list[Visit]:
        w = progress.server.model
        found = visits(server, progress, *given)
        for visit in found[:broken]:
            sent = {name: w[name] - 20 * (value - w[name]) for name, value in visit.update.model.items()}
            visit.update.model = sent
        return found

    patch.setattr(Server, "visits", visited)


@pytest.mark.parametrize("algorithm", ["fedavg", "fedgela"])
def test_one_malicious_client_breaks_a_run_with_the_mean_and_none_with_a_rule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algorithm: str
) -> None:
    npz = tiny_npz(tmp_path, train=240, test=120)
    changes = {**SIX, "algorithm": algorithm, "rounds": 10}
    without = run(tiny(npz, **changes), tmp_path / "honest")["GA"]["last"]
    assert without > 95
    attacked(monkeypatch, 1)
    assert run(tiny(npz, **changes), tmp_path / "mean")["GA"]["last"] < 50
    for name in ("median", "trimmed:0.2", "krum:1", "clipped"):
        held = run(tiny(npz, aggregation=name, **changes), tmp_path / name.replace(":", "-"))
        assert held["GA"]["last"] > without - 10, name


# -- what is refused, and what does nothing --------------------------------------------------------


@dataclass(frozen=True)
class Telling(FedAvg):
    """Sends more than weights without a word of it."""

    def sends(self, counts: Tensor, features: Callable[[], tuple[Tensor, Tensor]]) -> State:
        return {"told": counts}


@pytest.mark.parametrize(
    ("algorithm", "title"),
    [
        ("fedgen", "FedGen"),
        ("fedproto", "FedProto"),
        ({"name": "fedgela", "phi": "paper-sqrt"}, "FedGELA"),
        (Telling(), "FedAvg"),
    ],
)
def test_methods_that_send_more_than_weights_are_refused(npz: Path, algorithm: Any, title: str) -> None:
    with pytest.raises(UserError) as error:
        serve(tiny(npz, aggregation="median", algorithm=algorithm))
    assert str(error.value) == (
        f"aggregation: median looks at weights, and with {title} clients send more than these; "
        'leave it at "mean"'
    )


@pytest.mark.parametrize(
    ("changes", "needed", "there"),
    [
        ({"aggregation": "krum:2", **SIX}, 7, 6),
        ({"aggregation": "krum:1", "sample": 4, **SIX}, 5, 4),
        ({"aggregation": "median", "sample": 2}, 3, 2),
        ({"aggregation": "clipped", "clients": 1, "partition": "iid"}, 3, 1),
    ],
)
def test_a_round_too_small_for_a_rule_is_refused_before_training(
    npz: Path, tmp_path: Path, changes: dict[str, Any], needed: int, there: int
) -> None:
    told = f"aggregation: {changes['aggregation']} needs at least {needed} clients a round .*, not {there}"
    with pytest.raises(UserError, match=told):
        run(tiny(npz, **changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    serve(tiny(npz, **changes | {"aggregation": "mean"}))


@pytest.mark.parametrize("name", ["local", "centralised"])
def test_where_nothing_of_clients_is_aggregated_a_rule_does_nothing_and_a_run_says_so(
    npz: Path, tmp_path: Path, name: str
) -> None:
    notes = Notes()
    run(tiny(npz, algorithm=name, aggregation="median"), tmp_path / "run", notes)
    assert any(note.startswith("aggregation does nothing: ") for note in notes.notes)
    assert_same_run(tiny(npz, algorithm=name, aggregation="median"), tiny(npz, algorithm=name))


@pytest.mark.parametrize(("name", "told"), [("local", 2), ("fedproto", 2), ("centralised", 0), ("fedrep", 0)])
def test_where_no_models_travel_a_run_says_that_the_servers_step_does_nothing(
    npz: Path, tmp_path: Path, name: str, told: int
) -> None:
    notes = Notes()
    run(tiny(npz, algorithm=name, server_lr=0.5, server_momentum=0.5, rounds=1), tmp_path / "run", notes)
    title = ALGORITHMS[name].title
    expected = [
        f"server_{what} does nothing: {title} averages no models of clients" for what in ("lr", "momentum")
    ]
    assert [note for note in notes.notes if "does nothing" in note] == expected[:told]


def test_sites_of_a_federation_are_aggregated_as_in_a_local_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedgela[flower]'")
    from flower.sites import Played, assert_close, small, write_data

    monkeypatch.setattr("fedgela.flower.exchange.POLL_SECONDS", 0.0)
    whole = write_data(tmp_path)
    models = {}
    for name in ("mean", "median"):
        experiment = small(whole, aggregation=name)
        played = Played(tmp_path, experiment, test_data=whole)
        (mine, _), (theirs, _) = play(serve(experiment)), play(played.server())
        assert_close(mine.server.model, theirs.server.model)
        models[name] = mine.server.model
    assert not same(*models.values())

    # one that does not answer: two updates outvote nobody
    played.grid.tamper[1] = lambda answer: None
    server = played.server()
    progress = server.begin()
    before = progress.server.model
    assert server.step(progress)["faults"].keys() == {"east"}
    assert same(progress.server.model, before)
    assert any("too few updates" in note for note in played.notes)
