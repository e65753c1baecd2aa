"""Lanes, however many and however wide, give what the eager engine gives; and what if they cannot."""

import copy
import functools
import gc
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call, vmap

from fedgela.algorithms import ALGORITHMS, FedAvg, Phase
from fedgela.errors import UserError
from fedgela.evaluation import Record
from fedgela.inputs import InputSpec
from fedgela.models import State, build_net
from fedgela.server import Server
from fedgela.training import Job, LaneEngine, Optimiser, WorkerEngine
from fedgela.training.groups import groups_of
from fedgela.training.interface import Question
from fedgela.training.lane import Lane, _no_garbage_collected
from fedgela.training.stacking import make_stackable
from helpers import play, serve, tiny

WAYS = [(1, 1), (1, 3), (2, 2), (3, 1)]  # lanes, width


def settings(method: str = "fedavg", **changes: Any) -> dict[str, Any]:
    """Three clients of different sizes, some of them smaller than a batch."""
    algorithm: Any = {"name": "fedgen", "alpha": 0.1, "beta": 0.1} if method == "fedgen" else method
    return {
        "algorithm": algorithm,
        "partition": "dirichlet:0.3",
        "min_samples": 2,
        "epochs": 2,
        "sample": 3,
        "schedule": "exponential:0.5",
    } | changes


def assert_same_rounds(plain: Server, fast: Server, rounds: int = 3) -> None:
    progress, records = play(plain, rounds)
    assert_gives(fast, records, progress.server.model)


def assert_gives(fast: Server, records: Sequence[Record], model: State) -> None:
    progress = fast.begin()
    for record in records:
        found = fast.step(progress)
        assert found["train_loss"] == pytest.approx(record["train_loss"], rel=1e-4)
        assert found["train_loss_by_class"] == pytest.approx(record["train_loss_by_class"], rel=1e-3)
    for name, value in model.items():
        torch.testing.assert_close(progress.server.model[name], value, rtol=1e-3, atol=1e-5)
    fast.close()


@functools.lru_cache(maxsize=1)  # for all the ways of a method, which follow each other
def eager_rounds(npz: Path, method: str) -> tuple[list[Record], State]:
    progress, records = play(serve(tiny(npz, engine="eager", **settings(method))))
    return records, progress.server.model


@pytest.mark.parametrize("ways", WAYS, ids=lambda ways: f"{ways[0]}x{ways[1]}")
@pytest.mark.parametrize("method", ALGORITHMS)
def test_lanes_give_the_eager_engines_result(npz: Path, method: str, ways: tuple[int, int]) -> None:
    fast = serve(tiny(npz, engine="lanes", lanes=ways[0], width=ways[1], **settings(method)))
    assert isinstance(fast.engine, WorkerEngine if ways[0] > 1 else LaneEngine)
    assert_gives(fast, *eager_rounds(npz, method))


OTHERS: list[dict[str, Any]] = [
    {"optimizer": "adam", "lr": 0.001},
    {"optimizer": "adamw", "lr": 0.001},
    {"momentum": 0.0},
    {"clip_norm": 0.1},
    {"augment": True},
    {"batchnorm": "local", "algorithm": {"name": "fedgela", "feature_norm": "batchnorm"}},
]


@pytest.mark.parametrize("changes", OTHERS, ids=str)
@pytest.mark.parametrize("width", [1, 3])
def test_other_settings_too(npz: Path, changes: dict[str, Any], width: int) -> None:
    plain = serve(tiny(npz, engine="eager", **settings(**changes)))
    fast = serve(tiny(npz, engine="lanes", lanes=1, width=width, **settings(**changes)))
    assert_same_rounds(plain, fast)


@pytest.mark.parametrize("width", [1, 3])
def test_momentum_starts_at_zero_in_every_phase(
    npz: Path, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FedAvg, "phases", lambda self, epochs: (Phase(epochs),) * 2)  # also in an equal one
    plain = serve(tiny(npz, engine="eager", **settings()))
    assert_same_rounds(plain, serve(tiny(npz, engine="lanes", lanes=1, width=width, **settings())))


def test_stacked_batchnorm_is_every_clients_own() -> None:
    """In float64: BatchNorm over few samples makes much of the smallest difference."""
    spec = InputSpec("image", (3, 16, 16), 0)
    net = build_net("resnet18", spec, 8, lambda: nn.Linear(8, 4), 0).double().train()
    torch.manual_seed(0)
    x, slope = torch.randn(2, 6, 3, 16, 16).double(), torch.randn(2, 6, 4).double()
    stacked = copy.deepcopy(net)
    make_stackable(stacked)
    state = {name: torch.stack([value, value]).detach() for name, value in net.state_dict().items()}
    names = [name for name, _ in net.named_parameters()]
    weights = [state[name].requires_grad_() for name in names]
    logits = vmap(lambda state, x: functional_call(stacked, state, (x,)))(state, x)
    together = dict(zip(names, torch.autograd.grad(logits, weights, slope), strict=True))
    for i in range(2):
        alone = copy.deepcopy(net)
        gradients = torch.autograd.grad(alone(x[i]), list(alone.parameters()), slope[i])
        for name, gradient in zip(names, gradients, strict=True):
            torch.testing.assert_close(together[name][i], gradient)
        for name, buffer in alone.named_buffers():
            torch.testing.assert_close(state[name][i], buffer)


