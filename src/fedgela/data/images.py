"""Decoding images of any size and kind to one square size."""

import io
import os
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedgela.errors import UserError, first_line

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff")
SHALLOW = 2**13  # a 16-bit image without larger values has at most 32 levels left as an 8-bit image
DEFAULT_SIZE = 32


@dataclass(frozen=True)
class Decoded:
    """Images as uint8 [n, size, size, 3], or [n, size, size] if all are grey; and those that failed."""

    x: np.ndarray
    failed: dict[int, str]  # place -> why
    deepest: npt.NDArray[np.int64]  # [n]: no 16-bit image has a larger value; 0 for other images

    def check_depth(self) -> None:
        """Refuse 16-bit files with 12-bit values, as some scanners write them: as 8-bit images they would
        lose nearly all contrast. Where only some files are like this they may just be dark: a warning."""
        deep = self.deepest[self.deepest > 0]
        shallow = deep[deep < SHALLOW]
        if not len(shallow):
            return
        largest = int(shallow.max())
        levels = f"no value above {largest}: 8 bits would keep {largest // 256 + 1} levels of them"
        if len(shallow) == len(deep):
            raise UserError(
                f"its 16-bit images have {levels}; save them with their values spread over all 16 bits, or "
                "as 8-bit images"
            )
        warnings.warn(
            f"{len(shallow)} of its {len(deep)} 16-bit images have {levels}; if they are of another scanner, "
            "save them with their values spread over all 16 bits",
            stacklevel=2,
        )


def decode(images: Sequence[Path | bytes], size: int, channels: int | None = None) -> Decoded:
    """Read images, turn them upright, and resize them; in threads, since Pillow's decoders release the GIL.
    With `channels` 1 all become grey, with 3 all are in colour; None keeps grey what is all grey."""
    try:
        import PIL.Image
    except ImportError:
        raise UserError("images are read with Pillow, which is missing: pip install 'fedgela[hub]'") from None
    x = np.zeros((len(images), size, size, 3), dtype=np.uint8)
    colour = np.zeros(len(images), dtype=bool)
    failed: dict[int, str] = {}
    deepest = np.zeros(len(images), dtype=np.int64)
    paged = np.zeros(len(images), dtype=bool)

    def one(i: int) -> None:
        source = images[i]
        try:
            with PIL.Image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as image:
                deepest[i] = _deepest(image)
                paged[i] = image.format == "TIFF" and getattr(image, "is_animated", False)
                pixels = _pixels(image, size, channels)
        except Exception as error:  # damaged files make decoders raise anything
            failed[i] = _why(error)
            return
        colour[i] = pixels.ndim == 3
        x[i] = pixels if colour[i] else pixels[..., None]

    with warnings.catch_warnings(), ThreadPoolExecutor(os.cpu_count()) as pool:
        warnings.simplefilter("ignore")  # Pillow's, which name no file
        list(pool.map(one, range(len(images))))
    if paged.any():  # TIFF stacks; other formats' further pages are only previews
        warnings.warn(
            f"{paged.sum()} of {len(images)} images are TIFF files of several pages, of which the first is "
            "read",
            stacklevel=2,
        )
    coloured = colour.any() if channels is None else channels == 3
    return Decoded(x if coloured else x[..., 0].copy(), dict(sorted(failed.items())), deepest)


def _deepest(image: Any) -> int:
    """A bound that no value of a 16-bit image exceeds; 0 for other images."""
    if image.mode.startswith("I;16"):
        return max(1, int(np.asarray(image).max()))
    # of colour Pillow decodes the upper eight bits only, and says so nowhere else
    if image.format in ("PNG", "TIFF") and any(";16" in str(tile[3]) for tile in image.tile):
        return 256 * int(np.asarray(image.convert("RGB")).max()) + 255
    return 0


def _why(error: Exception) -> str:
    """The decoder's message, without the address of a buffer that Pillow puts into it."""
    text = first_line(error)
    return "not an image" if text.startswith("cannot identify image file") else text


def _pixels(image: Any, size: int, channels: int | None) -> np.ndarray:
    """[size, size] for a grey image or where one channel is wanted, else [size, size, 3]."""
    from PIL import Image, ImageOps

    image.draft(None, (2 * size, 2 * size))  # has a JPEG decoded at the smallest scale that is large enough
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I;16"):  # 16 bits a pixel are scaled to 8; convert("L") would clip them
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    elif image.mode in ("I", "F"):
        raise ValueError("32 bits a pixel: their range is not known")
    grey = image.mode in ("1", "L", "LA", "La") or channels == 1
    image = image.convert("L" if grey else "RGB")
    if image.size != (size, size):
        image = image.resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(image)
