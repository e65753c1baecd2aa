"""Backbones of the Hugging Face hub: real loading code, on tiny random models saved as the hub saves them."""

import builtins
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from fedgela.errors import UserError
from fedgela.inputs import InputSpec
from fedgela.models import Net, build_net
from fedgela.runs import resume, run
from helpers import outcome_of, tiny

transformers = pytest.importorskip("transformers", reason="fedgela[hub] is not installed")

COLOUR, GREY = InputSpec("image", (3, 32, 32)), InputSpec("image", (1, 8, 8))
CONFIGS: dict[str, Any] = {
    "efficientnet": transformers.EfficientNetConfig(
        image_size=32, width_coefficient=0.25, depth_coefficient=0.1, hidden_dim=320
    ),
    "convnext": transformers.ConvNextConfig(hidden_sizes=[4, 8, 8, 12], depths=[1, 1, 1, 1], image_size=32),
    "vit": transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        image_size=16,
        patch_size=4,
    ),
    "resnet": transformers.ResNetConfig(
        embedding_size=4, hidden_sizes=[4, 8], depths=[1, 1], layer_type="basic"
    ),
}
EVERY = pytest.mark.parametrize("name", CONFIGS)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folders = {}
    for i, (name, config) in enumerate(CONFIGS.items()):
        folders[name] = tmp_path_factory.mktemp("hub") / name
        with torch.random.fork_rng():
            torch.manual_seed(i)
            transformers.AutoModel.from_config(config).save_pretrained(folders[name])
    return folders


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As without a network, but without waiting for it."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def net_of(model: str, spec: InputSpec = COLOUR, seed: int = 0, **options: Any) -> Net:
    return build_net(model, spec, 4, lambda: nn.Linear(4, 3), seed, **options)


def same(a: nn.Module, b: nn.Module) -> bool:
    mine, other = a.state_dict(), b.state_dict()
    return mine.keys() == other.keys() and all(torch.equal(mine[name], other[name]) for name in mine)


@EVERY
def test_features_are_pooled(saved: dict[str, Path], name: str) -> None:
    net = net_of(f"hf:{saved[name]}").eval()
    x = torch.randn(2, 3, 32, 32)
    z = net.backbone(x)
    assert z.shape == (2, net.backbone.width)
    assert net.projection.in_features == net.backbone.width
    # by the plain model
    model = transformers.AutoModel.from_pretrained(saved[name]).eval()
    if name == "vit":
        x = nn.functional.interpolate(x, (16, 16), mode="bilinear", antialias=True)
        expected = model(pixel_values=x).last_hidden_state.mean(dim=1)
    else:
        expected = model(pixel_values=x).pooler_output.flatten(1)
    torch.testing.assert_close(z, expected)
    assert net.backbone.size == ((16, 16) if name == "vit" else None)  # resized only where it must be


@EVERY
def test_weights_are_the_pretrained_ones_whatever_the_seed(saved: dict[str, Path], name: str) -> None:
    a, b = (net_of(f"hf:{saved[name]}", seed=seed) for seed in (0, 1))
    assert same(a.backbone, b.backbone)
    assert not same(a.projection, b.projection)
    assert all(value.dtype == torch.float32 for value in a.parameters())


@EVERY
def test_without_pretrained_weights_they_come_from_the_seed(saved: dict[str, Path], name: str) -> None:
    model = f"hf:{saved[name]}"
    first, again, other = (net_of(model, seed=seed, pretrained=False) for seed in (0, 0, 1))
    assert same(first, again)
    assert not same(first.backbone, other.backbone)
    assert first.backbone.width == other.backbone.width == net_of(model).backbone.width


@EVERY
def test_weights_of_a_folder_or_a_file(saved: dict[str, Path], name: str, tmp_path: Path) -> None:
    model = f"hf:{saved[name]}"
    expected = net_of(model)
    torch.manual_seed(12345)  # not the seed of the saved one, whatever ran before
    other = transformers.AutoModel.from_config(CONFIGS[name])
    other.save_pretrained(tmp_path / "other")
    from_folder = net_of(model, weights=str(tmp_path / "other"))
    assert not same(from_folder.backbone, expected.backbone)
    state = {k: v for k, v in other.state_dict().items() if not k.startswith("pooler.dense")}
    assert all(torch.equal(from_folder.backbone.model.state_dict()[k], v) for k, v in state.items())
    # as the model's own, as in a classifier's file, as in a run's global model
    for prefix in ("", f"{other.base_model_prefix}.", "backbone.model."):
        path = tmp_path / "w.safetensors"
        save_file({f"{prefix}{k}": v.contiguous() for k, v in other.state_dict().items()}, path)
        assert same(net_of(model, weights=str(path)).backbone, from_folder.backbone)


