"""What `track` records is what the measures say of the same models, and it changes none of them."""

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedgela import runs
from fedgela.algorithms import ALGORITHMS
from fedgela.algorithms.fedgela import Head
from fedgela.config import Experiment, parse_experiment
from fedgela.data.federation import Federation, make_federation
from fedgela.errors import UserError
from fedgela.evaluation import Record
from fedgela.geometry import phi
from fedgela.measures import neural_collapse
from fedgela.models import Net, State
from fedgela.resolve import resolve
from fedgela.rounds import Progress
from fedgela.server import Server
from fedgela.tracking import MOST, OF_CLIENTS, balanced, samples_a_class
from helpers import TIMES, Recording, metrics_of, outcome_of, play, run_cut, same, serve, tiny

ALL = ("angles", "collapse", "gradients")
COLLAPSE = ("nc1", "nc1_relative", "nc2_means", "nc2_classifier", "nc3", "nc4")


def net_of(server: Server, state: State) -> Net:
    net = copy.deepcopy(server.net).eval()
    net.load_state_dict(state)
    return net


@torch.no_grad()
def features(server: Server, state: State) -> tuple[Tensor, Tensor]:
    """h and y of the tracked samples, by a net of its own."""
    assert server.tracker is not None
    net, data, samples = net_of(server, state), server.federation.data, server.tracker.samples
    z = net.features(data.inputs(data.x_train[samples]))
    return net.head.norm(z) if isinstance(net.head, Head) else z, data.y_train[samples]


def angle(h: Tensor, y: Tensor, classes: list[int]) -> float:
    """Mean angle between class means, pair by pair."""
    found = []
    for a in classes:
        for b in classes:
            if a < b:
                u, v = (h[y == c].double().mean(dim=0) for c in (a, b))
                cosine = float(u @ v / (u.norm() * v.norm()))
                found.append(math.degrees(math.acos(max(-1.0, min(1.0, cosine)))))
    return sum(found) / len(found) if found else math.nan


def mean(values: list[float]) -> float:
    held = [v for v in values if not math.isnan(v)]
    return sum(held) / len(held) if held else math.nan


def tracked_round(experiment: Experiment) -> tuple[Server, Progress, Record, list[tuple[int, State]], State]:
    """The second round: server, state after it, its record, its local models, the model it started from."""
    store = Recording()
    server = Server(*resolve(experiment), store)
    progress = server.begin()
    server.step(progress)
    store.log.clear()
    before = dict(progress.server.model)
    record = server.step(progress)
    return server, progress, record, store.log, before


BATCHNORM = {"algorithm": {"name": "fedgela", "feature_norm": "batchnorm"}}
CASES: dict[str, dict[str, Any]] = {
    "fedgela": {},
    "features through a batchnorm": BATCHNORM,
    "two of four clients, all classes seen": {"sample": 2, "partition": "dirichlet:0.5", "clients": 4},
    "fedrod, whose heads differ": {"algorithm": "fedrod"},
    "fedrep, whose head stays": {"algorithm": "fedrep"},
    "eager": {"engine": "eager"},
}


@pytest.mark.parametrize("case", CASES)
def test_the_recorded_numbers_are_those_of_the_models(npz: Path, case: str) -> None:
    server, progress, record, local, before = tracked_round(tiny(npz, track=ALL, **CASES[case]))
    algorithm, counts = server.algorithm, server.federation.train_counts
    C, selected, model = counts.shape[1], record["clients"], progress.server.model
    assert [client for client, _ in local] == selected
    classes = {k: [c for c in range(C) if counts[k, c] > 0] for k in selected}
    lacking = {k: [c for c in range(C) if counts[k, c] == 0] for k in selected}

    def close(key: str, expected: float) -> None:
        if math.isnan(expected):
            assert record[key] is None, key
        else:
            assert record[key] == pytest.approx(expected, rel=1e-4, abs=1e-5), key

    h, y = features(server, model)
    close("class_mean_angle_all_server", angle(h, y, list(range(C))))
    close("class_mean_angle_existing_server", mean([angle(h, y, classes[k]) for k in selected]))
    close("class_mean_angle_missing_server", mean([angle(h, y, lacking[k]) for k in selected]))
    of_clients = {k: features(server, state) for k, state in local}
    close("class_mean_angle_all_clients", mean([angle(*f, list(range(C))) for f in of_clients.values()]))
    close("class_mean_angle_existing_clients", mean([angle(*of_clients[k], classes[k]) for k in selected]))
    close("class_mean_angle_missing_clients", mean([angle(*of_clients[k], lacking[k]) for k in selected]))

    vectors = {k: algorithm.client_vectors(counts[k], {}) for k in selected}
    collapsed = [
        neural_collapse(*of_clients[k], algorithm.classifier(state, vectors[k]), members=counts[k] > 0)
        for k, state in local
    ]
    for name in COLLAPSE:
        close(f"{name}_clients", mean([getattr(one, name) for one in collapsed]))
    if algorithm.GA_of == "global":
        W = algorithm.classifier(model, {})
        for key, expected in neural_collapse(h, y, W).record("server").items():
            close(key, math.nan if expected is None else expected)

    travelling = [name for name in before if algorithm.travels(name) and before[name].is_floating_point()]
    moved = [
        math.sqrt(sum(float((state[n] - before[n]).double().square().sum()) for n in travelling))
        for _, state in local
    ]
    size = math.sqrt(sum(float(before[n].double().square().sum()) for n in travelling))
    close("drift", mean(moved) / size)


