"""Backbone weights from a .safetensors file: a finished run's global model, or any with the same names."""

from pathlib import Path

import safetensors
import torch
from safetensors.torch import load_file
from torch import nn

from fedgela.errors import UserError


@torch.no_grad()
def load_weights(path: Path, module: nn.Module, prefixes: tuple[str, ...]) -> None:
    """Load a file's entries into a module. Their names are the module's behind one of these prefixes.

    Entries that the module does not have (a head, a projection) are ignored; all that it has must be there.
    """
    try:
        tensors = load_file(path)
    except (OSError, safetensors.SafetensorError) as error:
        raise UserError(f"weights: {path} cannot be read as safetensors ({error})") from None
    state = module.state_dict()
    wanted = {name for name, value in state.items() if value.is_floating_point()}  # counters may be missing
    missing = {prefix: [n for n in state if n in wanted and prefix + n not in tensors] for prefix in prefixes}
    prefix = min(prefixes, key=lambda p: len(missing[p]))
    if missing[prefix]:
        first = missing[prefix][0]
        raise UserError(
            f"weights: {path} lacks {len(missing[prefix])} of the model's {len(wanted)} tensors, "
            f"such as {prefix + first!r}"
        )
    for name in wanted:
        value, found = state[name], tensors[prefix + name]
        if value.shape != found.shape:
            raise UserError(
                f"weights: {prefix + name!r} of {path} has the shape {list(found.shape)}, "
                f"the model's has {list(value.shape)}"
            )
        value.copy_(found)