def test_grey_and_small_images_are_taken(saved: dict[str, Path]) -> None:
    for name, size in (("efficientnet", (32, 32)), ("convnext", (32, 32)), ("vit", (16, 16))):
        net = net_of(f"hf:{saved[name]}", GREY).eval()
        assert net.backbone.size == size  # of 8x8 pixels there would be none left
        x = torch.randn(2, 1, 8, 8)
        assert net(x).shape == (2, 3)
        torch.testing.assert_close(net.backbone(x), net.backbone(x.expand(-1, 3, -1, -1)))


def test_a_data_set_that_does_not_fit_is_an_error(saved: dict[str, Path]) -> None:
    with pytest.raises(UserError, match=r"needs images of 3 channels, not image of shape 4x32x32"):
        net_of(f"hf:{saved['vit']}", InputSpec("image", (4, 32, 32)))
    with pytest.raises(UserError, match=r"needs image, not features of shape 7"):
        net_of(f"hf:{saved['vit']}", InputSpec("features", (7,)))


def test_a_text_model_is_no_backbone_for_images(tmp_path: Path) -> None:
    config = transformers.BertConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8, vocab_size=9
    )
    transformers.AutoModel.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="cannot take image of shape 3x32x32"):
        net_of(f"hf:{tmp_path}")


def test_efficientnets_running_statistics_are_torchs(saved: dict[str, Path]) -> None:
    net = net_of(f"hf:{saved['efficientnet']}")
    momenta = {part.momentum for part in net.modules() if isinstance(part, nn.BatchNorm2d)}
    assert momenta == {0.01, 0.1}  # the config's 0.99 the right way round; some layers have torch's default


def test_efficientnet_b0_is_known_without_the_hub(offline: None) -> None:
    net = net_of("efficientnet-b0", pretrained=False)
    # the widely used EfficientNet-B0 has 5,288,548 parameters, with a last layer of 1280 * 1000 + 1000
    assert sum(p.numel() for p in net.backbone.parameters()) == 5_288_548 - 1_281_000
    assert net.backbone.width == 1280
    assert same(net, net_of("hf:google/efficientnet-b0", pretrained=False))
    assert not [part for part in net_of("efficientnet-b0", pretrained=False, batchnorm="group").modules()
                if isinstance(part, nn.BatchNorm2d)]  # fmt: skip


def test_weights_that_cannot_be_fetched_say_how_to_go_on(offline: None, tmp_path: Path) -> None:
    for model in ("efficientnet-b0", "hf:facebook/convnext-tiny-224", f"hf:{tmp_path}"):
        with pytest.raises(UserError) as caught:
            net_of(model)
        what, how = str(caught.value).splitlines()
        assert what.startswith(f"model {model}: the weights of ") and "cannot be loaded" in what
        assert "--no-pretrained" in how and "--set weights=PATH" in how
    with pytest.raises(
        UserError, match=r"the config of facebook/convnext-tiny-224 cannot be loaded.*\n.*hf:FOLDER"
    ):
        net_of("hf:facebook/convnext-tiny-224", pretrained=False)


def test_a_folder_that_lacks_weights_is_an_error(saved: dict[str, Path], tmp_path: Path) -> None:
    model = transformers.AutoModel.from_config(CONFIGS["resnet"])
    state = model.state_dict()
    gone = next(name for name in state if name.endswith("convolution.weight"))
    model.save_pretrained(tmp_path, state_dict={k: v for k, v in state.items() if k != gone})
    with pytest.raises(UserError, match=rf"lack 1 tensors, such as '{gone}'"):
        net_of(f"hf:{tmp_path}")


def test_without_transformers_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name == "transformers":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(
        UserError, match=r"^model efficientnet-b0 needs transformers: pip install 'fedgela\[hub\]'$"
    ):
        net_of("efficientnet-b0")


@pytest.mark.parametrize("algorithm", ["fedavg", "fedgela", "moon", "fedrep"])
def test_methods_train_it_and_its_dropout_is_addressed(
    saved: dict[str, Path], npz: Path, tmp_path: Path, algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(saved["efficientnet"].parent)
    # few and large batches: a step costs by the net's many layers, not by its samples
    experiment = tiny(npz, model="hf:efficientnet", algorithm=algorithm, rounds=1, batch_size=15)
    run(experiment, tmp_path / "a")
    torch.manual_seed(77)
    run(experiment, tmp_path / "b")
    assert outcome_of(tmp_path / "a") == outcome_of(tmp_path / "b")
    assert f'model = "hf:{saved["efficientnet"].resolve()}"' in (tmp_path / "a" / "config.toml").read_text()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "b" / "result.json").unlink()
    resume(tmp_path / "b")
    assert outcome_of(tmp_path / "a") == outcome_of(tmp_path / "b")


def test_a_hub_that_does_not_answer_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nobody listens there
    with pytest.raises(UserError, match=r"http://127\.0\.0\.1:9 cannot be reached: .*refused"):
        build_net("hf:someone/some-model", InputSpec("image", (3, 32, 32), 0), 4, lambda: nn.Linear(4, 3), 0)