def test_the_cost_of_adaptation_is_the_distance_of_the_two_classifiers(npz: Path) -> None:
    server, progress, record, _, _ = tracked_round(tiny(npz, track="angles"))
    W = progress.server.model["head.classifier.weight"].double()
    costs = [
        float((phi(server.federation.train_counts[k])[:, None] * W - W).norm()) for k in record["clients"]
    ]
    assert record["adaptation_cost"] == pytest.approx(mean(costs), rel=1e-6)
    assert mean(costs) > 1
    _, _, without_phi, _, _ = tracked_round(tiny(npz, track="angles", algorithm="fedrep"))
    assert without_phi["adaptation_cost"] is None


@pytest.mark.parametrize("algorithm", ["fedavg", "fedgela", "fedbabu"])
def test_the_gradient_norm_is_that_of_the_global_models_cross_entropy(npz: Path, algorithm: str) -> None:
    server = serve(tiny(npz, track="gradients", algorithm=algorithm))
    progress, records = play(server, 2)
    assert server.tracker is not None
    net, data, samples = net_of(server, progress.server.model), server.federation.data, server.tracker.samples
    F.cross_entropy(net(data.inputs(data.x_train[samples])), data.y_train[samples]).backward()
    squares = [
        float(p.grad.double().square().sum())
        for name, p in net.named_parameters()
        if p.grad is not None and server.algorithm.travels(name)
    ]
    assert records[-1]["gradient_norm"] == pytest.approx(math.sqrt(sum(squares)), rel=1e-5)


# -- what it does not do ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes", [{}, {"engine": "eager"}, {"lanes": 2}, {"batchnorm": "local", **BATCHNORM}]
)
def test_tracking_changes_neither_models_nor_other_numbers(npz: Path, changes: dict[str, Any]) -> None:
    plain, tracked = tiny(npz, **changes), tiny(npz, track=ALL, **changes)
    (mine, records), (theirs, tracked_records) = play(serve(plain)), play(serve(tracked))
    assert same(mine.server.model, theirs.server.model)
    for one, other in zip(records, tracked_records, strict=True):
        assert {k: v for k, v in one.items() if k not in TIMES}.items() <= other.items()
        assert "drift" in other and "drift" not in one


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_method_can_be_tracked(npz: Path, name: str) -> None:
    server = serve(tiny(npz, track=ALL, algorithm=name, rounds=2, eval_every=2))
    _, records = play(server)
    assert "drift" not in records[0] and "gradient_norm" not in records[0]  # not an evaluated round
    record = json.loads(json.dumps(records[1], allow_nan=False))
    of_clients = {key for names in OF_CLIENTS.values() for key in names}
    has_clients = name != "centralised"
    assert (of_clients & record.keys()) == (of_clients if has_clients else set())
    has_model = server.algorithm.GA_of == "global"
    assert ("angle_all_server" in record) == has_model
    assert ("angle_all_clients" in record) == has_clients
    assert ("nc1_server" in record) == ("gradient_norm" in record) == has_model
    # FedRep's global body has features without a head; Local and FedProto have no global body at all
    assert ("class_mean_angle_all_server" in record) == (name not in ("local", "fedproto"))
    for key in of_clients & record.keys() - {"adaptation_cost", "drift"}:
        assert isinstance(record[key], float), key
    assert (record.get("drift") is None) == (name in ("local", "fedproto", "centralised"))


