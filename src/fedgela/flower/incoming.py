"""What the server takes from a site, checked when it comes: the counterpart of outgoing.py.

A site may be broken, or hostile. What is not exactly what its task asks for is that site's fault, in words
for the run's record; after these checks nothing has to doubt an answer's names, types, shapes or ranges.
"""

import math
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedgela.algorithms import FedAvg
from fedgela.errors import printable
from fedgela.flower import sharing
from fedgela.flower.exchange import Replies
from fedgela.flower.masks import SEED_BYTES, is_public_key
from fedgela.flower.outgoing import ABOUT, MEASURES, statistics_like, statistics_of
from fedgela.flower.wire import About, Groups, decode
from fedgela.inputs import InputSpec, Kind
from fedgela.models import State

Answer = tuple[Groups, About]

# beyond what any site has: the server makes a net for a sample of this size, of a few gigabytes at most by
# default, and a head for the classes, whose ETF takes the time of their number cubed
MOST_SAMPLES, MOST_VALUES, MOST_WORDS, MOST_CLASSES = 10**12, 10**8, 10**7, 10**4
MOST_ALONG: dict[Kind, int] = {"image": 4096, "features": 10**6, "tokens": 10**6}  # along one dimension
LONGEST = 200  # characters of a text that goes into the record
MOST_SECONDS = 10**8  # of training in a round: three years
ABSURD = 100.0  # an update that moves the model by so many times its own length
ROUNDING = 1e-6  # of sums


class Unsound(Exception):
    """What is wrong with a site's answer."""


@dataclass(frozen=True)
class Heard:
    """What became of a question, by site in their order."""

    sound: dict[int, Answer]
    unsound: dict[int, str]  # what is wrong with the answer, or why the site refuses one
    missing: dict[int, str]  # why there is none


def hear(replies: Replies, check: Callable[[int, Groups, About], None]) -> Heard:
    """`check` raises Unsound where a site's answer cannot be used."""
    heard = Heard({}, {}, {site: _line(why) for site, why in sorted(replies.faults.items())})
    for site, payload in sorted(replies.payloads.items()):
        try:
            answer = _read(payload)
            check(site, *answer)
        except Unsound as error:
            # cut as a whole, too: a shape alone may have millions of dimensions
            heard.unsound[site] = _line(str(error)[: 2 * LONGEST])
        else:
            heard.sound[site] = answer
    return heard


def _read(payload: bytes) -> Answer:
    try:
        groups, about = decode(payload)
    except ValueError as error:
        raise Unsound(str(error)) from None
    if "error" in about:
        raise Unsound(_brief(about["error"]))
    return groups, about


# -- one check a task ------------------------------------------------------------------------------


def check_classes(groups: Groups, about: About) -> None:
    _check_about("classes", about)
    _check_tensors(groups, {})
    names = about["classes"]
    if not names or not all(isinstance(name, str) for name in names):
        raise Unsound("sent no list of class names")
    if len(names) > MOST_CLASSES:
        raise Unsound(f"has {len(names)} classes, and more than {MOST_CLASSES} need a federation with a list")
    if any(not name.strip() or len(name) > LONGEST for name in names):
        raise Unsound(f"has a class name that is empty or longer than {LONGEST} characters")
    if hidden := [name for name in names if not name.strip().isprintable()]:
        raise Unsound(f"has the class name {hidden[0]!a}, with characters that no screen shows")
    stripped = [name.strip() for name in names]
    if len(set(stripped)) < len(stripped):
        raise Unsound("has the same class name twice")
    if not about["named"]:
        if not all(name.isdecimal() for name in stripped):
            raise Unsound("has classes without names that are no numbers")
        if any(int(name) >= MOST_CLASSES for name in stripped):
            raise Unsound(f"has a class with a number of {MOST_CLASSES} or more")


def check_joining(groups: Groups, about: About, algorithm: FedAvg, C: int) -> None:
    _check_about("join", about)
    spec = spec_of(about)
    samples, tested = about["samples"], about["tested"]
    if not (1 <= samples <= MOST_SAMPLES and 0 <= tested <= MOST_SAMPLES):
        raise Unsound(f"says that it has {_brief(samples)} training and {_brief(tested)} test samples")
    sums: State = {}
    if spec.kind != "tokens":
        sums = {name: torch.zeros(spec.shape[0], dtype=torch.float64) for name in ("total", "squares")}
    like = {"sums": sums, "statistics": statistics_like(algorithm, C)}
    _check_tensors(groups, like, besides=(sharing.GROUP,))
    if sums:
        _check_sums(groups["sums"]["total"], groups["sums"]["squares"], spec, samples)
    _check_statistics(groups.get("statistics", {}), algorithm, samples, C)
    if shared := groups.get(sharing.GROUP, {}):
        _check_shared("join", shared, C, None)
        told = {"train": samples, "test": tested}
        if {part: _count(value, told[part]) for part, value in shared.items()} != told:
            raise Unsound(f"sent {sharing.GROUP} of another number of samples")


