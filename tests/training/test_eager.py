"""The eager engine does what the formulas say, checked against a slow reference in float64."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from fedgela.algorithms import ALGORITHMS, FedAvg, Phase
from fedgela.data import Federation
from fedgela.models import Net, State, build_net
from fedgela.training import EagerEngine, Job, Optimiser, Plan, Question
from fedgela.training.interface import Predict, batches
from helpers import federation_of, tiny_dataset

LR, MOMENTUM, DECAY, BATCH = 0.1, 0.9, 0.01, 5
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def federation() -> Federation:
    """Client 0 has 13 samples of classes 0 and 1, client 1 all the rest."""
    data = tiny_dataset()
    few = [i for i in range(60) if data.y_train[i] < 2][:13]
    return federation_of(data, [0 if i in few else 1 for i in range(60)], [i % 2 for i in range(30)])


def net_for(algorithm: FedAvg, federation: Federation) -> Net:
    data = federation.data
    return build_net("tiny-cnn", data.spec, 8, lambda: algorithm.head(8, data.classes, 0), 0)


def engine_for(net: Net, federation: Federation, **changes: Any) -> EagerEngine:
    settings = {"momentum": MOMENTUM, "weight_decay": DECAY} | changes
    return EagerEngine(net, federation.data, CPU, Optimiser("sgd", **settings), BATCH)


def answer(engine: EagerEngine, predict: Predict, question: Question) -> Tensor:
    [predicted] = engine.answers(predict, [question])
    return predicted


def state(net: Net) -> State:
    return {name: value.clone() for name, value in net.state_dict().items()}


def plan_for(algorithm: FedAvg, *phases: Phase) -> Plan:
    return Plan(algorithm.loss, phases or (Phase(1),), LR, 0, "batches", 1)


def reference(
    algorithm: FedAvg, plan: Plan, federation: Federation, client: int, clip: float = 0.0
) -> tuple[dict[str, Tensor], float]:
    """One epoch of SGD, each formula written out, in float64; parameters and mean loss."""
    net = copy.deepcopy(net_for(algorithm, federation)).double()
    data, counts = federation.data, federation.train_counts[client].double()
    C = data.classes
    velocity = {name: torch.zeros_like(p) for name, p in net.named_parameters()}
    losses = []
    for batch in batches(plan, client, 0, federation.train[client], BATCH):
        x, y = data.inputs(data.x_train[batch]).double(), data.y_train[batch]
        logits = net(x)
        if algorithm.name == "fedgela":
            phi = C * counts / counts.sum()  # Eq. 4
            logits = phi * logits
        classes = range(C)
        if getattr(algorithm, "softmax", "all") == "present":  # Eq. 5
            classes = [c for c in range(C) if counts[c] > 0]
        sums = sum(logits[:, c].exp() for c in classes)
        loss = sums.log() - logits[torch.arange(len(y)), y]
        losses += loss.tolist()
        gradients = torch.autograd.grad(loss.mean(), list(net.parameters()))
        length = sum((g**2).sum() for g in gradients).sqrt()
        scale = min(1.0, clip / (length.item() + 1e-6)) if clip else 1.0
        with torch.no_grad():
            for (name, p), g in zip(net.named_parameters(), gradients, strict=True):
                # torch's SGD: decay is part of the gradient, and momentum starts at the first gradient
                velocity[name] = MOMENTUM * velocity[name] + scale * g + DECAY * p
                p -= LR * velocity[name]
    return dict(net.named_parameters()), sum(losses) / len(losses)


METHODS = {
    "fedavg": FedAvg(),
    "fedgela, softmax over all classes": ALGORITHMS["fedgela"](E_W=25.0),
    "fedgela, softmax over the present": ALGORITHMS["fedgela"](E_W=25.0, softmax="present"),
}


@pytest.mark.parametrize("clip", [0.0, 0.05])
@pytest.mark.parametrize("method", METHODS)
def test_a_local_epoch_follows_the_formulas(federation: Federation, method: str, clip: float) -> None:
    algorithm = METHODS[method]
    net, plan = net_for(algorithm, federation), plan_for(algorithm)
    job = Job(0, federation.train[0], state(net), algorithm.client_vectors(federation.train_counts[0], {}))
    [outcome] = engine_for(net, federation, clip_norm=clip).train(plan, [job])
    expected, loss = reference(algorithm, plan, federation, 0, clip)
    for name, value in expected.items():
        torch.testing.assert_close(outcome.model[name].double(), value, rtol=1e-4, atol=1e-6)
        assert not torch.equal(outcome.model[name], job.start[name])
    assert (outcome.loss_sum.sum() / outcome.loss_count.sum()).item() == pytest.approx(loss, rel=1e-5)


def test_the_two_softmaxes_and_clipping_are_told_apart(federation: Federation) -> None:
    # else the test above could not fail
    plan = plan_for(FedAvg())
    every, present = (reference(METHODS[name], plan, federation, 0) for name in list(METHODS)[1:])
    assert abs(every[1] - present[1]) > 0.01
    clipped, _ = reference(FedAvg(), plan, federation, 0, clip=0.05)
    free, _ = reference(FedAvg(), plan, federation, 0)
    assert (clipped["projection.weight"] - free["projection.weight"]).abs().max() > 1e-3


def test_clipping_bounds_the_length_of_all_gradients_together(federation: Federation) -> None:
    algorithm = FedAvg()
    net = net_for(algorithm, federation)
    start, clip = state(net), 0.01
    engine = EagerEngine(
        net, federation.data, CPU, Optimiser("sgd", 0.0, 0.0, clip), batch_size=100
    )  # one step
    [outcome] = engine.train(plan_for(algorithm), [Job(0, federation.train[0], start, {})])
    moved = sum(((outcome.model[name] - start[name]) ** 2).sum() for name in start) ** 0.5
    assert float(moved) == pytest.approx(LR * clip, rel=1e-3)


def test_a_phase_freezes_what_it_does_not_select(federation: Federation) -> None:
    """As FedRep will: the head first, then the body. A frozen weight does not decay either."""
    algorithm = FedAvg()
    net = net_for(algorithm, federation)
    start = state(net)
    engine = engine_for(net, federation, weight_decay=0.5)
    head, body = Phase(1, ("head.",)), Phase(1, ("backbone.", "projection."))
    [only_head] = engine.train(plan_for(algorithm, head), [Job(0, federation.train[0], start, {})])
    [only_body] = engine.train(plan_for(algorithm, body), [Job(0, federation.train[0], start, {})])
    for name, value in start.items():
        in_head = name.startswith("head.")
        assert torch.equal(only_head.model[name], value) is not in_head
        assert torch.equal(only_body.model[name], value) is in_head


def test_phases_go_on_from_one_another_with_other_batches(federation: Federation) -> None:
    algorithm = FedAvg()
    net = net_for(algorithm, federation)
    start, engine = state(net), engine_for(net, federation, momentum=0.0)
    # without momentum, two phases of one epoch are one phase of two: the epochs are numbered through
    split = plan_for(algorithm, Phase(1), Phase(1))
    [two] = engine.train(split, [Job(0, federation.train[0], start, {})])
    [one] = engine.train(plan_for(algorithm, Phase(2)), [Job(0, federation.train[0], start, {})])
    assert all(torch.equal(one.model[name], two.model[name]) for name in start)
    samples = federation.train[0]
    first, second = (batches(split, 0, epoch, samples, BATCH) for epoch in (0, 1))
    assert not torch.equal(first, second)


def test_momentum_starts_at_zero_for_every_client(federation: Federation) -> None:
    algorithm = FedAvg()
    net = net_for(algorithm, federation)
    start, engine, plan = state(net), engine_for(net, federation), plan_for(algorithm)
    jobs = [Job(1, federation.train[1], start, {}), Job(0, federation.train[0], start, {})]
    after_other = list(engine.train(plan, jobs))[1]
    [alone] = engine.train(plan, [Job(0, federation.train[0], start, {})])
    assert all(torch.equal(after_other.model[name], alone.model[name]) for name in start)


def test_an_outcome_is_no_longer_the_engines(federation: Federation) -> None:
    algorithm = FedAvg()
    net = net_for(algorithm, federation)
    start, engine, plan = state(net), engine_for(net, federation), plan_for(algorithm)
    kept = copy.deepcopy(start)
    [first] = engine.train(plan, [Job(0, federation.train[0], start, {})])
    copied = copy.deepcopy(first.model)
    list(engine.train(plan, [Job(1, federation.train[1], start, {})]))
    assert all(torch.equal(first.model[name], copied[name]) for name in copied)
    assert all(torch.equal(start[name], kept[name]) for name in kept)


# -- batches ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "shape"), [(13, (2, 5)), (10, (2, 5)), (5, (1, 5)), (4, (1, 4)), (1, (1, 1)), (0, (0, 0))]
)
def test_a_ragged_batch_is_dropped_and_less_than_one_batch_is_one(n: int, shape: tuple[int, int]) -> None:
    samples = torch.arange(100, 100 + n)
    drawn = batches(plan_for(FedAvg()), 0, 0, samples, 5)
    assert tuple(drawn.shape) == shape
    assert len(set(drawn.flatten().tolist())) == drawn.numel()  # none twice
    assert set(drawn.flatten().tolist()) <= set(samples.tolist())


def test_a_client_trains_on_what_it_has(federation: Federation) -> None:
    algorithm = FedAvg()
    net = net_for(algorithm, federation)
    for batch_size, seen in ((5, 10), (100, 13)):
        engine = EagerEngine(net, federation.data, CPU, Optimiser(), batch_size)
        [outcome] = engine.train(plan_for(algorithm), [Job(0, federation.train[0], state(net), {})])
        assert outcome.loss_count.sum() == seen
        assert outcome.loss_count[2:].sum() == 0  # classes that the client lacks


# -- answers ---------------------------------------------------------------------------------------


def test_answers_do_not_depend_on_the_evaluation_batch(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm = ALGORITHMS["fedgela"]()
    net = net_for(algorithm, federation)
    engine, samples = engine_for(net, federation), torch.arange(30).flip(0)
    # one row of client vectors a sample: each sample is predicted as its own client would
    rows = algorithm.client_vectors(federation.train_counts[federation.test.owner[samples]], {})
    together = answer(engine, algorithm.predict_personal, Question(state(net), samples, rows=rows))
    monkeypatch.setattr(EagerEngine, "EVALUATION_BATCH", 7)
    cut = answer(engine, algorithm.predict_personal, Question(state(net), samples, rows=rows))
    assert torch.equal(together, cut)
    for client in (0, 1):
        own = federation.test.owner[samples] == client
        vectors = algorithm.client_vectors(federation.train_counts[client], {})
        question = Question(state(net), samples[own], vectors)
        alone = answer(engine, algorithm.predict_personal, question)
        assert torch.equal(alone, together[own])
    nobody = Question(state(net), torch.empty(0, dtype=torch.int64))
    assert len(answer(engine, FedAvg().predict_personal, nobody)) == 0


def test_batchnorm_answers_with_running_statistics(federation: Federation) -> None:
    algorithm = ALGORITHMS["fedgela"](feature_norm="batchnorm")
    net = net_for(algorithm, federation)
    engine, start = engine_for(net, federation), state(net)
    vectors = algorithm.client_vectors(federation.train_counts[1], {})
    [outcome] = engine.train(plan_for(algorithm), [Job(1, federation.train[1], start, vectors)])
    assert not torch.equal(outcome.model["head.norm.running_mean"], start["head.norm.running_mean"])
    question = Question(outcome.model, torch.arange(30), vectors)
    every = answer(engine, algorithm.predict_personal, question)
    one_by_one = [
        answer(engine, algorithm.predict_personal, Question(outcome.model, torch.tensor([i]), vectors))
        for i in range(30)
    ]
    assert torch.equal(every, torch.cat(one_by_one))
    after = engine.net.state_dict()["head.norm.running_mean"]
    assert torch.equal(after, outcome.model["head.norm.running_mean"])  # answering teaches nothing
