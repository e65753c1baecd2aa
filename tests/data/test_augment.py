"""Augmentation: crop, flip and rotation as one map, from addressed draws."""

import math

import pytest
import torch
from torch import Tensor

from fedgela.data import augment
from fedgela.data.augment import DEGREES, PADDING, crop_flip_rotate


def gradient_image(h: int = 32, w: int = 32) -> Tensor:
    """Every pixel tells where it came from: channel 0 its row + 1, channel 1 its column + 1."""
    rows = torch.arange(1, h + 1).view(h, 1).expand(h, w)
    columns = torch.arange(1, w + 1).view(1, w).expand(h, w)
    return torch.stack([rows, columns]).to(torch.uint8)


def fixed(monkeypatch: pytest.MonkeyPatch, shift: tuple[float, float], flip: float, turn: float) -> None:
    """Let the draws be these numbers in [0, 1)."""
    values = {augment._SHIFT: shift, augment._FLIP: (flip,), augment._TURN: (turn,)}

    def uniform(draw: Tensor, stream: int, shape: tuple[int, ...]) -> Tensor:
        return torch.tensor(values[stream]).expand(shape).clone()

    monkeypatch.setattr(augment, "uniform", uniform)


def middle(cells: int) -> float:
    """A draw that gives no shift: the middle one of so many cells."""
    return (cells // 2 + 0.5) / cells


STILL = middle(2 * PADDING + 1)


def test_without_shift_flip_and_turn_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    fixed(monkeypatch, (STILL, STILL), flip=0.9, turn=0.5)
    image = gradient_image()[None]
    assert torch.equal(crop_flip_rotate(image, torch.tensor(0)), image.float())


def test_a_flip_mirrors_left_and_right(monkeypatch: pytest.MonkeyPatch) -> None:
    fixed(monkeypatch, (STILL, STILL), flip=0.1, turn=0.5)
    image = gradient_image()[None]
    assert torch.equal(crop_flip_rotate(image, torch.tensor(0)), image.flip(3).float())


@pytest.mark.parametrize(("dx", "dy"), [(4, 0), (-4, 2), (1, -3), (0, 4)])
def test_a_crop_shifts_by_whole_pixels_and_fills_with_black(
    dx: int, dy: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = 2 * PADDING + 1
    fixed(monkeypatch, ((dx + PADDING + 0.5) / cells, (dy + PADDING + 0.5) / cells), flip=0.9, turn=0.5)
    image = gradient_image()[None]
    padded = torch.nn.functional.pad(image.float(), [PADDING] * 4)
    top, left = PADDING + dy, PADDING + dx
    expected = padded[:, :, top : top + 32, left : left + 32]
    assert torch.equal(crop_flip_rotate(image, torch.tensor(0)), expected)


@pytest.mark.parametrize("size", [(32, 32), (24, 40)])
def test_a_rotation_turns_by_its_angle_in_pixels(
    size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    # also where the image is not square: the angle is one of pixels, not of grid coordinates
    h, w = size
    fixed(monkeypatch, (STILL, STILL), flip=0.9, turn=1.0)  # the largest angle
    out = crop_flip_rotate(gradient_image(h, w)[None], torch.tensor(0))[0]
    angle = math.radians(DEGREES)
    for row, column in [(h // 2 - 5, w // 2 + 6), (h // 2 + 4, w // 2 - 7)]:
        y, x = row + 0.5 - h / 2, column + 0.5 - w / 2
        source_x = math.cos(angle) * x - math.sin(angle) * y + w / 2
        source_y = math.sin(angle) * x + math.cos(angle) * y + h / 2
        assert abs(out[0, row, column].item() - 1 - math.floor(source_y)) <= 1
        assert abs(out[1, row, column].item() - 1 - math.floor(source_x)) <= 1


def test_samples_and_steps_are_augmented_differently_and_alike_for_the_same_draw() -> None:
    images = gradient_image().expand(8, 2, 32, 32)
    first = crop_flip_rotate(images, torch.tensor(5))
    assert torch.equal(first, crop_flip_rotate(images, torch.tensor(5)))
    assert not torch.equal(first, crop_flip_rotate(images, torch.tensor(6)))
    assert len({tuple(image.flatten().tolist()) for image in first}) == 8


def test_half_of_many_images_are_flipped() -> None:
    images = gradient_image().expand(400, 2, 32, 32)
    out = crop_flip_rotate(images, torch.tensor(1))
    flipped = (out[:, 1, 16, 8] > out[:, 1, 16, 24]).float().mean().item()
    assert 0.4 < flipped < 0.6
