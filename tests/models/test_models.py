import pytest
import torch
from torch import nn

from fedgela.errors import UserError
from fedgela.inputs import InputSpec
from fedgela.models import BACKBONES, build_net, default_model, default_projection

CIFAR, DIGITS, FEMNIST = (3, 32, 32), (1, 8, 8), (1, 28, 28)
SHAKESPEARE = InputSpec("tokens", (80,), vocabulary=80)
TABLE = InputSpec("features", (20,))


def images(shape: tuple[int, ...]) -> InputSpec:
    return InputSpec("image", shape)


def parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("model", "shape", "expected"),
    [
        # convolutions 3*6*25+6 and 6*16*25+16; 32 -> 28 -> 14 -> 10 -> 5 pixels a side;
        # 16*5*5*120+120 and 120*84+84 units
        ("simple-cnn", CIFAR, 456 + 2_416 + 48_120 + 10_164),
        # one channel: 1*6*25+6; 28 -> 24 -> 12 -> 8 -> 4 pixels a side: 16*4*4*120+120
        ("simple-cnn", FEMNIST, 156 + 2_416 + 30_840 + 10_164),
        # convolutions 1*16*9+16 and 16*32*9+32
        ("tiny-cnn", DIGITS, 160 + 4_640),
        # the widely used CIFAR ResNets have 11,173,962 and 23,520,842 parameters, with a last layer for
        # ten classes of 512*10+10 and 2048*10+10
        ("resnet18", CIFAR, 11_173_962 - 5_130),
        ("resnet50", CIFAR, 23_520_842 - 20_490),
    ],
)
def test_backbones_have_the_known_number_of_parameters(
    model: str, shape: tuple[int, int, int], expected: int
) -> None:
    assert parameters(BACKBONES[model](images(shape))) == expected


def test_lstm_is_leafs_two_layers_of_256_over_embeddings_of_8() -> None:
    # four gates a layer, each with weights of its input and of its own output, and two biases
    lower, upper = 4 * (8 * 256 + 256 * 256 + 2 * 256), 4 * (256 * 256 + 256 * 256 + 2 * 256)
    lstm = BACKBONES["lstm"](SHAKESPEARE)
    assert parameters(lstm) == 80 * 8 + lower + upper == 799_360
    assert lstm.width == 256


def test_lstm_reads_to_the_last_token() -> None:
    lstm = BACKBONES["lstm"](SHAKESPEARE)
    x = torch.randint(80, (3, 80))
    y, z = x.clone(), x.clone()
    y[:, 0] += 1 - 2 * (y[:, 0] == 79).long()
    z[:, -1] += 1 - 2 * (z[:, -1] == 79).long()
    first, early, late = (lstm(tokens) for tokens in (x, y, z))
    assert first.shape == (3, 256)
    assert not torch.equal(first, late)
    assert (first - late).abs().max() > (first - early).abs().max()  # memory fades
    # the state after 80 tokens, read in two parts, is the same
    hidden, state = lstm.lstm(lstm.embedding(x[:, :50]))
    hidden, _ = lstm.lstm(lstm.embedding(x[:, 50:]), state)
    torch.testing.assert_close(hidden[:, -1], first)


def test_an_lstm_can_be_a_teacher() -> None:
    # cuDNN's and torch's LSTMs hold their weights in a list beside the parameters
    student, teacher = (
        build_net("lstm", SHAKESPEARE, 20, lambda: nn.Linear(20, 80), seed=seed) for seed in (0, 1)
    )
    x = torch.randint(80, (3, 80))
    torch.testing.assert_close(student.features_of(teacher.state_dict(), x), teacher.eval().features(x))


def test_mlp_has_two_hidden_layers_of_128() -> None:
    mlp = BACKBONES["mlp"](TABLE)
    assert parameters(mlp) == (20 * 128 + 128) + (128 * 128 + 128)
    z = mlp(torch.randn(5, 20))
    assert z.shape == (5, mlp.width) == (5, 128)
    assert (z >= 0).all()


@pytest.mark.parametrize(
    ("model", "spec", "wanted"),
    [
        ("lstm", images(CIFAR), "needs tokens, not image of shape 3x32x32"),
        ("lstm", TABLE, "needs tokens, not features of shape 20"),
        ("mlp", SHAKESPEARE, "needs features, not tokens of shape 80"),
        ("resnet18", TABLE, "needs images of at least 16x16, not features of shape 20"),
        ("tiny-cnn", SHAKESPEARE, "needs images of at least 4x4, not tokens of shape 80"),
    ],
)
def test_a_model_of_another_kind_of_data_is_an_error(model: str, spec: InputSpec, wanted: str) -> None:
    with pytest.raises(UserError, match=f"^model {model} {wanted}$"):
        BACKBONES[model](spec)


def test_default_model_fits_the_kind_of_data() -> None:
    assert default_model(SHAKESPEARE) == "lstm"
    assert default_model(TABLE) == "mlp"


def test_resnet18_of_grey_images_differs_in_its_stem_only() -> None:
    assert parameters(BACKBONES["resnet18"](images(FEMNIST))) == 11_168_832 - 2 * 64 * 9