@pytest.mark.parametrize("width", [1, 3])
def test_models_lie_in_memory_as_when_they_are_read_from_a_file(npz: Path, width: int) -> None:
    # else sums over them, such as drift, would have other last bits after a run was resumed
    server = serve(tiny(npz, engine="lanes", lanes=1, width=width, **settings()))
    progress, _ = play(server, 1)
    assert isinstance(server.engine, LaneEngine)
    trained = server.engine.train(server.plan(progress), [server.job(progress, 0)])
    for model in (progress.server.model, *(outcome.model for outcome in trained)):
        assert all(value.is_contiguous() for value in model.values())


def test_lanes_are_spread_over_the_devices(npz: Path) -> None:
    plain = serve(tiny(npz, engine="eager", **settings("moon")))
    fast = serve(tiny(npz, engine="lanes", lanes=1, width=1, **settings("moon")))
    cpu = torch.device("cpu")
    data, sgd = fast.federation.data, Optimiser("sgd", 0.9, 1e-4)
    engine = LaneEngine(fast.net, data, [cpu, cpu], sgd, 5, lanes=3, width=1)
    fast.engine = engine
    assert_same_rounds(plain, fast)
    copies = [recipe.net for recipe in engine.recipes]
    assert copies[0] is not copies[1]
    fast.step(fast.begin())
    assert {id(lane.recipe.net) for lane in engine.lanes} == {id(net) for net in copies}


# -- who goes with whom ----------------------------------------------------------------------------


@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=12),
    lanes=st.integers(1, 4),
    width=st.integers(1, 5),
)
def test_groups(sizes: list[int], lanes: int, width: int) -> None:
    jobs = [Job(k, torch.arange(n), {}) for k, n in enumerate(sizes)]
    groups = groups_of(jobs, 10, lanes, width)
    assert sorted(job.client for group in groups for job in group) == list(range(len(sizes)))
    assert all(1 <= len(group) <= width for group in groups)
    assert all(len({min(10, len(job.samples)) for job in group}) == 1 for group in groups)
    assert max(sizes) == len(groups[0][0].samples)
    whole = sum(n >= 10 for n in sizes)
    assert sum(len(group[0].samples) >= 10 for group in groups) >= min(lanes, whole)


def test_groups_have_about_the_same_work() -> None:
    sizes = [121, 90, 76, 71, 47, 32, 22, 19, 12, 6]
    jobs = [Job(k, torch.arange(100 * n), {}) for k, n in enumerate(sizes)]
    work = [sum(len(job.samples) for job in group) for group in groups_of(jobs, 100, 2, 5)]
    assert len(work) == 2 and max(work) / min(work) < 1.1


# -- out of memory ---------------------------------------------------------------------------------


def out_of_memory(monkeypatch: pytest.MonkeyPatch, refuses: Any) -> None:
    begin = Lane.begin

    def limited(lane: Lane, plan: Any, jobs: Any) -> None:
        if refuses(lane, jobs):
            raise torch.OutOfMemoryError("CUDA out of memory")
        begin(lane, plan, jobs)

    monkeypatch.setattr(Lane, "begin", limited)


def engine_of(server: Server, lanes: int, width: int, notes: list[str]) -> LaneEngine:
    sgd = Optimiser("sgd", 0.9, 1e-4)
    cpu = torch.device("cpu")
    return LaneEngine(
        server.net, server.federation.data, [cpu], sgd, 5, lanes=lanes, width=width, note=notes.append
    )


def test_out_of_memory_in_the_first_of_several_wide_groups(
    npz: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str] = []
    plain = serve(tiny(npz, engine="eager", **settings()))
    fast = serve(tiny(npz, engine="lanes", lanes=1, width=1, **settings()))
    fast.engine = engine = engine_of(fast, 1, 2, notes)
    out_of_memory(monkeypatch, lambda lane, jobs: len(jobs) > 1)
    assert fast.step(fast.begin())["GA"] == plain.step(plain.begin())["GA"]
    assert (engine.width, notes) == (1, ["out of memory: going on with one lane of one client"])


