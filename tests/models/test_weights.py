"""Backbone weights from a file."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from fedgela.errors import UserError
from fedgela.inputs import InputSpec
from fedgela.models import Net, build_net
from fedgela.resolve import resolve
from fedgela.runs import resume, run
from helpers import serve, tiny

DIGITS = InputSpec("image", (1, 8, 8))


def net_of(seed: int, weights: Path | None = None, model: str = "tiny-cnn") -> Net:
    spec = DIGITS if model == "tiny-cnn" else InputSpec("image", (1, 16, 16))
    text = None if weights is None else str(weights)
    return build_net(model, spec, 4, lambda: nn.Linear(4, 3), seed, weights=text)


def same(a: nn.Module, b: nn.Module) -> bool:
    other = b.state_dict()
    return all(torch.equal(value, other[name]) for name, value in a.state_dict().items())


@pytest.mark.parametrize("whole", [True, False])
def test_a_file_holds_a_backbone_or_a_whole_net(tmp_path: Path, whole: bool) -> None:
    trained = net_of(seed=1)
    save_file((trained if whole else trained.backbone).state_dict(), tmp_path / "w.safetensors")
    loaded, fresh = net_of(seed=2, weights=tmp_path / "w.safetensors"), net_of(seed=2)
    assert same(loaded.backbone, trained.backbone)
    assert same(loaded.projection, fresh.projection)  # only the backbone's
    assert same(loaded.head, fresh.head)


def test_batchnorms_weights_fill_a_groupnorm(tmp_path: Path) -> None:
    trained = net_of(seed=1, model="resnet18")
    save_file(trained.backbone.state_dict(), tmp_path / "w.safetensors")
    spec = InputSpec("image", (1, 16, 16))
    path = str(tmp_path / "w.safetensors")
    group = build_net("resnet18", spec, 4, nn.Identity, 2, weights=path, batchnorm="group")
    assert same(group.backbone, trained.backbone)


def test_a_run_starts_from_another_runs_global_model_and_resumes_anywhere(
    npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run(tiny(npz, rounds=1), tmp_path / "first")
    monkeypatch.chdir(tmp_path / "first")
    experiment = resolve(tiny(npz, weights=f"models/{first['models']['last']}", seed=5))[0]
    monkeypatch.chdir(tmp_path)
    server = serve(experiment)
    trained = load_file(tmp_path / "first" / "models" / first["models"]["last"])
    for name, value in server.net.backbone.state_dict().items():
        assert torch.equal(value, trained[f"backbone.{name}"])
    run(experiment, tmp_path / "second")
    assert resume(tmp_path / "second")["rounds"] == 3


def test_wrong_files_are_named(tmp_path: Path) -> None:
    other = tmp_path / "other.safetensors"
    save_file({"a": torch.zeros(1)}, other)
    with pytest.raises(
        UserError, match=r"lacks 4 of the model's 4 tensors, such as 'backbone.layers.0.weight'"
    ):
        net_of(0, other)
    state = net_of(0).backbone.state_dict()
    save_file(state | {"layers.0.weight": torch.zeros(16, 3, 3, 3)}, other)
    with pytest.raises(UserError, match=r"has the shape \[16, 3, 3, 3\], the model's has \[16, 1, 3, 3\]"):
        net_of(0, other)
    other.write_bytes(b"nothing")
    with pytest.raises(UserError, match="cannot be read as safetensors"):
        net_of(0, other)
    with pytest.raises(UserError, match=r"there is no file or folder .*none\.safetensors"):
        net_of(0, tmp_path / "none.safetensors")
    with pytest.raises(UserError, match=r"is a folder; model tiny-cnn takes a .safetensors file"):
        net_of(0, tmp_path)
