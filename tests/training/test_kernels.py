"""Our kernels give torch's results, on a GPU, or anywhere in Triton's interpreter (TRITON_INTERPRET=1), which
takes float32 only."""

import copy
import os
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F

from fedgela.models.resnet import _basic, _bottleneck
from fedgela.operations import dispatch
from fedgela.operations.batch import gather
from fedgela.operations.convolution import convolve, convolve_and_pool
from fedgela.operations.dispatch import TRITON
from fedgela.operations.linear import linear
from fedgela.operations.loss import cross_entropy, losses_of, record
from fedgela.operations.normalisation import normalise, normalise_and_fork
from fedgela.operations.pooling import pool
from fedgela.operations.stem import StemConv2d, patches_of
from fedgela.training.stacking import make_stackable

INTERPRETED = TRITON and os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
DTYPES = [torch.float32] if INTERPRETED else [torch.float32, torch.bfloat16]

pytestmark = pytest.mark.skipif(
    not (INTERPRETED or torch.cuda.is_available()), reason="needs a GPU, or Triton's interpreter"
)


def assert_near(mine: Tensor, theirs: Tensor, dtype: torch.dtype) -> None:
    """As near as sums of this type are, by the largest number."""
    assert mine.shape == theirs.shape
    scale = theirs.float().abs().max().item()
    limit = 1e-5 if dtype == torch.float32 else 1e-2
    assert (mine.float() - theirs.float()).abs().max().item() <= limit * scale