def test_a_model_without_finite_numbers_gives_none(npz: Path) -> None:
    server = serve(tiny(npz, track=ALL, lr=1e30, rounds=2, algorithm="fedavg"))
    _, records = play(server)
    text = json.dumps(records[-1], allow_nan=False)
    assert json.loads(text)["class_mean_angle_all_server"] is None
    assert json.loads(text)["drift"] is None and json.loads(text)["gradient_norm"] is None


def test_a_resumed_run_tracks_as_if_it_had_never_been_interrupted(npz: Path, tmp_path: Path) -> None:
    # client by client, for which lanes lay out weights otherwise than files do
    experiment = tiny(npz, track=ALL, rounds=3, algorithm="fedavg", lanes=1, width=1)
    runs.run(experiment, tmp_path / "whole")
    run_cut(experiment, tmp_path / "cut", at=1)
    runs.resume(tmp_path / "cut")
    assert outcome_of(tmp_path / "cut") == outcome_of(tmp_path / "whole")
    assert '"nc4_clients"' in metrics_of(tmp_path / "cut")


# -- the samples -----------------------------------------------------------------------------------


def test_samples_are_as_many_of_every_class_and_drawn_by_the_seed() -> None:
    labels = torch.tensor([0] * 50 + [1] * 7 + [3] * 30)[torch.randperm(87, generator=torch.Generator())]
    chosen = balanced(labels, 10, seed=3)
    assert torch.bincount(labels[chosen]).tolist() == [10, 7, 0, 10]
    assert len(chosen.unique()) == len(chosen)
    assert torch.equal(chosen, balanced(labels, 10, seed=3))
    assert not torch.equal(chosen, balanced(labels, 10, seed=4))


@pytest.mark.parametrize(
    ("C", "N", "K", "samples"),
    [
        (10, 10, 10, 50_000),
        (10, 50, 50, 50_000),
        (10, 100, 10, 50_000),
        (100, 10, 10, 50_000),
        (100, 100, 10, 50_000),
    ],
)
def test_at_the_papers_sizes_features_cost_a_small_share_of_a_round(
    C: int, N: int, K: int, samples: int
) -> None:
    experiment = parse_experiment({"clients": N, "sample": K})
    federation = sized(C, N, samples)
    a_class = samples_a_class(experiment, federation)
    looks = (K + 1) * C * a_class
    training = 3 * experiment.epochs * samples * K / N
    assert looks / training < 0.04
    assert a_class == MOST or looks / training > 0.005  # as many as that allows


def sized(C: int, N: int, samples: int) -> Federation:
    from fedgela.data.dataset import Dataset

    y, none = torch.arange(samples) % C, torch.zeros(1, dtype=torch.int64)
    data = Dataset("sized", "image", torch.zeros(samples, 1), y, torch.zeros(1, 1), none, C)
    return make_federation(data, N, (torch.arange(samples) % N).numpy(), none.numpy())


# -- the names -------------------------------------------------------------------------------------


def test_names_are_a_list_or_a_string_each_once() -> None:
    for given in (
        "collapse,angles",
        " collapse , angles,angles",
        ["collapse", "angles"],
        ("angles", "collapse"),
    ):
        assert parse_experiment({"track": given}).track == ("angles", "collapse")
    assert parse_experiment({}).track == parse_experiment({"track": ""}).track == ()
    experiment = parse_experiment({"track": "gradients"})
    assert 'track = [\n    "gradients",\n]' in experiment.to_toml()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            "angels",
            r"track: 'angels' cannot be tracked \(did you mean 'angles'\?\); there are angles, collapse",
        ),
        (["angles", "colapse"], r"track: 'colapse' cannot be tracked \(did you mean 'collapse'\?\)"),
        ([3], "track: 3 cannot be tracked; there are"),
        (3, "track: give a list of angles, collapse, gradients, not 3"),
    ],
)
def test_a_wrong_name_is_an_error_that_lists_the_right_ones(given: object, words: str) -> None:
    with pytest.raises(UserError, match=words):
        parse_experiment({"track": given})


def test_a_folder_without_tracking_is_not_taken_for_one_with_it(npz: Path, tmp_path: Path) -> None:
    runs.run(tiny(npz, rounds=1), tmp_path / "run")
    with pytest.raises(UserError, match="holds a run with track"):
        runs.run_or_resume(tiny(npz, rounds=1, track="angles"), tmp_path / "run")
