"""Colours that colour-blind readers can tell apart, in light and dark, the same for a method everywhere.

Lines differ in colour and in dashes: six colours by three kinds of dashes. Among the lines of one kind all
colours stay apart under protanopia, deuteranopia and tritanopia, and each has a contrast of 3 to the page.
"""

from collections.abc import Iterable
from dataclasses import dataclass

# name, on a light page, on a dark one
PALETTE = (
    ("blue", "#0072b2", "#4dbfff"),
    ("orange", "#d55e00", "#ff9a3c"),
    ("indigo", "#332288", "#7d73ff"),
    ("wine", "#994455", "#f2385a"),
    ("brown", "#661100", "#ffe9b8"),
    ("grey", "#808894", "#9fa5ac"),
)

# (colour, dashes); dashes: 0 none, 1 long, 2 dash and dot
_OF_METHOD = {
    "fedavg": (0, 0),
    "fedgela": (1, 0),
    "fedge": (2, 0),
    "fedrod": (3, 0),
    "fedrep": (4, 0),
    "centralised": (5, 0),
    "fedprox": (0, 1),
    "fedla": (1, 1),
    "moon": (2, 1),
    "fedbabu": (3, 1),
    "fedproto": (4, 1),
    "local": (5, 1),
    "fedrs": (0, 2),
    "fedgen": (3, 2),
    "fedlc": (2, 2),
    "fedprior": (4, 2),
}
DASHES: tuple[tuple[float, ...], ...] = ((), (5, 2), (5, 1.5, 1, 1.5))

# of classes, on a light page and on a dark one: points are also labelled, since ten colours are too many to
# tell apart
CLASSES = (
    ("#0073b3", "#3fa9f5"),
    ("#d45f00", "#ff8f40"),
    ("#009e73", "#2fc79a"),
    ("#b07800", "#e0b040"),
    ("#aa3377", "#e07ab0"),
    ("#4a96cb", "#a5d8ff"),
    ("#7a4fc0", "#a98bf0"),
    ("#7f8793", "#b8c0cc"),
    ("#9a4556", "#f2607a"),
    ("#4b8b00", "#8fd14f"),
)


@dataclass(frozen=True)
class Style:
    """How a method is drawn; `index` of its colour in PALETTE."""

    index: int
    dashes: tuple[float, ...]

    @property
    def colour(self) -> str:
        return PALETTE[self.index][1]


def styles(entries: Iterable[tuple[str, str]]) -> dict[str, Style]:
    """A style for each (label, method): a method's own for its first label, a free one for others."""
    entries = list(dict.fromkeys(entries))
    free = [(c, d) for d in range(len(DASHES)) for c in range(len(PALETTE))]
    chosen: dict[str, tuple[int, int]] = {}
    for label, method in entries:
        own = _OF_METHOD.get(method)
        if own in free and label not in chosen:
            free.remove(own)
            chosen[label] = own
    unused = [s for s in free if s not in _OF_METHOD.values()] + [s for s in free if s in _OF_METHOD.values()]
    for label, _ in entries:
        if label not in chosen:
            # more than eighteen lines share styles: nobody could tell them apart anyway
            chosen[label] = unused[0]
            unused.append(unused.pop(0))
    found = ((label, *chosen[label]) for label, _ in entries)
    return {label: Style(c, DASHES[d]) for label, c, d in found}


def class_colours(C: int) -> list[str]:
    """One colour a class; of more than ten, evenly around the wheel."""
    if len(CLASSES) >= C:
        return [light for light, _ in CLASSES[:C]]
    import colorsys

    wheel = [colorsys.hls_to_rgb(c / C, 0.42 + 0.12 * (c % 2), 0.65) for c in range(C)]
    return ["#" + "".join(f"{round(255 * v):02x}" for v in rgb) for rgb in wheel]


def variables() -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """The page's names of all colours with their values, on a light page and on a dark one."""
    named = [*PALETTE, *((f"class-{c}", light, dark) for c, (light, dark) in enumerate(CLASSES))]
    return [(name, light) for name, light, _ in named], [(name, dark) for name, _, dark in named]
