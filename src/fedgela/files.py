"""Writing files so that none is ever half-written (temporary file, sync, rename), and reading them."""

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from fedgela.errors import UserError

TEMPORARY = ".writing"  # the suffix of a file until it is renamed; killed processes leave such files


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write a file. An OSError names `path`, and leaves nothing behind that would fill a full disk."""
    temporary = path.with_name(path.name + TEMPORARY)
    try:
        with named(path):
            with temporary.open("wb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())
            temporary.rename(path)
            sync_folder(path.parent)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


@contextlib.contextmanager
def named(path: Path) -> Iterator[None]:
    """Puts this file's name into an OSError from within; those of write and fsync have none."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from None


def sync_folder(folder: Path) -> None:
    """Make sure that renames in a folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def check_folder(folder: Path, option: str = "--out") -> None:
    """A UserError where a folder cannot be written to, or not be made: before the work is done, not after.

    The folder is not made here: a command that fails for another reason should leave nothing behind.
    """
    place = folder
    try:
        place = next(part for part in (folder, *folder.parents) if part.exists())
        if not place.is_dir():
            raise UserError(f"{option}: {place} is a file, not a folder")
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise UserError(f"{option}: {place} cannot be written to ({error.strerror})") from None


def check_file(path: Path, kind: str, *read: Path) -> None:
    """A UserError where a command that reads these files or folders cannot write this file of --out."""
    if path.is_dir():
        raise UserError(f"--out: {path} is a folder; name {kind} file")
    check_folder(path.parent)
    check_apart(path, *read)


def check_apart(out: Path, *read: Path, option: str = "--out") -> None:
    """A UserError where what is to be written is also read, or lies in a folder that is: it may be the only
    copy of somebody's data."""
    # writing replaces a link itself, and what it leads to may be read by another name: check both
    places = (out.resolve(), out.parent.resolve() / out.name)
    for path in read:
        whole = path.resolve()
        same = out.exists() and path.exists() and out.samefile(path)  # by a second name on the disk, too
        if same or whole in places:
            raise UserError(f"{option}: {out} is read by this command, and would be overwritten")
        if any(place.is_relative_to(whole) for place in places):
            raise UserError(f"{option}: {out} lies in {path}, which this command reads; name another place")


def write_json(path: Path, value: Any) -> None:
    write_atomically(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def write_tensors(folder: Path, stem: str, tensors: Mapping[str, Tensor], note: str = "") -> str:
    """Save tensors with a note in a file whose name ends in its checksum; returns the name."""
    plain = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    content = safetensors.torch.save(plain, metadata={"note": note})
    name = f"{stem}.{checksum(content)}.safetensors"
    write_atomically(folder / name, content)
    return name


def read_tensors(path: Path) -> tuple[dict[str, Tensor], str]:
    """The tensors and the note of a file that `write_tensors` wrote; ValueError if it has changed since."""
    with named(path):
        content = path.read_bytes()
    if checksum(content) != path.name.split(".")[-2]:
        raise ValueError(f"{path.name} is truncated or altered: its checksum is wrong")
    header_bytes = int.from_bytes(content[:8], "little")
    note = json.loads(content[8 : 8 + header_bytes])["__metadata__"]["note"]
    return safetensors.torch.load(content), note


def read_entries(path: Path, entries: Collection[str]) -> dict[str, Tensor]:
    """A few tensors of a file, without reading the rest, and so without a look at the checksum: for a file
    that this process has written or checked itself. They are cut out by hand: where Ctrl-C comes in the
    library's own `get_tensor`, torch raises a ValueError, by which a run would fail instead of ending."""
    kept: dict[str, Any] = {}
    parts: list[bytes] = []
    at = 0
    with named(path), path.open("rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(header_bytes))
        for name in entries:
            start, end = header[name]["data_offsets"]
            file.seek(8 + header_bytes + start)
            parts.append(file.read(end - start))
            kept[name] = {**header[name], "data_offsets": [at, at + end - start]}
            at += end - start
    head = json.dumps(kept).encode()
    return safetensors.torch.load(b"".join([len(head).to_bytes(8, "little"), head, *parts]))


def checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
