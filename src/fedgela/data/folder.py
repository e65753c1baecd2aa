"""A folder of images as a data set: SITE/CLASS/*.jpg, where sites are natural clients, or CLASS/*.jpg."""

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedgela.data.arrays import split_dataset
from fedgela.data.dataset import Dataset
from fedgela.data.images import DEFAULT_SIZE, SUFFIXES, decode
from fedgela.data.split import own_tests
from fedgela.data.unreadable import Unreadable, without_unreadable
from fedgela.errors import UserError, prefixed, printable

LAYOUTS = "CLASS/*.jpg or SITE/CLASS/*.jpg, as it is or under train/ and test/"
PARTS = {"train": "train", "training": "train", "test": "test", "testing": "test"}  # as folders are called
SHOWN = 3  # kinds of other files in a note
DEEPEST = 4  # folders below the root: one more than any layout has
Places = list[tuple[tuple[str, ...], str]]  # of files: the folders below the root, and the name


@dataclass(frozen=True, order=True)
class Image:
    """One image file, and what the folders above it say of it."""

    site: str  # '' where there are none
    label: str
    test: bool
    path: Path


def load_folder(path: Path, image_size: int | None, unreadable: Unreadable) -> Dataset:
    root = root_of(path)
    with prefixed(path):
        images, passed_over = _images(root)
        decoded = decode([image.path for image in images], image_size or DEFAULT_SIZE)
        decoded.check_depth()
        x, read = without_unreadable(decoded, lambda i: str(images[i].path.relative_to(root)), unreadable)
        kept = [image for image, ok in zip(images, read, strict=True) if ok]
        return _dataset(path.resolve().name, kept, x, passed_over)


def root_of(path: Path) -> Path:
    """The folder above all images: for a path .../train with a folder test beside it, their parent."""
    root = path.resolve()
    beside = root.parent.iterdir() if _head((root.name,)) == "train" else ()
    return root.parent if any(_head((f.name,)) == "test" and f.is_dir() for f in beside) else root


def _dataset(name: str, images: list[Image], x: np.ndarray, notes: tuple[str, ...]) -> Dataset:
    classes, y = np.unique([image.label for image in images], return_inverse=True)
    sites, client = np.unique([image.site for image in images], return_inverse=True)
    natural = bool(images[0].site)
    if len(classes) < 2:
        raise UserError(f"holds one class only, {classes[0]}; there must be at least 2")
    test = np.array([image.test for image in images])
    if not test.any():
        test = own_tests(y, client if natural else None)
    return split_dataset(
        name,
        x,
        y,
        test,
        client if natural else None,
        class_names=tuple(classes.tolist()),
        client_names=tuple(sites.tolist()) if natural else (),
        notes=notes,
    )


def _images(root: Path) -> tuple[list[Image], tuple[str, ...]]:
    """All images, sorted, and a note of other files among them, if there are any."""
    found: Places = []
    folders: list[tuple[str, ...]] = []
    passed_over: Places = []
    for parts, files in walk(root, DEEPEST):
        folders.append(parts)
        found += [(parts, name) for name in files if is_image(name)]
        passed_over += [(parts, name) for name in files if not is_image(name)]
    if not found:
        other = Counter(Path(name).suffix.lower() for _, name in passed_over).most_common(1)
        besides = (
            f", but {other[0][1]} files of the kind {other[0][0] or 'without a suffix'}" if other else ""
        )
        raise UserError(f"holds no images ({', '.join(SUFFIXES)}){besides}; they are expected as {LAYOUTS}")
    has_train, has_test = _folder_of("train", found), _folder_of("test", found)
    if has_train and not has_test:
        raise UserError(
            f"has a folder {has_train} but no images in a folder test; add it, or give the folder {has_train}"
        )
    heads = {"train", "test"} if has_train else {"test"} if has_test else set()
    _check_heads(found, heads, bool(has_train))
    depth = _depth(found, heads)
    _check_empty(found, folders, heads, depth)
    images = []
    for parts, name in found:
        below = _below(parts, heads)
        site = below[0] if depth == 2 else ""
        images.append(
            Image(site, below[-1], _head(parts) == "test" and "test" in heads, root.joinpath(*parts, name))
        )
    if all(image.test for image in images):
        raise UserError("has a folder test but no training images")
    # other files beside the folders of classes may describe them; among the images they may be images, too
    filled = {parts for parts, _ in found}
    return sorted(images), _passed_over([name for parts, name in passed_over if parts in filled])


