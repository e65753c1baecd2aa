"""Augmentation of a training batch on its device, by addressed draws, which are the same on CPU and GPU."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from fedgela.randomness import uniform

PADDING = 4  # pixels that a crop may move by
DEGREES = 15.0

# streams of a step's draws; an algorithm's own streams count from 0
_SHIFT, _FLIP, _TURN = 1001, 1002, 1003


def crop_flip_rotate(images: Tensor, draw: Tensor) -> Tensor:
    """Random crop with 4 pixels of black padding, horizontal flip, rotation by up to 15 degrees, as the
    official code has them for CIFAR-100; uint8 [B, c, h, w] in, float of the same range out.

    All three together are one affine map of the sampling grid; every output pixel takes the nearest one.
    """
    B, _, h, w = images.shape
    shift = (uniform(draw, _SHIFT, (B, 2)) * (2 * PADDING + 1)).floor() - PADDING  # whole pixels
    flip = torch.where(uniform(draw, _FLIP, (B,)) < 0.5, -1.0, 1.0)
    turn = (2 * uniform(draw, _TURN, (B,)) - 1) * math.radians(DEGREES)
    cos, sin = turn.cos(), turn.sin()
    # grid coordinates run from -1 to 1 over a side: turn the output's, flip, then shift by pixels
    rows = [
        torch.stack([flip * cos, -flip * sin * h / w, 2 * shift[:, 0] / w], dim=1),
        torch.stack([sin * w / h, cos, 2 * shift[:, 1] / h], dim=1),
    ]
    # F.affine_grid written out, since vmap has no rule for it
    x = ((2 * torch.arange(w, device=images.device) + 1) / w - 1).expand(h, w)
    y = ((2 * torch.arange(h, device=images.device) + 1) / h - 1)[:, None].expand(h, w)
    pixels = torch.stack([x, y, torch.ones_like(x)], dim=2).view(h * w, 3)
    grid = (pixels @ torch.stack(rows, dim=1).mT).view(B, h, w, 2)
    return F.grid_sample(images.float(), grid, mode="nearest", padding_mode="zeros", align_corners=False)
