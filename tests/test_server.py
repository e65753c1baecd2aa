"""The round, and by which models GA and PA are measured for each family of methods."""

import math
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedgela.algorithms import ALGORITHMS, FedAvg
from fedgela.evaluation import Record
from fedgela.models import State
from fedgela.notes import worth_knowing
from fedgela.resolve import resolve
from fedgela.server import Server
from fedgela.training import Plan, Question
from fedgela.training.interface import batches
from helpers import TIMES, Recording, federation_of, play, serve, tiny, tiny_dataset

FEDGELA = {"name": "fedgela", "E_W": 25.0}


def without_seconds(records: list[Record]) -> list[Record]:
    return [{key: value for key, value in record.items() if key not in TIMES} for record in records]


def accuracy(server: Server, model: State, samples: Tensor, vectors: State | None = None) -> float:
    """Percent right of one model, by the plainest means. Without vectors: the global prediction."""
    net, data = server.net, server.federation.data
    net.load_state_dict(model)
    net.eval()
    with torch.no_grad():
        x = data.inputs(data.x_test[samples])
        logits = net(x) if vectors is None else server.algorithm.predict_personal(net, x, vectors)
    return 100 * (logits.argmax(dim=1) == data.y_test[samples]).double().mean().item()


def personal_accuracy(server: Server, model: State, client: int) -> float:
    federation = server.federation
    vectors = server.algorithm.client_vectors(federation.train_counts[client], {})
    return accuracy(server, model, federation.test[client], vectors)


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def recorded(experiment: Any) -> tuple[Server, Recording]:
    store = Recording()
    return Server(*resolve(experiment), store), store


# -- selection -------------------------------------------------------------------------------------


def test_selection_is_addressed_by_the_round(npz: Path) -> None:
    server = serve(tiny(npz, sample=2, clients=8))
    drawn = [server.select(round) for round in range(1, 41)]
    assert all(len(set(clients)) == 2 and clients == sorted(clients) for clients in drawn)
    assert set().union(*drawn) == set(range(8))
    assert server.select(7) == drawn[6]  # whatever was drawn before
    other = serve(tiny(npz, sample=2, clients=8, seed=1))
    assert [other.select(round) for round in range(1, 41)] != drawn


def test_every_method_sees_the_same_clients_and_the_same_initial_body(npz: Path) -> None:
    servers = [serve(tiny(npz, sample=2, algorithm=name)) for name in ("fedavg", "fedgela", "local")]
    assert len({tuple(server.select(3)) for server in servers}) == 1
    bodies = [server.begin().server.model for server in servers]
    for name in ("projection.weight", "backbone.layers.0.weight"):
        assert all(torch.equal(body[name], bodies[0][name]) for body in bodies)


def test_a_client_without_training_samples_is_never_selected(npz: Path) -> None:
    experiment, federation = resolve(tiny(npz, partition="dirichlet:0.01", min_samples=0, clients=20))
    empty = set((federation.train_counts.sum(dim=1) == 0).nonzero().flatten().tolist())
    assert empty
    server = Server(experiment, federation)
    assert set(server.select(1)) == set(range(20)) - empty


# -- GA and PA by family ---------------------------------------------------------------------------


def test_fedgela_scores_a_client_by_its_last_local_model_or_the_global_body_before(npz: Path) -> None:
    server, store = recorded(tiny(npz, sample=1, rounds=5, algorithm=FEDGELA, lr=0.2))
    progress, last, waited = server.begin(), {}, 0
    for _ in range(5):
        store.log.clear()
        record = server.step(progress)
        last |= dict(store.log)
        # not sampled yet: the current global body with the client's own Phi W
        scores = [personal_accuracy(server, last.get(k, progress.server.model), k) for k in range(4)]
        assert record["PA"] == pytest.approx(mean(scores))
        assert record["PA_worst"] == pytest.approx(min(scores))
        assert record["GA"] == pytest.approx(accuracy(server, progress.server.model, server.scorer.union))
        waited += len(last.keys() - {record["clients"][0]})
    assert waited  # some client kept its score while others trained
    assert len(last) < 4  # and some never trained
    assert server.finish(progress) == {}  # both figures directly: nothing is fine-tuned