SHAPES = [(1, 7, 3, 32, 6, 5, 0), (4, 10, 6, 14, 16, 5, 0), (3, 5, 1, 10, 16, 3, 1), (2, 9, 16, 6, 32, 3, 1)]
if INTERPRETED:  # it is slow
    SHAPES = [(2, 2, 2, 7, 3, 3, 0), (2, 2, 1, 6, 16, 3, 1)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_our_convolution_is_torchs(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    torch.backends.cudnn.allow_tf32 = False
    G, B, C, H, outputs, k, padding = shape
    torch.manual_seed(0)
    x = torch.randn(G, B, C, H, H, device=DEVICE, dtype=dtype, requires_grad=True)
    w = torch.randn(G, outputs, C, k, k, device=DEVICE, dtype=dtype, requires_grad=True)
    b = torch.randn(G, outputs, device=DEVICE, dtype=dtype, requires_grad=True)

    def reference(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return torch.stack(
            [F.conv2d(x[g].float(), w[g].float(), b[g].float(), padding=padding) for g in range(G)]
        )

    y, expected = convolve(x, w, b, padding), reference(x, w, b)
    assert_near(y, expected, dtype)
    slope = torch.randn_like(expected).to(dtype)
    ours = torch.autograd.grad(y, (x, w, b), slope)
    theirs = torch.autograd.grad(expected, (x, w, b), slope.float())
    for one, other in zip(ours, theirs, strict=True):
        assert_near(one, other, dtype)
    again = torch.autograd.grad(convolve(x, w, b, padding), (x, w, b), slope)
    assert all(torch.equal(one, other) for one, other in zip(ours, again, strict=True))


POOLED = [(3, 7, 3, 32, 32, 6, 5, 0), (2, 9, 4, 9, 13, 7, 3, 1), (1, 2, 1, 8, 9, 16, 2, 1)]
if INTERPRETED:
    POOLED = [(2, 2, 2, 6, 7, 3, 3, 0), (1, 1, 1, 7, 6, 4, 2, 1)]  # odd rows and columns are in no window


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("filled", [1, 10**9], ids=["largest patch", "smallest patch"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", POOLED, ids=str)
def test_our_convolution_with_pooling_is_torchs(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    filled: int,
    relu: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from fedgela.operations.kernels import patches

    monkeypatch.setattr(patches, "FILLED", filled)
    G, B, C, H, W, outputs, k, padding = shape
    torch.manual_seed(0)
    # products of small whole numbers are exact in any type, so that both take the same of equal pixels
    x = torch.randint(-2, 3, (G, B, C, H, W), device=DEVICE).to(dtype).requires_grad_()
    w = torch.randint(-1, 2, (G, outputs, C, k, k), device=DEVICE).to(dtype).requires_grad_()
    b = torch.randint(-2, 3, (G, outputs), device=DEVICE).to(dtype).requires_grad_()

    def one(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        y: Tensor = convolve_and_pool(x[None], w[None], b[None], padding, relu)[0]
        return y.squeeze(0)

    y = vmap(one)(x, w, b)
    full = torch.stack(
        [F.conv2d(x[g].float(), w[g].float(), b[g].float(), padding=padding) for g in range(G)]
    )
    full = full + (full.round() - full).detach()  # the libraries' ways are not all exact
    expected = F.max_pool2d(full.flatten(0, 1), 2).unflatten(0, (G, B))
    expected = expected.relu() if relu else expected
    assert torch.equal(y.float(), expected)
    slope = torch.randn_like(y)
    ours = torch.autograd.grad(y, (x, w, b), slope)
    theirs = torch.autograd.grad(expected, (x, w, b), slope.float())
    for mine, other in zip(ours, theirs, strict=True):
        assert_near(mine, other, dtype)
    again = torch.autograd.grad(vmap(one)(x, w, b), (x, w, b), slope)
    assert all(torch.equal(mine, other) for mine, other in zip(ours, again, strict=True))


def test_a_nan_is_the_largest_of_its_window_with_pooling() -> None:
    torch.manual_seed(0)
    x = torch.randn(1, 1, 1, 5, 5, device=DEVICE)
    x[..., 0, 0] = torch.nan
    w, b = torch.randn(1, 2, 1, 2, 2, device=DEVICE), torch.zeros(1, 2, device=DEVICE)
    found = convolve_and_pool(x, w, b, 0, True)
    for one, other in zip(found, pool(convolve(x, w, b, 0), True), strict=True):
        torch.testing.assert_close(one, other, equal_nan=True)
    assert found[0].isnan().sum() == 2


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_our_pooling_is_torchs(dtype: torch.dtype, relu: bool) -> None:
    torch.manual_seed(0)
    x = torch.randint(-3, 3, (4, 3, 7, 10), device=DEVICE).to(dtype)  # many equal pixels, and an odd row
    x[0, 0, 1, 1] = torch.nan
    x.requires_grad_()
    expected = F.max_pool2d(x, 2)
    expected = expected.relu() if relu else expected
    slope = torch.randn_like(expected)
    [theirs] = torch.autograd.grad(expected, x, slope)
    for y in (pool(x, relu)[0], vmap(lambda image: pool(image, relu)[0])(x)):
        torch.testing.assert_close(y, expected, equal_nan=True, rtol=0, atol=0)
        [ours] = torch.autograd.grad(y, x, slope)
        assert torch.equal(ours, theirs)


LAYERS = [(3, 10, 40, 12, torch.bfloat16), (1, 20, 120, 84, torch.bfloat16), (2, 17, 84, 10, torch.float32)]


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("given", DTYPES, ids=str)
@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_our_linear_layer_is_torchs(layer: tuple[Any, ...], given: torch.dtype, relu: bool) -> None:
    G, B, inputs, outputs, dtype = layer
    dtype = torch.float32 if INTERPRETED else dtype
    torch.manual_seed(0)
    x = torch.randn(G, B, inputs, device=DEVICE, dtype=given, requires_grad=True)
    w = torch.randn(G, outputs, inputs, device=DEVICE, requires_grad=True)
    b = torch.randn(G, outputs, device=DEVICE, requires_grad=True)

    def one(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        y: Tensor = linear(x[None], w[None], b[None], dtype, relu)
        return y.squeeze(0)

    y = vmap(one)(x, w, b)
    expected = torch.baddbmm(b[:, None], x.to(dtype).float(), w.to(dtype).float().mT)
    # where rounding decides on which side of zero a number is, both are right
    on = y > 0 if relu else torch.ones_like(y, dtype=torch.bool)
    expected = expected * on if relu else expected
    assert y.dtype == dtype
    assert_near(y, expected, dtype)
    slope = torch.randn_like(y)
    ours = torch.autograd.grad(y, (x, w, b), slope)
    theirs = torch.autograd.grad(expected, (x, w, b), slope.float())
    for one_of_ours, other, of in zip(ours, theirs, (x, w, b), strict=True):
        assert one_of_ours.dtype == of.dtype
        assert_near(one_of_ours, other, torch.bfloat16 if given == torch.bfloat16 else dtype)
    # a part of them
    assert torch.equal(torch.autograd.grad(vmap(one)(x.detach(), w, b), w, slope)[0], ours[1])
    assert torch.equal(torch.autograd.grad(vmap(one)(x, w.detach(), b.detach()), x, slope)[0], ours[0])


def test_our_cross_entropy_is_torchs() -> None:
    torch.manual_seed(0)
    logits = 5 * torch.randn(3, 9, 10, device=DEVICE)
    logits[1, :, 4] = -torch.inf  # a class that this client does not have
    y = torch.randint(0, 4, (3, 9), device=DEVICE)
    logits.requires_grad_()
    expected = -logits.log_softmax(dim=2).gather(2, y[..., None]).squeeze(2)
    slope = torch.randn_like(expected)
    [theirs] = torch.autograd.grad(expected, logits, slope)
    for losses in (losses_of(logits, y), vmap(losses_of)(logits, y)):
        torch.testing.assert_close(losses, expected)
        torch.testing.assert_close(torch.autograd.grad(losses, logits, slope)[0], theirs)


def test_losses_are_recorded_by_class(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    losses, y = torch.rand(2, 70, device=DEVICE), torch.randint(0, 5, (2, 70), device=DEVICE)
    found = []
    for kernels in (True, False):
        monkeypatch.setattr(dispatch, "by_kernels", lambda x, kernels=kernels: kernels)
        sums, counters = torch.ones(3, 5, device=DEVICE), torch.arange(3, device=DEVICE)
        record(losses, y, sums, counters)
        found.append((sums, counters))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_batch_is_gathered_and_normalised(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    images = torch.randint(0, 256, (20, 3, 6, 5), dtype=torch.uint8, device=DEVICE)
    labels = torch.randint(0, 4, (20,), device=DEVICE)
    index = torch.randint(0, 20, (4, 30), device=DEVICE)[:3, :28].view(3, 7, 4)
    scale, shift = torch.rand(3, 1, 1, device=DEVICE), torch.randn(3, 1, 1, device=DEVICE)
    at = torch.tensor([5], device=DEVICE)
    x, y = gather(images, labels, index, at, (scale, shift), dtype)
    rows = index[:, 5]
    assert torch.equal(y, labels[rows])
    torch.testing.assert_close(x, torch.addcmul(shift, images[rows], scale).to(dtype), rtol=0.01, atol=1e-5)


def test_a_net_of_our_layers_is_the_plain_one(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    layers = nn.Sequential(
        nn.Conv2d(1, 2, 3),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8, 5),
        nn.ReLU(),
        nn.Linear(5, 3),
    ).to(DEVICE)
    ours = copy.deepcopy(layers)
    make_stackable(ours)
    assert list(ours.state_dict()) == list(layers.state_dict())
    state = {name: torch.randn(2, *value.shape, device=DEVICE) for name, value in layers.state_dict().items()}
    x, y = torch.randn(2, 3, 1, 6, 6, device=DEVICE), torch.randint(0, 3, (2, 3), device=DEVICE)

    def gradients(net: nn.Module) -> tuple[Tensor, ...]:
        weights = {name: value.clone().requires_grad_() for name, value in state.items()}
        losses = vmap(lambda w, x, y: cross_entropy(functional_call(net, w, (x,)), y))(weights, x, y)
        return torch.autograd.grad(losses.sum(), list(weights.values()))

    monkeypatch.setattr(dispatch, "by_kernels", lambda x: False)
    theirs = gradients(layers)
    monkeypatch.setattr(dispatch, "by_kernels", lambda x: True)
    called: list[nn.Module] = []
    for layer in ours[1:3]:
        layer.register_forward_hook(lambda module, *_: called.append(module))
    for one, other in zip(gradients(ours), theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert called == []  # pooling and ReLU were done by the convolution before them


def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several chunks of several steps each, even of tiny batches."""
    from fedgela.operations.kernels import normalisation

    sizes = {"SUMMED": (16, 16, 1), "WRITTEN": (16, 16, 1), "PROGRAMS": 6, "ADDED": 2}
    for name, size in sizes.items():
        monkeypatch.setattr(normalisation, name, size)


def batch_norm(channels: int) -> nn.BatchNorm2d:
    layer = nn.BatchNorm2d(channels, eps=1e-3, momentum=0.3).to(DEVICE)
    for value in (layer.weight, layer.bias, layer.running_mean, layer.running_var):
        assert value is not None
        nn.init.uniform_(value, -1, 2)
    return layer


NORMALISED = [(3, 64, 8, 8), (5, 7, 5, 3), (1, 40, 1, 2), (9, 16, 4, 4)]


@pytest.mark.parametrize("relu", [False, True], ids=["", "relu"])
@pytest.mark.parametrize("added", [False, True], ids=["", "residual"])
@pytest.mark.parametrize("blocks", ["small", "usual"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", NORMALISED, ids=str)
def test_our_normalisation_is_torchs(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    blocks: str,
    added: bool,
    relu: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dispatch, "by_kernels", lambda x: True)
    if blocks == "small":
        small_blocks(monkeypatch)
    torch.manual_seed(0)
    x = 3 + torch.randn(shape, device=DEVICE).to(dtype).to(memory_format=torch.channels_last)
    residual = torch.randn_like(x) if added else None
    slope = torch.randn_like(x)
    layer = batch_norm(shape[1])
    start = copy.deepcopy(layer)
    inputs = [value.requires_grad_() for value in (x, residual) if value is not None]

    def ours() -> tuple[nn.BatchNorm2d, Tensor, tuple[Tensor, ...]]:
        mine = copy.deepcopy(start)
        y = normalise(mine, x, residual, relu)
        assert y.grad_fn is not None and "_BatchNorm" in y.grad_fn.name()
        return mine, y, torch.autograd.grad(y, (*inputs, mine.weight, mine.bias), slope)

    mine, y, found = ours()
    assert y.dtype == dtype and y.is_contiguous(memory_format=torch.channels_last)
    z = layer(x.float()) + (0 if residual is None else residual.float())
    # where rounding decides on which side of zero a number is, both are right
    expected = z * (y > 0) if relu else z
    assert_near(y, expected, dtype)
    theirs = torch.autograd.grad(expected, (*inputs, layer.weight, layer.bias), slope.float())
    for one, other in zip(found, theirs, strict=True):
        assert one.dtype == other.dtype
        assert_near(one, other, dtype)
    for (name, value), other in zip(mine.state_dict().items(), layer.state_dict().values(), strict=True):
        torch.testing.assert_close(value, other, msg=name)
    assert mine.num_batches_tracked == 1
    again, y_again, found_again = ours()
    assert all(torch.equal(a, b) for a, b in zip((y, *found), (y_again, *found_again), strict=True))
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in mine.state_dict().items())


@pytest.mark.parametrize("added", [False, True], ids=["", "residual"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_our_normalisation_is_torchs_in_evaluation(
    dtype: torch.dtype, added: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "by_kernels", lambda x: True)
    torch.manual_seed(0)
    x = torch.randn(5, 24, 3, 3, device=DEVICE).to(dtype).to(memory_format=torch.channels_last)
    residual = torch.randn_like(x) if added else None
    layer = batch_norm(24).eval()
    assert layer.running_var is not None
    layer.running_var.abs_()
    with torch.no_grad():
        y = normalise(layer, x, residual)
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    assert y.dtype == dtype
    assert_near(y, F.relu(layer(x.float()) + (0 if residual is None else residual.float())), dtype)
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())


def test_a_variance_far_from_zero_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "by_kernels", lambda x: True)
    small_blocks(monkeypatch)
    torch.manual_seed(0)
    x = (1000 + torch.randn(4, 8, 6, 6, device=DEVICE)).to(memory_format=torch.channels_last)
    layer = nn.BatchNorm2d(8).to(DEVICE)
    y = normalise(layer, x, relu=False).double()
    exact = x.double() - x.double().mean(dim=(0, 2, 3), keepdim=True)
    exact = exact / exact.square().mean(dim=(0, 2, 3), keepdim=True).add(layer.eps).sqrt()
    torch.testing.assert_close(y, exact, rtol=1e-4, atol=1e-4)


def test_what_our_normalisation_cannot_do_is_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "by_kernels", lambda x: True)
    torch.manual_seed(0)
    x = torch.randn(4, 6, 3, 3, device=DEVICE).to(memory_format=torch.channels_last)
    layers = [
        nn.BatchNorm2d(6, affine=False),
        nn.BatchNorm2d(6, momentum=None),
        nn.BatchNorm2d(6, track_running_stats=False),
        nn.BatchNorm2d(6).eval(),
        nn.GroupNorm(3, 6),
        nn.Identity(),
    ]
    for layer in layers:
        layer = layer.to(DEVICE)
        expected = F.relu(copy.deepcopy(layer)(x) + x)
        assert torch.equal(normalise(layer, x, x), expected)
    plain = x.contiguous()  # channels first
    layer = nn.BatchNorm2d(6).to(DEVICE)
    assert torch.equal(normalise(layer, plain), F.relu(copy.deepcopy(layer)(plain)))
    with pytest.raises(ValueError, match="more than 1 value"):
        normalise(layer, x[:1, :, :1, :1])


@pytest.mark.parametrize("relu", [False, True], ids=["", "relu"])
@pytest.mark.parametrize("added", [False, True], ids=["", "residual"])
@pytest.mark.parametrize("read", [(1, 0), (0, 1), (1, 1)], ids=["one", "other", "both"])
def test_slopes_of_a_forked_normalisation_are_added_up(
    read: tuple[int, int], added: bool, relu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_blocks(monkeypatch)
    torch.manual_seed(0)
    x, residual, one, other = (
        torch.randn(3, 24, 5, 5, device=DEVICE).to(memory_format=torch.channels_last) for _ in range(4)
    )
    layer = batch_norm(24)
    inputs = [value.requires_grad_() for value in ((x, residual) if added else (x,))]
    found = []
    for kernels in (True, False):
        monkeypatch.setattr(dispatch, "by_kernels", lambda x, kernels=kernels: kernels)
        y, again = normalise_and_fork(copy.deepcopy(layer), x, residual if added else None, relu)
        assert torch.equal(y, again)
        loss = read[0] * (one * y).sum() + read[1] * (other * again).sum()
        if read == (1, 0):
            loss = (one * y).sum()  # nothing comes back from the other
        found.append(torch.autograd.grad(loss, inputs))
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
@pytest.mark.parametrize(("channels", "side", "padding"), [(3, 3, 1), (1, 3, 1), (1, 5, 0)])
def test_a_stem_is_the_plain_convolution(channels: int, side: int, padding: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(6, channels, 12, 9, device=DEVICE)
    stem = StemConv2d(channels, 8, side, padding=padding, bias=False).to(DEVICE)
    with torch.autocast("cuda", torch.bfloat16):
        y = stem(x)
        assert stem._fits(x)
    assert y.dtype == torch.bfloat16
    exact = F.conv2d(x.bfloat16().float(), stem.weight.bfloat16().float(), padding=padding)
    assert_near(y, exact, torch.bfloat16)
    slope = torch.randn_like(exact)
    (found,) = torch.autograd.grad(y, stem.weight, slope.bfloat16())
    (expected,) = torch.autograd.grad(exact, stem.weight, slope.bfloat16().float())
    assert_near(found, expected, torch.bfloat16)


@pytest.mark.parametrize(("channels", "side", "padding"), [(3, 3, 1), (1, 3, 1), (2, 5, 0)])
def test_patches_times_weights_are_a_convolution(channels: int, side: int, padding: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, channels, 9, 7, device=DEVICE)
    weight = torch.randn(5, channels, side, side, device=DEVICE)
    patches = patches_of(x, side, padding)
    flat = weight.permute(0, 2, 3, 1).flatten(1)
    y = patches[..., : flat.shape[1]] @ flat.t()
    assert not patches[..., flat.shape[1] :].any() and patches.shape[-1] % 16 == 0
    torch.testing.assert_close(
        y.permute(0, 3, 1, 2), F.conv2d(x, weight, padding=padding), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("make", [_basic, _bottleneck])
@pytest.mark.parametrize("stride", [1, 2])
def test_a_residual_block_of_our_normalisations_is_the_plain_one(
    make: Any, stride: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.backends.cudnn.allow_tf32 = False
    small_blocks(monkeypatch)
    torch.manual_seed(0)
    block = make(8, 8 if make is _basic else 2, stride).to(DEVICE, memory_format=torch.channels_last)
    x = torch.randn(4, 8, 6, 6, device=DEVICE).to(memory_format=torch.channels_last).requires_grad_()
    state = {name: value.clone() for name, value in block.state_dict().items()}
    found = []
    for kernels in (True, False):
        monkeypatch.setattr(dispatch, "by_kernels", lambda x, kernels=kernels: kernels)
        # as a lane calls its net: parameters and running statistics are plain tensors
        own = {name: value.clone() for name, value in state.items()}
        trained = [own[name].requires_grad_() for name, _ in block.named_parameters()]
        y, again = functional_call(block, own, ((x, x),))
        loss = y.square().mean() + again.mean()
        found.append((y, *torch.autograd.grad(loss, (x, *trained)), *own.values()))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_stacked_residual_blocks_are_the_plain_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "by_kernels", lambda x: True)
    torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(0)
    block = _basic(8, 8, 1).to(DEVICE)
    x = torch.randn(2, 4, 8, 6, 6, device=DEVICE)
    states = {name: torch.stack([value, value]) for name, value in block.state_dict().items()}
    stacked, _ = vmap(lambda state, x: functional_call(block, state, ((x, x),)))(states, x)
    plain = torch.stack([copy.deepcopy(block)((one, one))[0] for one in x])
    torch.testing.assert_close(stacked, plain, rtol=1e-4, atol=1e-5)
    assert states["body.1.num_batches_tracked"].tolist() == [1, 1]