def spec_of(about: About) -> InputSpec:
    """What a joining site's samples look like."""
    kind, shape, words, columns = (about[key] for key in ("kind", "shape", "vocabulary", "columns"))
    dimensions = 3 if kind == "image" else 1
    if (
        kind not in MOST_ALONG
        or len(shape) != dimensions
        or not all(type(length) is int and 0 < length <= MOST_ALONG[kind] for length in shape)
        or math.prod(shape) > MOST_VALUES
        or not (0 < words <= MOST_WORDS if kind == "tokens" else words == 0)
        or len(columns) > LONGEST
    ):
        raise Unsound(f"has samples that cannot be, {_brief(kind)} of shape {_brief(shape)}")
    return InputSpec(kind, tuple(shape), words, columns)


def check_trained(
    groups: Groups,
    about: About,
    like: Groups,
    model: State,
    samples: int,
    tested: int,
    by_class: Tensor | None,
) -> None:
    """An update as `like` is, of a site that joined with so many samples, `by_class` [C] test samples where
    it shares them, and that was sent `model`."""
    _check_about("train", about)
    _check_tensors(groups, like, besides=("measures", sharing.GROUP))
    measures = _measures("train", groups)
    _check_right(measures["right"], tested)
    if measures["loss_count"] <= 0:
        raise Unsound("has trained on no sample")
    if about["samples"] != samples:
        raise Unsound(
            f"says that it has {_brief(about['samples'])} samples; when it joined, it had {samples}"
        )
    if not 0 <= about["seconds"] <= MOST_SECONDS:
        raise Unsound(f"says that it trained for {about['seconds']} s")
    for name, value in groups.get("extra", {}).items():
        if not value.is_floating_point() and _count(value, samples) > samples:
            raise Unsound(f"sent extra/{name} with counts that it cannot have")
    _check_shared("train", groups.get(sharing.GROUP, {}), 0 if by_class is None else len(by_class), by_class)
    # of a masked change, in whole numbers, only the sum can be looked at
    update = {name: value for name, value in groups.get("model", {}).items() if value.is_floating_point()}
    change = {name: value.to(model[name].device) - model[name] for name, value in update.items()}
    check_distance(change, model)


def check_distance(change: State, model: State) -> None:
    """Unsound where a change is absurdly far from the model that it began with."""
    moved = _length(list(change.values()))
    if not moved <= ABSURD * (1.0 + _length([model[name] for name in change])):
        raise Unsound(f"sent a model that is {moved:.3g} away from the global one")


def check_scored(task: str, groups: Groups, about: About, tested: int, by_class: Tensor | None) -> None:
    """How many of its test samples a model got right: the global one, or a fine-tuned one."""
    _check_about(task, about)
    _check_tensors(groups, {}, besides=("measures", sharing.GROUP))
    _check_right(_measures(task, groups)["right"], tested)
    _check_shared(task, groups.get(sharing.GROUP, {}), 0 if by_class is None else len(by_class), by_class)


def check_key(groups: Groups, about: About) -> None:
    _check_about("key", about)
    _check_tensors(groups, {})
    _check_key(about["key"])


def check_seeds(groups: Groups, about: About, absent: Collection[int]) -> None:
    """Of the site's own mask, and of those with the sites that are absent."""
    _check_about("unmask", about)
    _check_tensors(groups, {})
    if about["pairs"].keys() != {str(site) for site in absent}:
        raise Unsound("sent seeds of other masks than it was asked for")
    for value in (about["own"], *about["pairs"].values()):
        _check_secret(value)
    _check_key(about["key"])


# -- parts -----------------------------------------------------------------------------------------


def _check_about(task: str, about: About) -> None:
    expected = ABOUT[task]
    for name in sorted(expected.keys() ^ about.keys()):
        raise Unsound(f"{'sent' if name in about else 'did not send'} the value {_brief(name)}")
    for name, kind in expected.items():
        if type(about[name]) is not kind:  # True is no number of samples
            raise Unsound(f"sent {name} as {_brief(about[name])}, which is no {kind.__name__}")


