"""Messages as bytes, and back: named groups of tensors, and a few plain values about them (safetensors)."""

import json
from collections.abc import Mapping
from typing import Any, Literal

import safetensors.torch
import torch

from fedgela.algorithms import Update
from fedgela.models import State
from fedgela.rounds import Visit

Wire = Literal["fp32", "bf16", "fp16"]
Groups = dict[str, State]
About = dict[str, Any]

_HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
_TYPES = {
    torch.float64,
    torch.float32,
    *_HALF.values(),
    torch.int64,
    torch.int32,
    torch.bool,
}  # that tensors here have
HALVED = ("model", "extra")  # the groups that may go as 16 bits: the large ones
# the parts of a visit that are single tensors
SINGLE_TENSORS = ("loss_sum", "loss_count", "classifier", "right", "right_on_union", "tracked")


def encode(groups: Mapping[str, State], about: About, wire: Wire = "fp32") -> bytes:
    tensors: State = {}
    seen: set[int] = set()  # safetensors wants each tensor to have a memory of its own
    for group, state in groups.items():
        for name, value in state.items():
            value = value.detach().cpu().contiguous()
            if wire != "fp32" and group in HALVED and value.dtype == torch.float32:
                value = value.to(_HALF[wire])
            if value.data_ptr() in seen:
                value = value.clone()
            seen.add(value.data_ptr())
            tensors[f"{group}/{name}"] = value
    content: bytes = safetensors.torch.save(tensors, metadata={"about": json.dumps(about)})
    return content


def decode(content: bytes) -> tuple[Groups, About]:
    """ValueError where the bytes are no message."""
    try:
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        about: About = json.loads(header["__metadata__"]["about"])
        tensors = safetensors.torch.load(content)
    except (ValueError, KeyError, TypeError, RecursionError, safetensors.SafetensorError) as error:
        raise ValueError(f"no readable message ({type(error).__name__})") from None
    if not isinstance(about, dict):
        raise ValueError("no readable message (what it says of itself is no table)")
    groups: Groups = {}
    for key in sorted(tensors):  # safetensors has another order each time, which nothing may depend on
        value = tensors[key]
        if value.dtype not in _TYPES:
            raise ValueError(f"no readable message ({key[:100]} is of the type {value.dtype})")
        group, _, name = key.partition("/")
        if group in HALVED and value.dtype in _HALF.values():
            value = value.float()
        groups.setdefault(group, {})[name] = value
    return groups, about


def groups_of(visit: Visit) -> Groups:
    measures = {name: getattr(visit, name) for name in SINGLE_TENSORS if getattr(visit, name) is not None}
    update = visit.update
    return {
        "model": update.model,
        "extra": update.extra,
        "own_norm": visit.own_norm,
        "measures": measures,
    }


def visit_of(groups: Groups, client: int, samples: int) -> Visit:
    """`client` is who was asked: a reply does not say who sends it."""
    update = Update(client, samples, groups.get("model", {}), groups.get("extra", {}))
    return Visit(update, groups.get("own_norm", {}), **groups.get("measures", {}))
