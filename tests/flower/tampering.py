"""What a broken or malicious site may answer in place of its update."""

from collections.abc import Callable

import torch

from fedgela.flower.wire import About, decode, encode
from fedgela.models import State


def tampered(answer: bytes, how: str) -> bytes:
    """The answer to a training message changed in one way; other answers as they are."""
    groups, about = decode(answer)
    if "samples" not in about or "model" not in groups:
        return answer
    if how == "nonsense":
        return b"nonsense"
    WAYS[how](groups["model"], about)
    return encode(groups, about)


def _filled(value: float) -> Callable[[State, About], None]:
    def fill(model: State, about: About) -> None:
        name = next(iter(model))
        model[name] = torch.full_like(model[name], value)

    return fill


def _reshape(model: State, about: About) -> None:
    model[next(iter(model))] = torch.zeros(3)


def _remove(model: State, about: About) -> None:
    del model[next(iter(model))]


def _add(model: State, about: About) -> None:
    model["backdoor"] = torch.zeros(1)


def _boast(model: State, about: About) -> None:
    about["samples"] = 10**9


WAYS: dict[str, Callable[[State, About], None]] = {
    "NaN": _filled(float("nan")),
    "infinity": _filled(float("inf")),
    "norm": _filled(1e9),
    "shape": _reshape,
    "missing": _remove,
    "additional": _add,
    "samples": _boast,
}

# what the server says of each
TOLD = {
    "NaN": "no finite numbers",
    "infinity": "no finite numbers",
    "norm": "away from the global one",
    "shape": "as [3], not",
    "missing": "did not send the tensor",
    "additional": "sent the tensor model/backdoor",
    "samples": "when it joined, it had",
    "nonsense": "no readable message",
}