def _check_tensors(groups: Groups, like: Groups, besides: Sequence[str] = ()) -> None:
    """Names, shapes and types as those of `like`, and finite; groups `besides` are checked elsewhere."""
    for group in sorted(groups.keys() - like.keys() - set(besides)):
        raise Unsound(f"sent {_brief(group)}, which nobody asked for")
    for group, expected in like.items():
        got = groups.get(group, {})
        for name in sorted(expected.keys() ^ got.keys()):
            raise Unsound(f"{'sent' if name in got else 'did not send'} the tensor {group}/{_brief(name)}")
        for name, example in expected.items():
            value = got[name]
            if value.shape != example.shape:
                raise Unsound(f"sent {group}/{name} as {list(value.shape)}, not {list(example.shape)}")
            if value.dtype != example.dtype:
                raise Unsound(f"sent {group}/{name} as {_type(value)}, not {_type(example)}")
            if not value.isfinite().all():
                raise Unsound(f"sent {group}/{name} with values that are no finite numbers")


def _check_secret(value: object) -> None:
    if not (isinstance(value, str) and re.fullmatch(rf"[0-9a-f]{{{2 * SEED_BYTES}}}", value)):
        raise Unsound("sent a key or a seed that is none")


def _check_key(value: str) -> None:
    """Every other site would refuse to mask with a key that is none, and the round be lost for all."""
    _check_secret(value)
    if not is_public_key(bytes.fromhex(value)):
        raise Unsound("sent a key or a seed that is none")


def _check_statistics(sent: State, algorithm: FedAvg, samples: int, C: int) -> None:
    """Within what a site has that holds one class, and one that holds as much of all: everybody's training
    rests on their mean."""
    counts = torch.zeros(2, C, dtype=torch.int64)
    counts[0, 0], counts[1] = samples, 1
    for name, possible in statistics_of(algorithm, counts).items():
        low, high = (value.double() for value in possible.aminmax())
        slack = ROUNDING * (high - low)
        if not ((sent[name] >= low - slack) & (sent[name] <= high + slack)).all():
            raise Unsound(f"sent statistics/{name} with values that no site can have")


def _count(value: Tensor, most: int) -> int:
    """The sum of counts that together are `most` at most, or else more than that. Each is looked at by
    itself, too: a sum of int64 wraps around."""
    return int(value.sum()) if ((value >= 0) & (value <= most)).all() else most + 1


def _measures(task: str, groups: Groups) -> dict[str, float]:
    measures = groups.get("measures", {})
    for name in sorted(MEASURES[task] ^ measures.keys()):
        raise Unsound(f"{'sent' if name in measures else 'did not send'} the measure {_brief(name)}")
    for name, value in measures.items():
        if value.shape != (1,) or not value.isfinite().all():
            raise Unsound(f"did not send {name} as one finite number")
    return {name: float(value) for name, value in measures.items()}


def _check_right(right: float, tested: int) -> None:
    if not (0 <= right <= tested and right == int(right)):
        raise Unsound(f"says that {right:g} of its {tested} test samples are right")


def _check_sums(total: Tensor, squares: Tensor, spec: InputSpec, samples: int) -> None:
    """Sums by channel that samples of this kind can have, and whose mean a net can be fed with."""
    values = samples * (math.prod(spec.shape[1:]) if spec.kind == "image" else 1)
    mean, square = total / values, squares / values
    possible = mean.float().isfinite() & square.sqrt().float().isfinite()
    possible &= mean.square() <= square * (1 + ROUNDING)  # a variance is not below zero
    if spec.kind == "image":  # of values from 0 to 1
        possible &= (square <= mean * (1 + ROUNDING)) & (mean <= 1 + ROUNDING)
    if not possible.all():
        raise Unsound("sent sums over its samples' values that cannot be")


def _check_shared(task: str, shared: State, C: int, tested: Tensor | None) -> None:
    if problem := sharing.problem(task, shared, C, tested):
        raise Unsound(problem)


def _length(tensors: Sequence[Tensor]) -> float:
    return math.sqrt(sum(float(value.double().square().sum()) for value in tensors))


def _type(value: Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")


def _brief(value: Any) -> str:
    """A site's own words, as one short line."""
    return _line(str(value))[:LONGEST]


def _line(text: str) -> str:
    """Without what a terminal would act upon."""
    return printable(" ".join(text.split()))