def test_the_personal_head_of_a_newcomer_is_its_own(npz: Path) -> None:
    # predicting among its own classes, a newcomer answers otherwise than the bare global model
    server = serve(tiny(npz, sample=1, rounds=2, algorithm=FEDGELA | {"personal_prediction": "present"}))
    progress, _ = play(server)
    never = [k for k in range(4) if progress.visited[k] == 0]
    assert never
    for k in never:
        model = progress.server.model
        right = progress.right[k].sum() / server.federation.test_counts[k].sum()
        assert 100 * right.item() == pytest.approx(personal_accuracy(server, model, k))
    by_phi = [personal_accuracy(server, progress.server.model, k) for k in never]
    bare = [accuracy(server, progress.server.model, server.federation.test[k]) for k in never]
    assert by_phi != bare


def test_the_batchnorm_of_a_newcomer_is_its_own_where_it_does_not_travel(npz: Path) -> None:
    server = serve(tiny(npz, algorithm=FEDGELA | {"feature_norm": "batchnorm"}, sample=1, batchnorm="local"))
    progress = server.begin()
    server.step(progress)
    (newcomer, *_) = [k for k in range(4) if not progress.visited[k]]
    seen = progress.server.model | server.own_norm
    assert any(not torch.equal(seen[name], progress.server.model[name]) for name in server.own_norm)
    vectors = server.algorithm.client_vectors(server.federation.train_counts[newcomer], {})
    samples = server.federation.test[newcomer]
    (answer,) = server.engine.answers(server.algorithm.predict_personal, [Question(seen, samples, vectors)])
    assert torch.equal(progress.right[newcomer], server.scorer.right(answer, samples))


def test_the_batchnorm_of_the_best_round_is_a_copy(npz: Path) -> None:
    """A part of a client's model, or of a file on disk, would hold all of it while no round is better."""
    method = FEDGELA | {"feature_norm": "batchnorm"}
    server, store = recorded(tiny(npz, algorithm=method, batchnorm="local"))
    progress = server.begin()
    server.step(progress)
    progress.best_round, progress.best_GA = 1, 101.0
    kept = dict(store.log)
    server.step(progress)
    assert progress.best_norms.keys() == kept.keys()
    for client, norm in progress.best_norms.items():
        for name, value in norm.items():
            assert torch.equal(value, kept[client][name])
            assert value.data_ptr() != kept[client][name].data_ptr()


def test_of_equally_good_rounds_the_first_is_fine_tuned(npz: Path) -> None:
    progress = serve(tiny(npz, algorithm="fedavg")).begin()
    for GA in (40.0, 60.0, 60.0, 50.0):
        progress.round += 1
        progress.keep_best(GA)
    assert progress.best_round == 2  # as in the table of rounds, where the first of equals is the best


def test_the_pa_of_fedavg_is_the_global_model_fine_tuned_with_plain_sgd(npz: Path) -> None:
    server = serve(tiny(npz, algorithm="fedavg", sample=2, lr=0.15, rounds=4, seed=1, finetune_epochs=10))
    progress, records = play(server)
    GA = [record["GA"] for record in records]
    assert progress.best_round == 1 + GA.index(max(GA)) < 4  # so that best and last differ
    finished = server.finish(progress)
    assert finished["best"]["round"] == progress.best_round
    assert finished["last"]["round"] == 4
    for which, model in (("best", progress.best_model), ("last", progress.server.model)):
        scores = [finetuned_accuracy(server, model, k, finished[which]["round"]) for k in range(4)]
        assert finished[which]["by_client"] == pytest.approx(scores)
        assert finished[which]["PA"] == pytest.approx(mean(scores))
    assert finished["best"] != finished["last"]


