"""Our kernels give torch's results, on a GPU, or anywhere in Triton's interpreter (TRITON_INTERPRET=1), which
takes float32 only."""

import os

import pytest
import torch
from torch import Tensor
from torch.func import vmap
from torch.nn import functional as F

from fedgela.operations.convolution import convolve
from fedgela.operations.dispatch import TRITON
from fedgela.operations.pooling import pool

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
