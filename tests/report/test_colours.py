"""Colours: told apart by colour-blind readers, seen on both pages, the same for a method everywhere."""

import itertools

import numpy as np
import pytest

from fedgela.algorithms import ALGORITHMS
from fedgela.html_page import DARK_PAGE, LIGHT_PAGE
from fedgela.report.colours import CLASSES, PALETTE, class_colours, styles

# Machado, Oliveira, Fernandes 2009, severity 1: on linear RGB
SIGHT = {
    "normal": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}


def linear(colour: str) -> np.ndarray:
    c = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def contrast(a: str, b: str) -> float:
    low, high = sorted(float(linear(c) @ [0.2126, 0.7152, 0.0722]) for c in (a, b))
    return (high + 0.05) / (low + 0.05)


def lab(rgb: np.ndarray) -> np.ndarray:
    matrix = [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.119192, 0.9503041],
    ]
    x = np.array(matrix) @ rgb / [0.95047, 1.0, 1.08883]
    f = np.where(x > 0.008856, np.cbrt(x), 7.787 * x + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize("mode", [1, 2], ids=["light", "dark"])
def test_lines_of_one_kind_can_be_told_apart(mode: int, sight: str) -> None:
    seen = {c[0]: lab(np.clip(np.array(SIGHT[sight]) @ linear(c[mode]), 0, 1)) for c in PALETTE}
    for (a, left), (b, right) in itertools.combinations(seen.items(), 2):
        assert np.linalg.norm(left - right) > 20, (a, b)  # a just noticeable difference is about 2.3


def test_every_colour_stands_out_from_its_page() -> None:
    for _, light, dark in PALETTE:
        assert contrast(light, LIGHT_PAGE) >= 3 and contrast(dark, DARK_PAGE) >= 3
    for light, dark in CLASSES:
        assert contrast(light, LIGHT_PAGE) >= 3 and contrast(dark, DARK_PAGE) >= 3


def test_every_method_has_a_style_of_its_own_whatever_it_is_compared_with() -> None:
    all_of_them = styles((name, name) for name in ALGORITHMS)
    assert len(set(all_of_them.values())) == len(ALGORITHMS)
    for name in ALGORITHMS:
        assert styles([("own", "x:Own"), (name, name)])[name] == all_of_them[name]


def test_variants_and_own_methods_get_free_styles() -> None:
    found = styles(
        [
            ("fedgela", "fedgela"),
            ("fedgela (E_W 3)", "fedgela"),
            ("mine", "package:Mine"),
            ("fedavg", "fedavg"),
        ]
    )
    assert len(set(found.values())) == 4
    assert len(styles((str(i), "x:Own") for i in range(30))) == 30


def test_one_colour_a_class() -> None:
    for C in (2, 10, 11, 100):
        assert len(set(class_colours(C))) == C


def test_colours_that_become_variables_are_nothing_else() -> None:
    everything = [light for _, light, _ in PALETTE] + [light for light, _ in CLASSES]
    assert len(set(everything)) == len(everything)