def test_a_step_that_failed_half_way_leaves_no_gradients(npz: Path) -> None:
    def learnt(fails: bool) -> dict[str, torch.Tensor]:
        server = serve(tiny(npz, engine="lanes", lanes=1, width=1, **settings()))
        progress = server.begin()
        plan, job = server.plan(progress), server.job(progress, 0)
        assert isinstance(server.engine, LaneEngine)
        lane = server.engine._add()
        lane.begin(plan, [job])
        if fails:  # as a capture does that breaks off
            step = next(iter(lane.known_steps.values()))
            with pytest.MonkeyPatch.context() as patch, pytest.raises(ZeroDivisionError):
                patch.setattr(step, "_clip", lambda: 1 // 0)
                step()
            lane.begin(plan, [job])
        for _ in lane.steps():
            pass
        return lane.finish(torch.device("cpu"))[0].model

    whole, broken = learnt(fails=False), learnt(fails=True)
    assert all(torch.equal(broken[name], value) for name, value in whole.items())


def test_out_of_memory_lowers_the_lanes_and_goes_on(npz: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    plain = serve(tiny(npz, engine="eager", **settings()))
    fast = serve(tiny(npz, engine="lanes", lanes=1, width=1, **settings()))
    fast.engine = engine = engine_of(fast, 3, 1, notes)
    out_of_memory(monkeypatch, lambda lane, jobs: engine.lanes.index(lane) >= 2)
    assert_same_rounds(plain, fast)
    assert notes == ["out of memory: going on with 2 lanes"]


def test_out_of_memory_lowers_the_width_of_the_last_lane(npz: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    plain = serve(tiny(npz, engine="eager", **settings(min_samples=5)))
    fast = serve(tiny(npz, engine="lanes", lanes=1, width=1, **settings(min_samples=5)))
    fast.engine = engine_of(fast, 1, 3, notes)
    out_of_memory(monkeypatch, lambda lane, jobs: lane.width > 1)
    assert_same_rounds(plain, fast)
    assert notes == ["out of memory: going on with one lane of one client"]


def test_no_memory_for_a_single_client_is_said(npz: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve(tiny(npz, engine="lanes", lanes=1, width=2, **settings()))
    out_of_memory(monkeypatch, lambda lane, jobs: True)
    with pytest.raises(UserError, match="lower batch_size"):
        server.step(server.begin())


def test_evaluation_goes_on_in_smaller_parts(npz: Path) -> None:
    notes: list[str] = []
    server = serve(tiny(npz, engine="eager"))
    engine = engine_of(server, 1, 1, notes)
    question = Question(server.begin().server.model, torch.arange(30))
    predict = server.algorithm.predict_personal
    vectors = server.algorithm.client_vectors(server.federation.train_counts[0], {})
    question = Question(question.model, question.samples, vectors)

    def small(net: Any, x: Any, client: Any) -> Any:
        if len(x) > 8:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return predict(net, x, client)

    [expected] = engine.answers(predict, [question])
    [answer] = engine.answers(small, [question])
    assert torch.equal(answer, expected)
    assert notes[-1] == "out of memory: evaluating 7 samples at a time"


# -- compiling -------------------------------------------------------------------------------------


def test_a_capture_is_not_disturbed_by_the_garbage_collector() -> None:
    # it could throw away the graphs of an earlier run, which a capture does not survive
    with pytest.raises(RuntimeError, match="no capture"), _no_garbage_collected():
        assert not gc.isenabled()
        raise RuntimeError("no capture")
    assert gc.isenabled()


def test_what_cannot_be_compiled_runs_as_it_is(npz: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []

    def refuse(function: Any, **_: Any) -> Any:
        def compiled(*arguments: Any) -> Any:
            raise torch._dynamo.exc.Unsupported("no such thing")

        return compiled

    monkeypatch.setattr(torch, "compile", refuse)
    plain = serve(tiny(npz, engine="eager", **settings()))
    fast = serve(tiny(npz, engine="lanes", lanes=1, width=1, compile=True, **settings()))
    assert isinstance(fast.engine, LaneEngine)
    fast.engine.note = notes.append
    assert_same_rounds(plain, fast)
    assert len(notes) == 1 and "cannot be compiled" in notes[0]


@pytest.fixture
def _aot_eager(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    compile = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **options: compile(f, backend="aot_eager", **options))
    yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("_aot_eager")
@pytest.mark.parametrize("method", ["fedavg", "moon", "fedrep", "fedgela"])
def test_a_compiled_step_is_the_same(npz: Path, method: str) -> None:
    """Traced in one piece, as for a GPU, without the long compilation itself."""
    plain = serve(tiny(npz, engine="eager", **settings(method)))
    fast = serve(tiny(npz, engine="lanes", lanes=1, width=1, compile=True, **settings(method)))
    notes: list[str] = []
    assert isinstance(fast.engine, LaneEngine)
    fast.engine.note = notes.append
    assert_same_rounds(plain, fast, rounds=2)
    assert notes == []
