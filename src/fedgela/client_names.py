"""The names of natural clients in their data, and finding a client by what a user calls it."""

import numpy as np

from fedgela.config import Experiment
from fedgela.data import Federation
from fedgela.errors import UserError, did_you_mean, printable


def client_names(experiment: Experiment, federation: Federation) -> list[str]:
    """The names of clients 0, 1, ..., or `id 7` where only ids are known; empty where clients only have
    numbers. Where a natural client was split into several, these share its name."""
    data = federation.data
    if experiment.partition != "natural" or data.client_train is None:
        return []
    owner = federation.train.owner.numpy()
    known, first = np.unique(owner, return_index=True)
    ids = dict(zip(known.tolist(), data.client_train[first].tolist(), strict=True))
    if not data.client_names:
        if all(id == k for k, id in ids.items()):
            return []
        return [f"id {ids[k]}" if k in ids else "" for k in range(federation.clients)]
    return [printable(data.client_names[ids[k]]) if k in ids else "" for k in range(federation.clients)]


def find_client(text: str, experiment: Experiment, federation: Federation) -> int:
    """A client's number, from its name, its id in the data, or its number; `#3` is never taken for an id."""
    names = client_names(experiment, federation)
    wanted = [text, f"id {text}"]
    found = [k for k, name in enumerate(names) if name in wanted]
    if len(found) == 1:
        return found[0]
    if found:
        numbers = ", ".join(f"#{k}" for k in found)
        raise UserError(f"--client: {text} was split into several clients: give one of {numbers}")
    has_ids = any(name.startswith("id ") for name in names)
    number = text.removeprefix("#")
    if number.isdecimal() and int(number) < federation.clients and (text.startswith("#") or not has_ids):
        return int(number)
    there = f"clients 0 to {federation.clients - 1}"
    if names:
        listed = [name.removeprefix("id ") if has_ids else name for name in names if name]
        shown = ", ".join(listed[:5]) + (", ..." if len(listed) > 5 else "")
        there = f"{shown}{did_you_mean(text, listed)}, or by number #0 to #{federation.clients - 1}"
    raise UserError(f"--client: there is no client {text!r}; there are {there}")
