"""Clipping of several clients' gradients at once."""

import pytest
import torch
from torch import nn

from fedgela.training.optimiser import clip_by_client

LONGEST = 1.0


@pytest.mark.parametrize("lengths", [(0.2, 5.0), (0.0, 1.0)])
def test_each_client_is_clipped_by_itself_as_torch_clips_one(lengths: tuple[float, ...]) -> None:
    draw = torch.Generator().manual_seed(0)
    stacked = [torch.randn(len(lengths), *shape, generator=draw) for shape in ((3, 2), (4,))]
    for k, length in enumerate(lengths):
        norm = sum(g[k].square().sum() for g in stacked) ** 0.5
        for g in stacked:
            g[k] *= length / norm
    expected = []
    for k in range(len(lengths)):
        alone = [nn.Parameter(torch.zeros_like(g[k])) for g in stacked]
        for parameter, g in zip(alone, stacked, strict=True):
            parameter.grad = g[k].clone()
        nn.utils.clip_grad_norm_(alone, LONGEST)
        expected.append([parameter.grad for parameter in alone])
    clip_by_client(stacked, LONGEST)
    for k, gradients in enumerate(expected):
        torch.testing.assert_close([g[k] for g in stacked], gradients)
