"""Writing files so that nothing is ever half-written: temporary file, sync, rename."""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

TEMPORARY = ".writing"  # the suffix of a file not yet renamed; a leftover is a killed process's


def write_atomically(path: Path, content: bytes | str) -> None:
    temporary = path.with_name(path.name + TEMPORARY)
    with temporary.open("wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames in a folder last through a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_json(path: Path, value: Any) -> None:
    write_atomically(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def write_tensors(folder: Path, stem: str, tensors: Mapping[str, Tensor], note: str = "") -> str:
    """Save tensors with a note; the file's name, which comes back, ends in its checksum."""
    plain = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    content = safetensors.torch.save(plain, metadata={"note": note})
    name = f"{stem}.{checksum(content)}.safetensors"
    write_atomically(folder / name, content)
    return name


def read_tensors(path: Path) -> tuple[dict[str, Tensor], str]:
    """Tensors and note of a file that `write_tensors` wrote; ValueError where it is not as written."""
    content = path.read_bytes()
    if checksum(content) != path.name.split(".")[-2]:
        raise ValueError(f"{path.name} is truncated or altered: its checksum is wrong")
    header_bytes = int.from_bytes(content[:8], "little")
    note = json.loads(content[8 : 8 + header_bytes])["__metadata__"]["note"]
    return safetensors.torch.load(content), note


def checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