def finetuned_accuracy(server: Server, model: State, client: int, round: int) -> float:
    """Ten epochs of cross-entropy over all parameters, at the run's rate, with fresh momentum."""
    e, data, net = server.experiment, server.federation.data, server.net
    net.load_state_dict(model)
    net.train()
    for parameter in net.parameters():
        parameter.requires_grad_(True)
    optimiser = torch.optim.SGD(net.parameters(), e.lr, e.momentum, weight_decay=e.weight_decay)
    plan = Plan(FedAvg().loss, (), e.lr, e.seed, "finetune", round)  # only addresses the batches
    for epoch in range(10):
        for batch in batches(plan, client, epoch, server.federation.train[client], e.batch_size):
            loss = nn.functional.cross_entropy(net(data.inputs(data.x_train[batch])), data.y_train[batch])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    tuned = {name: value.clone() for name, value in net.state_dict().items()}
    return accuracy(server, tuned, server.federation.test[client])


def test_the_ga_of_local_is_the_mean_of_its_models_on_the_union(npz: Path) -> None:
    server, store = recorded(tiny(npz, sample=1, rounds=4, algorithm="local", lr=0.2))
    progress, initial, last = server.begin(), server.begin().server.model, {}
    for _ in range(4):
        record = server.step(progress)
        last |= dict(store.log)
        models = [last.get(k, initial) for k in range(4)]
        assert record["GA"] == pytest.approx(mean([accuracy(server, m, server.scorer.union) for m in models]))
        scores = [personal_accuracy(server, m, k) for k, m in enumerate(models)]
        assert record["PA"] == pytest.approx(mean(scores))
    assert all(torch.equal(progress.server.model[name], initial[name]) for name in initial)  # nothing travels


def test_centralised_scores_one_model_everywhere(npz: Path) -> None:
    server = serve(tiny(npz, algorithm="centralised", rounds=2))
    assert server.trainees.clients == 1
    progress, records = play(server)
    model = progress.server.model
    assert records[-1]["GA"] == pytest.approx(accuracy(server, model, server.scorer.union))
    scores = [accuracy(server, model, server.federation.test[k]) for k in range(4)]
    assert records[-1]["PA"] == pytest.approx(mean(scores))
    assert not [key for key in records[-1] if key.startswith(("local", "clients"))]
    assert server.finish(progress) == {}


def test_centralised_is_one_client_with_all_the_data(npz: Path) -> None:
    pooled, alone = (
        serve(tiny(npz, algorithm=name, partition="classes:4", clients=clients, sample=1))
        for name, clients in (("centralised", 3), ("fedavg", 1))
    )
    assert [r["GA"] for r in play(pooled)[1]] == [r["GA"] for r in play(alone)[1]]


def test_a_client_without_test_samples_is_left_out_and_counted(npz: Path) -> None:
    experiment, _ = resolve(tiny(npz, clients=3))
    # client 2 has training samples only
    federation = federation_of(tiny_dataset(), [i % 3 for i in range(60)], [i % 2 for i in range(30)])
    server = Server(experiment, federation)
    progress, records = play(server, 1)
    assert records[0]["PA_clients_left_out"] == 1
    by_client = progress.right.sum(dim=1)[:2] / federation.test_counts.sum(dim=1)[:2]
    assert records[0]["PA"] == pytest.approx(100 * by_client.mean().item())


# -- eval_every ------------------------------------------------------------------------------------


@pytest.mark.parametrize("sample", [2, 4])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_evaluating_less_often_changes_no_figure(npz: Path, name: str, sample: int) -> None:
    always, sometimes = (
        without_seconds(play(serve(tiny(npz, algorithm=name, sample=sample, rounds=5, eval_every=every)))[1])
        for every in (1, 2)
    )
    for record, full in zip(sometimes, always, strict=True):
        if record["round"] in (2, 4, 5):  # and always the last
            assert record == full
        else:
            assert not [key for key in record if key.startswith(("GA", "PA", "local", "angle"))]
            assert record["train_loss"] == full["train_loss"]


