"""What a broken or malicious site may answer in place of its update."""

from collections.abc import Callable

import torch

from fedgela.flower.wire import About, Groups, decode, encode

Way = Callable[[Groups, About], None]


def tampered(answer: bytes, how: str) -> bytes:
    """The answer to a training message changed in one way; other answers as they are."""
    groups, about = decode(answer)
    if "samples" not in about or "model" not in groups:
        return answer
    if how == "nonsense":
        return b"nonsense"
    WAYS[how](groups, about)
    return encode(groups, about)


def weights(change: Callable[[torch.Tensor], torch.Tensor]) -> Way:
    """One tensor of the model changed."""

    def way(groups: Groups, about: About) -> None:
        name = next(iter(groups["model"]))
        groups["model"][name] = change(groups["model"][name])

    return way


def tensor(group: str, name: str, value: torch.Tensor) -> Way:
    def way(groups: Groups, about: About) -> None:
        groups.setdefault(group, {})[name] = value

    return way


def value(name: str, value: object) -> Way:
    def way(groups: Groups, about: About) -> None:
        about[name] = value

    return way


def _remove(groups: Groups, about: About) -> None:
    del groups["model"][next(iter(groups["model"]))]


WAYS: dict[str, Way] = {
    "NaN": weights(lambda w: torch.full_like(w, float("nan"))),
    "infinity": weights(lambda w: torch.full_like(w, float("inf"))),
    "norm": weights(lambda w: torch.full_like(w, 1e9)),
    "shape": weights(lambda w: torch.zeros(3)),
    "missing": _remove,
    "additional": tensor("model", "backdoor", torch.zeros(1)),
    "samples": value("samples", 10**9),
    "measure": tensor("measures", "note", torch.zeros(1)),
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
    "measure": "sent the measure note",
    "nonsense": "no readable message",
}
