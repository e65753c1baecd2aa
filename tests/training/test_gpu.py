"""What only a GPU can show: captured lanes give the eager engine's result, and our kernels torch's."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedgela.algorithms import ALGORITHMS
from fedgela.training import LaneEngine
from helpers import serve, tiny

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture(autouse=True)
def _deterministic() -> Any:
    torch.backends.cudnn.deterministic = True
    yield
    torch.backends.cudnn.deterministic = False


def settings(method: str, **changes: Any) -> dict[str, Any]:
    algorithm: Any = {"name": "fedgen", "alpha": 0.1, "beta": 0.1} if method == "fedgen" else method
    return {
        "algorithm": algorithm,
        "partition": "dirichlet:0.3",
        "min_samples": 2,
        "epochs": 2,
        "sample": 3,
        "device": "cuda:0",
        "precision": "fp32",
        "schedule": "exponential:0.5",
    } | changes


@pytest.mark.parametrize("ways", [(1, 1), (3, 1), (2, 2)], ids=lambda ways: f"{ways[0]} x {ways[1]}")
@pytest.mark.parametrize("method", ALGORITHMS)
def test_lanes_give_the_eager_engines_result(npz: Path, method: str, ways: tuple[int, int]) -> None:
    plain = serve(tiny(npz, engine="eager", **settings(method)))
    fast = serve(tiny(npz, lanes=ways[0], width=ways[1], **settings(method)))
    assert isinstance(fast.engine, LaneEngine)
    a, b = plain.begin(), fast.begin()
    for _ in range(3):
        one, two = plain.step(a), fast.step(b)
        assert two["train_loss"] == pytest.approx(one["train_loss"], rel=1e-4)
    for name, value in a.server.model.items():
        torch.testing.assert_close(b.server.model[name], value, rtol=1e-3, atol=1e-5)
    assert all(lane.graphs for lane in fast.engine.lanes)
    steps = [step for lane in fast.engine.lanes for step in lane.known_steps.values()]
    assert steps and all(step.graph is not None for step in steps)


@pytest.fixture
def noisy(npz32: Path, tmp_path: Path) -> Path:
    """Images without areas of one colour: of these BatchNorm makes large numbers of rounding."""
    rng = np.random.default_rng(0)
    with np.load(npz32) as file:
        arrays = dict(file)
    for part in ("x_train", "x_test"):
        noise = rng.integers(0, 256, arrays[part].shape)
        arrays[part] = ((arrays[part] + noise) // 2).astype(np.uint8)
    np.savez(tmp_path / "noisy.npz", **arrays)
    return tmp_path / "noisy.npz"


def test_a_resnet_by_our_kernels_is_the_eager_engines(noisy: Path) -> None:
    small = {"partition": "iid", "batch_size": 10, "lr": 0.001, "model": "resnet18"}
    plain = serve(tiny(noisy, engine="eager", **settings("fedavg", **small)))
    fast = serve(tiny(noisy, lanes=2, width=1, **settings("fedavg", **small)))
    a, b = plain.begin(), fast.begin()
    for _ in range(2):
        one, two = plain.step(a), fast.step(b)
        assert two["train_loss"] == pytest.approx(one["train_loss"], rel=1e-4)
    for name, value in a.server.model.items():
        if "running" in name:
            torch.testing.assert_close(b.server.model[name], value, rtol=1e-2, atol=1e-3)


def test_recurrent_layers_are_the_eager_engines(tmp_path: Path) -> None:
    says = b"what is said and said again by one is soon known by heart. "
    text = np.frombuffer(says * 24, dtype=np.uint8)
    offset = np.arange(4) * (len(text) // 3)
    np.savez(tmp_path / "text.npz", text=text, offset=offset, role=np.array(["A", "B", "C"]))
    natural = {"partition": "natural", "clients": None, "model": "lstm", "lr": 0.3, "batch_size": 20}
    plain = serve(tiny(tmp_path / "text.npz", engine="eager", **settings("fedavg", **natural)))
    fast = serve(tiny(tmp_path / "text.npz", **settings("fedavg", **natural, lanes=3, width=1)))
    a, b = plain.begin(), fast.begin()
    for _ in range(3):
        one, two = plain.step(a), fast.step(b)
        assert two["train_loss"] == pytest.approx(one["train_loss"], rel=1e-3)
        assert two["GA"] == pytest.approx(one["GA"], abs=2.0)
    for name, value in a.server.model.items():
        torch.testing.assert_close(b.server.model[name], value, rtol=1e-2, atol=1e-4)


OTHERS: list[dict[str, Any]] = [
    {"optimizer": "adam", "lr": 0.001},
    {"clip_norm": 0.1},
    {"augment": True},
    {"compile": True},
]


@pytest.mark.parametrize("changes", OTHERS, ids=str)
def test_other_settings_too(npz32: Path, changes: dict[str, Any]) -> None:
    changes = {"model": "simple-cnn", **changes}
    plain = serve(tiny(npz32, engine="eager", **settings("fedavg", **{**changes, "compile": None})))
    fast = serve(tiny(npz32, lanes=2, width=1, **settings("fedavg", **changes)))
    a, b = plain.begin(), fast.begin()
    for _ in range(2):
        one, two = plain.step(a), fast.step(b)
        assert two["train_loss"] == pytest.approx(one["train_loss"], rel=1e-3)


def test_one_lane_or_ten_give_the_same_metrics(npz: Path) -> None:
    records = []
    for lanes in (1, 10):
        server = serve(tiny(npz, lanes=lanes, width=1, **settings("fedgela", sample=4)))
        progress = server.begin()
        records.append([server.step(progress) for _ in range(3)])
    for one, ten in zip(*records, strict=True):
        assert one["GA"] == ten["GA"] and one["PA"] == ten["PA"]
        assert one["train_loss"] == pytest.approx(ten["train_loss"], rel=1e-6)


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("method", ["fedavg", "fedgela"])
def test_bf16_keeps_masters_head_and_loss_in_fp32(npz32: Path, method: str, width: int) -> None:
    ways = {"model": "simple-cnn", "lanes": 2, "width": width}
    fp32 = serve(tiny(npz32, **ways, **settings(method)))
    bf16 = serve(tiny(npz32, **ways, **settings(method, precision=None)))
    assert bf16.experiment.precision == "bf16"
    a, b = fp32.begin(), bf16.begin()
    one, two = fp32.step(a), bf16.step(b)
    assert two["train_loss"] == pytest.approx(one["train_loss"], rel=0.1)
    assert two["train_loss"] != one["train_loss"]
    assert {value.dtype for value in b.server.model.values() if value.is_floating_point()} == {torch.float32}


def test_lanes_stop_where_the_memory_ends(npz32: Path) -> None:
    notes: list[str] = []
    server = serve(
        tiny(npz32, model="resnet18", lanes=4, width=1, **settings("fedavg", sample=4, batch_size=15))
    )
    engine = server.engine
    assert isinstance(engine, LaneEngine)
    engine.note = notes.append
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    ballast = torch.empty(free - int(1.5e9), dtype=torch.uint8, device="cuda")
    record = server.step(server.begin())
    assert record["GA"] is not None
    assert 1 <= len(engine.lanes) < 4
    assert any("memory" in note for note in notes)
    del ballast