@pytest.mark.parametrize(
    ("model", "shape", "width"),
    [
        ("simple-cnn", CIFAR, 84),
        ("simple-cnn", (1, 16, 20), 84),
        ("tiny-cnn", DIGITS, 32 * 2 * 2),
        ("tiny-cnn", (3, 4, 7), 32 * 1 * 1),
        ("resnet18", CIFAR, 512),
        ("resnet18", (1, 17, 16), 512),
        ("resnet50", (3, 16, 16), 2048),
    ],
)
def test_features_and_logits_have_their_shapes(model: str, shape: tuple[int, int, int], width: int) -> None:
    net = build_net(model, images(shape), 20, lambda: nn.Linear(20, 7), seed=0)
    x = torch.randn(2, *shape)
    assert net.backbone.width == width
    assert net.backbone(x).shape == (2, width)
    assert net.features(x).shape == (2, 20)
    assert net(x).shape == (2, 7)
    assert parameters(net.projection) == width * 20 + 20


@pytest.mark.parametrize(("model", "channels"), [("resnet18", 512), ("resnet50", 2048)])
def test_resnets_halve_the_image_three_times(model: str, channels: int) -> None:
    # the paper's images are 32x32: a stem of stride 2 and pooling would leave one pixel of them
    backbone = BACKBONES[model](images(CIFAR))
    y, _ = backbone.blocks(backbone.stem.forked(torch.randn(2, *CIFAR)))
    assert y.shape == (2, channels, 4, 4)


def test_features_may_be_negative() -> None:
    # an ETF's directions point into every orthant: there must be no ReLU after the projection
    for model, shape in (("simple-cnn", CIFAR), ("tiny-cnn", DIGITS)):
        net = build_net(model, images(shape), 84, nn.Identity, seed=0)
        z = net.features(torch.randn(16, *shape))
        assert (z < 0).any()
        assert (net.backbone(torch.randn(16, *shape)) >= 0).all()  # the backbone itself ends in one


@pytest.mark.parametrize(
    ("classes", "d"),
    [(2, 84), (10, 84), (84, 84), (85, 512), (100, 512), (512, 512), (513, 513), (1000, 1000)],
)
def test_projection_has_the_papers_size_and_room_for_an_etf(classes: int, d: int) -> None:
    assert default_projection(classes) == d


@pytest.mark.parametrize(
    ("shape", "model"),
    [(CIFAR, "resnet18"), (FEMNIST, "resnet18"), (DIGITS, "tiny-cnn"), ((3, 64, 8), "tiny-cnn")],
)
def test_default_model_fits_the_images(shape: tuple[int, int, int], model: str) -> None:
    assert default_model(images(shape)) == model


@pytest.mark.parametrize(
    ("model", "shape", "least"),
    [
        ("simple-cnn", (3, 15, 32), "16x16, not image of shape 3x15x32"),
        ("tiny-cnn", (1, 8, 3), "4x4, not image of shape 1x8x3"),
        ("resnet18", DIGITS, "16x16, not image of shape 1x8x8"),
        ("resnet50", (3, 32, 8), "16x16, not image of shape 3x32x8"),
    ],
)
def test_too_small_images_are_an_error(model: str, shape: tuple[int, int, int], least: str) -> None:
    with pytest.raises(UserError, match=f"model {model} needs images of at least {least}"):
        BACKBONES[model](images(shape))


def body(seed: int, head: type[nn.Module] | None = None) -> dict[str, torch.Tensor]:
    net = build_net("tiny-cnn", images(DIGITS), 84, head or nn.Identity, seed)
    return {name: value for name, value in net.state_dict().items() if not name.startswith("head.")}


def test_the_same_seed_gives_the_same_body_whatever_the_head() -> None:
    # methods are compared from the same initial weights
    first = body(3)
    for head in (nn.Identity, lambda: nn.Linear(84, 10), lambda: nn.Linear(84, 100, bias=False)):
        other = body(3, head)
        assert first.keys() == other.keys()
        assert all(torch.equal(first[name], other[name]) for name in first)


def test_the_same_seed_gives_the_same_head_whatever_the_body() -> None:
    small, large = (
        build_net(model, images((1, 16, 16)), 84, lambda: nn.Linear(84, 10), seed=3)
        for model in ("tiny-cnn", "simple-cnn")
    )
    assert torch.equal(small.head.weight, large.head.weight)


def test_another_seed_gives_another_body() -> None:
    first, other = body(3), body(4)
    assert all(not torch.equal(first[name], other[name]) for name in first)


def test_building_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    body(0)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(99)
    assert torch.equal(body(0)["projection.weight"], body(0)["projection.weight"])


def test_every_parameter_gets_a_gradient() -> None:
    for model, shape in (("tiny-cnn", DIGITS), ("simple-cnn", CIFAR), ("resnet18", (3, 16, 16))):
        net = build_net(model, images(shape), 84, lambda: nn.Linear(84, 10), seed=0)
        net(torch.randn(4, *shape)).square().sum().backward()
        assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in net.parameters())