@pytest.mark.parametrize(("sample", "scored"), [(4, {2, 4, 5}), (3, {1, 2, 3, 4, 5})])
def test_local_models_are_only_scored_where_a_figure_may_be_of_them(
    npz: Path, monkeypatch: pytest.MonkeyPatch, sample: int, scored: set[int]
) -> None:
    server = serve(tiny(npz, algorithm="fedrep", sample=sample, rounds=5, eval_every=2))
    asked: list[int] = []
    by_locals = server.scorer.by_locals

    def watched(*arguments: Any) -> Any:
        asked.append(progress.round)
        return by_locals(*arguments)

    monkeypatch.setattr(server.scorer, "by_locals", watched)
    progress = server.begin()
    for _ in range(5):
        server.step(progress)
    assert asked == sorted(scored)
    assert progress.visited.max() == 5


def test_a_local_model_that_is_scored_on_the_union_is_not_asked_for_its_own_part_again(
    npz: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(tiny(npz, algorithm="fedrep", rounds=1))
    answers = server.engine.answers
    asked: list[int] = []

    def counted(predict: Any, questions: Any) -> Any:
        asked.extend(len(question.samples) for question in questions)
        return answers(predict, questions)

    monkeypatch.setattr(server.engine, "answers", counted)
    progress, _ = play(server)
    assert asked == [30] * 4
    for k in range(4):
        model, test = server.store.get(k), server.federation.test[k]
        assert model is not None
        [own] = answers(server.algorithm.predict_personal, [Question(model, test)])
        assert torch.equal(progress.right[k], server.scorer.right(own, test))


# -- aggregation -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("norm_net")
def test_weights_and_running_statistics_are_averaged_by_samples(npz: Path) -> None:
    server, store = recorded(
        tiny(npz, model="norm", partition="dirichlet:0.3", min_samples=3, sample=3, seed=2, algorithm=FEDGELA)
    )
    sizes = server.federation.train.sizes
    progress, before = server.begin(), server.begin().server.model
    record = server.step(progress)
    total = sum(int(sizes[k]) for k in record["clients"])
    assert len({int(sizes[k]) for k in record["clients"]}) > 1  # a plain mean would be another
    averaged = set()
    for name, value in progress.server.model.items():
        if not value.is_floating_point() or name == "head.classifier.weight":
            assert torch.equal(value, before[name])  # counters and the ETF never travel
            continue
        expected = sum(int(sizes[k]) / total * model[name].double() for k, model in store.log)
        torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=1e-7)
        assert not torch.equal(value, before[name])
        averaged.add(name)
    assert {"backbone.norm.running_mean", "backbone.norm.running_var", "backbone.norm.weight"} <= averaged


