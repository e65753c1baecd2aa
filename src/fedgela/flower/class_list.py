"""A federation's list of classes: made of the sites' own names, and their labels as places in it."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch

from fedgela.data.dataset import Dataset
from fedgela.data.label_numbers import are_names, places_of
from fedgela.errors import UserError


def stripped(names: Iterable[str]) -> tuple[str, ...]:
    """Blanks around a name are nobody's intention."""
    return tuple(name.strip() for name in names)


def together(named: Mapping[str, Sequence[str]], numbered: Sequence[str] = ()) -> tuple[str, ...]:
    """One list of the class names that sites have, `named` by site; sites among the `numbered` have numbers
    for classes instead of names. A UserError where the sites cannot mean the same by them."""
    advice = "name classes alike everywhere, or make the federation with --classes"
    if len(numbered) == len(named):
        return tuple(str(c) for c in range(1 + max(int(name) for names in named.values() for name in names)))
    if numbered:
        other = next(site for site in named if site not in numbered)
        raise UserError(
            f"{numbered[0]} has numbers for classes and {other} has names ({', '.join(named[other])[:200]}), "
            f"which cannot be matched: {advice}"
        )
    first: dict[str, tuple[str, str]] = {}  # by the name without regard to case, who has it and how
    for site, names in named.items():
        for name in names:
            whose, spelt = first.setdefault(name.casefold(), (site, name))
            if spelt != name:
                raise UserError(
                    f"{whose} has a class {spelt!r} and {site} one {name!r}, which differ in case only: "
                    f"{advice}"
                )
    every = {name for names in named.values() for name in names}
    in_order = all(name.isdecimal() for name in every)
    return tuple(sorted(every, key=lambda name: (int(name) if in_order else 0, name)))


def agreed(data: Dataset, classes: tuple[str, ...]) -> Dataset:
    """The data with its labels as places in the federation's class list."""
    if data.class_names:
        names = stripped(data.class_names)
        unknown = [name for name in names if name not in classes]
        if unknown:
            raise UserError(
                f"classes unknown to the federation: {', '.join(unknown)}; it has {', '.join(classes)}"
            )
        place = torch.tensor([classes.index(name) for name in names])
    else:
        if data.classes > len(classes) and not are_names(classes):
            raise UserError(
                f"labels go up to {data.classes - 1}, but the federation has {len(classes)} classes, "
                f"0 to {len(classes) - 1}"
            )
        held = np.union1d(data.y_train, data.y_test).tolist()
        place = torch.zeros(data.classes, dtype=torch.int64)
        for number, found in places_of(held, classes, data.numbers_written).items():
            place[number] = found
    return dataclasses.replace(
        data,
        y_train=place[data.y_train],
        y_test=place[data.y_test],
        classes=len(classes),
        class_names=classes,
    )
