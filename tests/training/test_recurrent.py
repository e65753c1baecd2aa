"""Recurrent layers in lanes. cuDNN moves their weights in memory; here a stand-in does so on the CPU."""

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fedgela.errors import UserError
from fedgela.training import LaneEngine, choice
from fedgela.training.recurrent import is_recurrent, keep_weights_in_place
from helpers import play, serve, tiny

NETS = """
from torch import nn


class ReadsRows(nn.Module):
    width = 6

    def __init__(self, kind="LSTM"):
        super().__init__()
        self.rows = getattr(nn, kind)(8, 6, batch_first=True)

    def forward(self, x):
        return self.rows(x.squeeze(1))[0][:, -1]


class ReadsRowsByGRU(ReadsRows):
    def __init__(self):
        super().__init__("GRU")


class Moves(nn.Module):
    width = 6

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 6)

    def forward(self, x):
        if self.linear.weight.is_leaf:
            self.linear.weight.data = self.linear.weight.data.clone()
        return self.linear(x.flatten(1))
"""


@pytest.fixture(autouse=True)
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "recurrent_nets_of_a_test.py").write_text(NETS)
    monkeypatch.syspath_prepend(str(tmp_path))


def moved(layer: nn.RNNBase) -> None:
    """What cuDNN's flattening does to the tensors it is given: the same values, elsewhere."""
    with torch.no_grad():
        for weight in layer._flat_weights:
            if isinstance(weight, torch.Tensor):
                weight.set_(weight.clone())  # type: ignore[call-overload]


@pytest.fixture
def cudnn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nn.RNNBase, "flatten_parameters", moved)


def settings(model: str, **changes: Any) -> dict[str, Any]:
    return {"model": f"recurrent_nets_of_a_test:{model}", "sample": 3, "epochs": 2, "lr": 0.3} | changes


@pytest.mark.parametrize("method", ["fedavg", "moon", "fedgela"])  # moon: a teacher's weights, too
@pytest.mark.parametrize("model", ["ReadsRows", "ReadsRowsByGRU"])
@pytest.mark.usefixtures("cudnn")
def test_lanes_give_the_eager_engines_result(npz: Path, model: str, method: str) -> None:
    plain = serve(tiny(npz, engine="eager", **settings(model, algorithm=method)))
    fast = serve(tiny(npz, engine="lanes", lanes=1, **settings(model, algorithm=method)))
    assert isinstance(fast.engine, LaneEngine)
    expected, records = play(plain)
    progress, found = play(fast)
    for one, two in zip(records, found, strict=True):
        assert two["train_loss"] == pytest.approx(one["train_loss"], rel=1e-4)
        assert two["GA"] == pytest.approx(one["GA"])
    for name, value in expected.server.model.items():
        torch.testing.assert_close(progress.server.model[name], value, rtol=1e-3, atol=1e-5)
    began = serve(tiny(npz, **settings(model))).begin().server.model
    layers = [name for name in began if "rows" in name]
    assert layers
    assert all(not torch.equal(progress.server.model[name], began[name]) for name in layers)


def test_a_net_that_moves_its_weights_is_told_of(npz: Path) -> None:
    server = serve(tiny(npz, engine="lanes", lanes=1, width=1, **settings("Moves")))
    with pytest.raises(UserError, match=r"moves its weights in memory \(backbone.*weight\): use engine"):
        play(server)


def test_what_keeps_weights_in_place_travels_to_workers() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.GRU(3, 2))
    assert is_recurrent(net) and not is_recurrent(net[0])
    keep_weights_in_place(net)
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert other[1].flatten_parameters.__name__ == "_leave"


def test_recurrent_nets_are_computed_in_fp32_on_a_gpu(npz: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve(tiny(npz, **settings("ReadsRows")))
    monkeypatch.setattr(choice, "_gpus", lambda experiment: 1)
    on_gpu = server.experiment.with_(device="cuda", engine="auto", lanes=None, width=None, precision=None)
    assert choice.choose(on_gpu, server.net, server.federation).precision == "fp32"
    with pytest.raises(UserError, match=r"precision: torch would compute .* in fp16"):
        choice.choose(on_gpu.with_(precision="bf16"), server.net, server.federation)
