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

from fedgela.operations import dispatch
from fedgela.operations.batch import gather
from fedgela.operations.convolution import convolve, convolve_and_pool
from fedgela.operations.dispatch import TRITON
from fedgela.operations.linear import linear
from fedgela.operations.loss import cross_entropy, losses_of, record
from fedgela.operations.pooling import pool
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
