"""Pictures have room for their words, whatever the number of methods and the length of names."""

import itertools
import re
import warnings

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from fedgela.heat_maps import HeatMap, class_map
from fedgela.report.colours import styles
from fedgela.report.curves import curves
from fedgela.report.drawing import COLUMNS, PAGE_WIDTH, WIDE, Picture, _settings
from fedgela.report.embedding import Plane
from fedgela.report.entries import Curve
from fedgela.report.figures import client_dots, feature_plane, matrix

SKIN = ["melanoma", "melanocytic nevus", "basal carcinoma", "keratosis"]
LETTER = 7 / 72  # inches: the height of a name


def by_class(methods: int, classes: list[str]) -> Picture:
    values = np.linspace(0, 100, methods * len(classes)).reshape(methods, -1)
    rows = [f"fedgela {i}" for i in range(methods)]
    colour_label = "" if max(values.shape) <= 12 else "%"
    shown = HeatMap(values, rows, classes, "", "class", scale=(0, 100), colour_label=colour_label)
    return matrix("m", "GA", "", shown)


@pytest.mark.parametrize("methods", [1, 2, 3, 11])
@pytest.mark.parametrize(
    "classes",
    [
        SKIN,
        [f"class number {i}" for i in range(10)],
        [f"class number {i}" for i in range(100)],
        ["M" * 40] * 4,
    ],
    ids=["4", "10", "100", "very long"],
)
def test_a_matrix_of_few_rows_has_room_for_long_names_below_it(methods: int, classes: list[str]) -> None:
    picture = by_class(methods, classes)
    for width in (WIDE if picture.wide else PAGE_WIDTH, *COLUMNS):
        with _settings("m"):
            figure = picture.figure(width)
            FigureCanvasAgg(figure).draw()
            words, page = figure.get_tightbbox(), figure.bbox_inches
            row = figure.axes[0].get_position().height * page.height / methods
        assert page.x0 <= words.x0 and words.x1 <= page.x1 and page.y0 <= words.y0 and words.y1 <= page.y1
        assert row > LETTER


@pytest.mark.parametrize("clients", [10, 20, 50, 100])
def test_clients_names_below_a_matrix_do_not_run_into_each_other(clients: int) -> None:
    shown = class_map(np.ones((100, clients)), [str(c) for c in range(100)], [str(k) for k in range(clients)])
    picture = matrix("who", "Who holds what", "", shown)
    for width in (WIDE if picture.wide else PAGE_WIDTH, *COLUMNS):
        with _settings("m"):
            figure = picture.figure(width)
            FigureCanvasAgg(figure).draw()
            boxes = [label.get_window_extent() for label in figure.axes[0].get_xticklabels()]
        assert len(boxes) > 5 and all(a.x1 < b.x0 for a, b in itertools.pairwise(boxes)), width


def test_names_in_a_script_that_the_font_lacks_are_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "黒色腫" in by_class(2, ["黒色腫の一種", "母斑細胞"]).to_html("m")


@pytest.mark.parametrize("rounds", [1, 2, 3, 200])
def test_an_axis_of_rounds_has_whole_rounds_only(rounds: int) -> None:
    curve = Curve(list(range(1, rounds + 1)), [50.0] * rounds, [None] * rounds)
    figure = curves("GA", "GA", "%", {"fedgela": curve}, styles([("fedgela", "fedgela")])).figure(PAGE_WIDTH)
    FigureCanvasAgg(figure).draw()
    low, high = figure.axes[0].get_xlim()
    shown = [tick for tick in figure.axes[0].get_xticks() if low <= tick <= high]
    assert shown and all(tick == round(tick) for tick in shown)


