"""A net's first convolution. With three input channels the libraries' kernels make poor use of a GPU; in bf16
it is computed there as one matrix product, of all pixels' patches with the weights."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedgela.operations import dispatch

ALIGNED = 16  # a row's length must be a multiple of this for fast matrix products
MOST_NUMBERS = 64  # in a patch, up to which this pays


class StemConv2d(nn.Conv2d):
    """nn.Conv2d for input that needs no gradient: images."""

    def forward(self, input: Tensor) -> Tensor:
        if not self._fits(input):
            return super().forward(input)
        (side, _), padding = self.kernel_size, int(self.padding[0])
        patches = patches_of(input.to(torch.bfloat16), side, padding)
        # in the order of the patches: row by row, the channels of a pixel together
        weight = self.weight.to(torch.bfloat16).permute(0, 2, 3, 1).flatten(1)
        y = patches @ F.pad(weight, (0, patches.shape[-1] - weight.shape[1])).t()
        return y.permute(0, 3, 1, 2)

    def _fits(self, x: Tensor) -> bool:
        return (
            dispatch.by_kernels(x)
            and torch.is_autocast_enabled("cuda")
            and torch.get_autocast_dtype("cuda") == torch.bfloat16
            and not torch.compiler.is_compiling()
            and not dispatch.transformed()
            and not x.requires_grad
            and self.bias is None
            and self.weight[0].numel() <= MOST_NUMBERS
            and self.kernel_size[0] == self.kernel_size[1]
            and self.padding[0] == self.padding[1]
            and self.stride == self.dilation == (1, 1)
            and self.groups == 1
            and self.padding_mode == "zeros"
        )


@torch.no_grad()
def patches_of(x: Tensor, side: int, padding: int) -> Tensor:
    """The patch of side x side pixels with all channels around every pixel, [B, H, W, numbers], padded with
    zeros to a multiple of ALIGNED numbers."""
    image = F.pad(x, (padding,) * 4).permute(0, 2, 3, 1).contiguous()
    B, H, W, C = image.shape
    H, W = H - side + 1, W - side + 1
    patches = x.new_zeros(B, H, W, -(-side * side * C // ALIGNED) * ALIGNED)
    of_image, of_row, of_pixel, _ = image.stride()
    windows = image.as_strided((B, H, W, side, side * C), (of_image, of_row, of_pixel, of_row, 1))
    patches[..., : side * side * C].view(windows.shape).copy_(windows)
    return patches