def _passed_over(names: list[str]) -> tuple[str, ...]:
    kinds = Counter(Path(name).suffix.lower() or "no suffix" for name in names).most_common()
    if not kinds:
        return ()
    listed = ", ".join(f"{count:,} of {printable(kind)}" for kind, count in kinds[:SHOWN])
    more = " and others" if len(kinds) > SHOWN else ""
    return (f"files among the images that are not read: {listed}{more}",)


def walk(root: Path, deepest: int | None = None) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """Every folder below a root, as its path's parts from there, with its files. Links are followed, but not
    in circles. A folder that may not be read is an error, since a class might be missing."""

    def fail(error: OSError) -> None:
        raise UserError(f"{error.filename}: cannot be read ({error.strerror})")

    for place, inner, files in os.walk(root, followlinks=True, onerror=fail):
        parts, here = Path(place).relative_to(root).parts, Path(place).resolve()
        inner[:] = sorted(
            name
            for name in inner
            if _visible(name)
            and (deepest is None or len(parts) < deepest)
            and not here.is_relative_to(Path(place, name).resolve())
        )
        yield parts, sorted(name for name in files if _visible(name))


def _visible(name: str) -> bool:
    return not name.startswith(".") and name != "__MACOSX"


def is_image(name: str) -> bool:
    return name.lower().endswith(SUFFIXES)


def _below(parts: tuple[str, ...], heads: set[str]) -> tuple[str, ...]:
    """The parts of a path without a leading train or test."""
    return parts[1:] if _head(parts) in heads else parts


def _head(parts: tuple[str, ...]) -> str:
    """'train' or 'test' if the first folder is called so (or Train, TEST, Training, testing), else ''."""
    return PARTS.get(parts[0].lower(), "") if parts else ""


def _folder_of(part: str, found: Places) -> str | None:
    """The name of the first folder of the images for this part, as it is spelt there."""
    names = sorted({parts[0] for parts, _ in found if _head(parts) == part})
    if len(names) > 1:
        raise UserError(f"has two folders for the {part} images, {names[0]} and {names[1]}; put them in one")
    return names[0] if names else None


def _check_heads(found: Places, heads: set[str], has_train: bool) -> None:
    for parts, name in found:
        if has_train and parts and _head(parts) not in heads:
            raise UserError(f"{'/'.join((*parts, name))} lies beside train and test, which hold all images")
        if len(parts) == 1 and _head(parts) in heads:
            raise UserError(
                f"{parts[0]}/{name} lies in no class: {parts[0]} is for classes in folders (a class of that "
                "name needs another one)"
            )


def _depth(found: Places, heads: set[str]) -> int:
    """1 for CLASS/*.jpg, 2 for SITE/CLASS/*.jpg."""
    example: dict[int, str] = {}
    for parts, name in found:
        example.setdefault(len(_below(parts, heads)), "/".join((*parts, name)))
    if len(example) > 1:
        shown = " but ".join(list(example.values())[:2])
        raise UserError(f"its images lie at different depths: {shown}\nexpected is {LAYOUTS}, one of the two")
    depth = next(iter(example))
    if depth not in (1, 2):
        raise UserError(f"{example[depth]} lies neither in CLASS nor in SITE/CLASS: expected is {LAYOUTS}")
    return depth


def _check_empty(found: Places, folders: list[tuple[str, ...]], heads: set[str], depth: int) -> None:
    """A UserError where a class, or a site, has no image at all; a site may well lack some classes."""
    filled = {_below(parts, heads) for parts, _ in found}
    below = [_below(parts, heads) for parts in folders]
    for what, place in (("site", 0), ("class", 1)) if depth == 2 else (("class", 0),):
        names = {parts[place] for parts in below if len(parts) > place}
        empty = sorted(names - {parts[place] for parts in filled})
        if empty:
            more = f" (and {len(empty) - 1} more)" if len(empty) > 1 else ""
            raise UserError(f"the {what} {empty[0]} has no images{more}")