@pytest.mark.usefixtures("norm_net")
def test_server_momentum_moves_parameters_by_hand_written_fedavgm(
    npz: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(tiny(npz, model="norm", algorithm="fedavg", server_momentum=0.8, server_lr=0.5, sample=2))
    averages: list[State] = []
    aggregate = FedAvg.aggregate

    def watched(self: FedAvg, state: Any, updates: Any, moment: Any) -> Any:
        after = aggregate(self, state, updates, moment)
        averages.append(dict(after.model))
        return after

    monkeypatch.setattr(FedAvg, "aggregate", watched)
    progress = server.begin()
    parameters = {name for name, _ in server.net.named_parameters()}
    w = {name: progress.server.model[name].double() for name in parameters}
    v = {name: torch.zeros_like(w[name]) for name in parameters}
    for _ in range(3):
        server.step(progress)
        for name in parameters:  # v <- 0.8 v + (w - average);  w <- w - 0.5 v
            v[name] = 0.8 * v[name] + (w[name] - averages[-1][name].double())
            w[name] = w[name] - 0.5 * v[name]
            torch.testing.assert_close(progress.server.model[name].double(), w[name], rtol=1e-4, atol=1e-6)
        for name in ("backbone.norm.running_mean", "backbone.norm.running_var"):
            assert torch.equal(progress.server.model[name], averages[-1][name])  # only averaged


def test_a_server_rate_alone_keeps_nothing_between_rounds(npz: Path) -> None:
    assert play(serve(tiny(npz, algorithm="fedavg", server_lr=0.5)))[0].server.private == {}


def test_a_server_rate_of_one_without_momentum_is_plain_averaging(npz: Path) -> None:
    progress, _ = play(serve(tiny(npz, algorithm="fedavg")))
    assert progress.server.private == {}


@pytest.mark.usefixtures("norm_net")
def test_GA_is_of_the_average_over_rounds_and_clients_begin_with_the_server_s(npz: Path) -> None:
    changes = {"model": "norm", "algorithm": FEDGELA, "sample": 2, "rounds": 4}
    plain, averaging = serve(tiny(npz, **changes)), serve(tiny(npz, **changes, server_average=0.6))
    alone, progress = plain.begin(), averaging.begin()
    union = torch.arange(len(plain.federation.data.y_test))
    expected: State = {}
    for earlier in (0.0, 1 / 2, 0.6, 0.6):  # their plain mean at first
        plain.step(alone)
        record = averaging.step(progress)
        for name, value in alone.server.model.items():
            assert torch.equal(progress.server.model[name], value)  # training goes on as without
            before = expected.get(name, value).double()
            expected[name] = earlier * before + (1 - earlier) * value.double()
        for name, value in progress.global_model.items():
            torch.testing.assert_close(value.double(), expected[name], rtol=1e-5, atol=1e-7)
        assert record["GA"] == pytest.approx(accuracy(averaging, progress.global_model, union))
    averaged, last = progress.global_model, progress.server.model
    assert (
        averaged["head.classifier.weight"] is last["head.classifier.weight"]
    )  # the ETF never moves by a bit
    assert not torch.equal(averaged["projection.weight"], last["projection.weight"])


def test_the_average_is_what_is_fine_tuned_and_kept_as_the_best(npz: Path) -> None:
    server = serve(tiny(npz, algorithm="fedavg", rounds=4, sample=2, lr=0.3, server_average=0.7))
    progress = server.begin()
    kept: dict[int, tuple[float, State]] = {}
    for round in range(1, 5):
        GA = server.step(progress)["GA"]
        kept[round] = GA, progress.global_model
    best = max(kept, key=lambda round: kept[round][0])  # the first of equals
    assert progress.best_round == best
    assert progress.best_model is kept[best][1]
    finished = server.finish(progress)
    right, total = server.finetuned(progress.global_model, 4, range(server.federation.clients), {})
    assert finished["last"]["by_client"] == pytest.approx((100 * right.sum(1) / total.sum(1)).tolist())


def test_a_method_without_a_global_model_averages_nothing(npz: Path) -> None:
    experiment = tiny(npz, algorithm="fedrep", server_average=0.9)
    assert play(serve(experiment))[0].averaged == {}
    told = worth_knowing(experiment, *resolve(experiment))
    assert any("server_average does nothing: FedRep has no global model" in line for line in told)


@pytest.mark.parametrize("changes", [{}, {"server_momentum": 0.9, "server_lr": 0.3}, {"weight_decay": 5.0}])
def test_the_etf_never_moves_by_a_bit(npz: Path, changes: dict[str, Any]) -> None:
    server, store = recorded(tiny(npz, rounds=4, sample=3, algorithm=FEDGELA, **changes))
    W = server.begin().server.model["head.classifier.weight"]
    progress, _ = play(server)
    assert torch.equal(progress.server.model["head.classifier.weight"], W)
    assert torch.equal(progress.best_model["head.classifier.weight"], W)
    assert all(torch.equal(model["head.classifier.weight"], W) for _, model in store.log)
    C = len(W)
    cosines = (W.double() @ W.double().T) / 25.0
    expected = torch.full((C, C), -1 / (C - 1), dtype=torch.float64).fill_diagonal_(1)
    torch.testing.assert_close(cosines, expected, rtol=0, atol=1e-6)


# -- schedules -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        ("constant", [1, 1, 1, 1]),
        ("exponential:0.5", [1, 0.5, 0.25, 0.125]),
        ("step:2:0.1", [1, 1, 0.1, 0.1]),
        ("cosine", [0.5 * (1 + math.cos(math.pi * t / 4)) for t in range(4)]),
    ],
)
def test_the_schedule_reaches_the_optimiser(
    npz: Path, monkeypatch: pytest.MonkeyPatch, schedule: str, factors: list[float]
) -> None:
    rates: list[float] = []
    sgd = torch.optim.SGD

    def watched(parameters: Any, lr: float, *rest: Any, **options: Any) -> Any:
        rates.append(lr)
        return sgd(parameters, lr, *rest, **options)

    monkeypatch.setattr(torch.optim, "SGD", watched)
    server = serve(tiny(npz, schedule=schedule, sample=1, rounds=4, algorithm="fedavg", engine="eager"))
    progress, records = play(server)
    assert rates == pytest.approx([0.05 * factor for factor in factors])
    assert [record["lr"] for record in records] == rates
    rates.clear()
    server.finish(progress)
    assert set(rates) == {0.05}  # fine-tuning is at the run's own rate