def test_numbers_in_names_and_ticks_are_not_rounded_away() -> None:
    names = ["fedgela (lr 0.005)", "fedgela (lr 0.0125)"]
    style = styles([(name, "fedgela") for name in names])
    lines = {name: Curve([1, 2, 3], [0.0125, 0.05, 0.1 + i], [None] * 3) for i, name in enumerate(names)}
    html = curves("d", "Drift", "", lines, style).to_html("d")
    dots = client_dots("p", "PA", {name: [50.0, 60.0] for name in names}, style).to_html("p")
    for name in names:
        assert f'data-series="{name}"' in html
        assert f'data-series="{name}"' in dots
        assert f">{name}<" in dots
    small = {"fedgela": Curve([1, 2], [0.025, 0.2], [None] * 2)}
    html = curves("d", "Drift", "", small, styles([("fedgela", "fedgela")])).to_html("d")
    assert ">0.025<" in html and ">0.175<" in html


def test_levels_after_the_last_round_look_as_their_methods_lines_do() -> None:
    """FedAvg's, FedProx's and FedRS's are all blue."""
    names = ["fedavg", "fedprox", "fedrs"]
    style = styles([(name, name) for name in ("fedgela", *names)])
    line = {"fedgela": Curve([1, 10], [50.0, 90.0], [None] * 2)}
    after = {name: Curve([10], [80.0 + i], [None]) for i, name in enumerate(names)}
    html = curves("PA", "PA", "%", line, style, after=after).to_html("p")
    path = r'data-series="(\w+)">\s*<path d="M ([\d.]+) [^"]*"[^>]* style="([^"]*)"'
    drawn = {name: (float(begins), look) for name, begins, look in re.findall(path, html)}
    looks = {drawn[name][1] for name in names}
    assert len(looks) == len(names) and all("var(--blue)" in look for look in looks)
    (last_round,) = re.findall(r'data-series="fedgela">\s*<path d="M [^L]*L ([\d.]+)', html)
    assert all(drawn[name][0] > float(last_round) for name in names)


def test_losses_that_hardly_fall_have_an_even_scale() -> None:
    style = styles([("fedavg", "fedavg")])
    for last, scale in ((1.7, "linear"), (0.01, "log")):
        curve = {"fedavg": Curve([1, 2], [2.0, last], [None] * 2)}
        figure = curves("l", "loss", "", curve, style, log=True).figure(PAGE_WIDTH)
        assert figure.axes[0].get_yscale() == scale


def test_classes_whose_names_begin_alike_are_told_apart_at_their_vectors() -> None:
    names = ["adenocarcinoma, colon", "adenocarcinoma, lung"]
    plane = Plane(np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([0, 1]), np.eye(2), explained=1.0)
    picture = feature_plane("f", "", "", plane, names)
    with _settings("f"):
        words = [text.get_text() for text in picture.figure(PAGE_WIDTH).axes[0].texts if text.get_text()]
    assert len(set(words)) == 2
    assert all("…" in word and word[-4:] == name[-4:] for word, name in zip(words, names, strict=True))


@pytest.mark.parametrize(("first", "last"), [(4.0, 2.2), (5.1, 0.14), (9.9, 0.11), (20.0, 0.001)])
def test_a_logarithmic_scale_has_several_names(first: float, last: float) -> None:
    curve = {"moon": Curve([1, 2], [first, last], [None] * 2)}
    figure = curves("l", "loss", "", curve, styles([("moon", "moon")]), log=True).figure(PAGE_WIDTH)
    FigureCanvasAgg(figure).draw()
    axis = figure.axes[0].yaxis
    low, high = figure.axes[0].get_ylim()
    ticks = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
    named = [tick for tick in ticks if tick.label1.get_text() and low <= tick.get_loc() <= high]
    assert 2 <= len(named) <= 8


def test_turned_names_end_at_their_ticks_in_whatever_font_the_page_has() -> None:
    texts = re.findall(r"<text ([^>]*)>([^<]*)</text>", by_class(2, SKIN).to_html("p"))
    named = {words: how for how, words in texts if words in SKIN}
    assert named.keys() == set(SKIN)
    assert all("text-anchor: end" in how and "rotate(-90" in how for how in named.values())