# -- methods that are one another ------------------------------------------------------------------


def test_fedge_is_fedgela_with_all_lengths_one(npz: Path) -> None:
    play_of = {}
    for name, algorithm in (
        ("fedge", {"name": "fedge", "E_W": 25.0}),
        ("power:0", FEDGELA | {"phi": "power:0"}),
        ("power:1", FEDGELA),
    ):
        progress, records = play(serve(tiny(npz, sample=2, algorithm=algorithm)))
        play_of[name] = (without_seconds(records), progress.server.model)
    fedge, power_0, power_1 = play_of.values()
    assert fedge[0] == power_0[0]
    assert all(torch.equal(fedge[1][name], power_0[1][name]) for name in fedge[1])
    assert fedge[0] != power_1[0]


def test_fedgela_with_neither_part_is_fedavg(npz: Path) -> None:
    neither = {"name": "fedgela", "etf": False, "adapt": False}
    mine, theirs = (
        play(serve(tiny(npz, sample=2, algorithm=algorithm, server_momentum=0.5)))
        for algorithm in (neither, "fedavg")
    )
    for record, other in zip(mine[1], theirs[1], strict=True):
        for key in other.keys() - TIMES:
            assert record[key] == other[key], key
    renamed = {
        name.replace("head.classifier.", "head."): value for name, value in mine[0].server.model.items()
    }
    assert all(torch.equal(renamed[name], value) for name, value in theirs[0].server.model.items())


def test_with_one_class_mix_on_every_client_adaptation_changes_nothing_but_lengths(npz: Path) -> None:
    # balanced classes on every client: Phi_kc = C n_kc / n_k = 1
    adapted, plain = (
        play(serve(tiny(npz, partition="classes:4", clients=3, algorithm=FEDGELA | {"adapt": adapt})))[1]
        for adapt in (True, False)
    )
    assert without_seconds(adapted) == without_seconds(plain)


# -- time ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slow", ["by_locals", "evaluate"])
def test_training_is_timed_without_evaluation(npz: Path, monkeypatch: pytest.MonkeyPatch, slow: str) -> None:
    server = serve(tiny(npz, algorithm="fedrep"))
    progress = server.begin()
    server.step(progress)  # what takes time once is done
    ask = getattr(server.scorer, slow)

    def asked(*args: object) -> object:
        time.sleep(0.3)
        return ask(*args)

    monkeypatch.setattr(server.scorer, slow, asked)
    record = server.step(progress)
    assert 0 < record["training_seconds"] < record["seconds"] - 0.3
