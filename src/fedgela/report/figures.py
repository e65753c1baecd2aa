"""The other kinds of pictures: dots a client, matrices of colour, features in the plane."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgela.grids import Grid
from fedgela.heat_maps import Floats, HeatMap, shortened
from fedgela.report.colours import CLASSES, Style, class_colours
from fedgela.report.drawing import INK, LINE, PAGE, SOFT, Picture, belongs
from fedgela.report.embedding import Plane

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURED_UP_TO = 20  # classes that all have a colour in a picture of features


def client_dots(
    name: str, title: str, values: Mapping[str, Sequence[float]], styles: Mapping[str, Style]
) -> Picture:
    """A row a method, a dot a client, a bar at the mean."""

    def draw(axes: "Axes") -> None:
        axes.set_xlabel("accuracy on the client's own test set, %")
        axes.grid(True, axis="x")
        for row, (label, held) in enumerate(values.items()):
            where, colour = row + _beside(held), styles[label].colour
            (dots,) = axes.plot(held, where, "o", markersize=3.2, markeredgewidth=0, color=colour, alpha=0.55)
            belongs(dots, label)
            (bar,) = axes.plot([np.mean(held)] * 2, [row - 0.36, row + 0.36], color=colour, linewidth=2)
            belongs(bar, label)
        axes.set_yticks(range(len(values)), [shortened(label, 30) for label in values])
        axes.set_ylim(len(values) - 0.4, -0.6)  # the first method on top
        low, high = axes.get_xlim()
        if high > 100:  # percent
            axes.set_xlim(right=100 + 0.02 * (100 - low))

    rows = [
        [label, *(f"{v:.2f}" for v in (min(h), *np.quantile(h, (0.1, 0.5)), np.mean(h), max(h))), str(len(h))]
        for label, h in values.items()
    ]
    table = Grid(["method", "worst", "10th percentile", "median", "mean", "best", "clients"], rows)
    worst = "; ".join(f"{label} from {min(h):.1f} to {max(h):.1f}" for label, h in values.items())
    text = f"A dot for each client's accuracy, a row for each method, a bar at the mean: {worst}."
    return Picture(name, title, text, draw, height=0.2 + 0.065 * max(len(values), 2), data=table)


def _beside(values: Sequence[float]) -> Floats:
    """Steps up and down by which equal values are drawn apart, so that they do not hide each other."""
    seen: dict[float, int] = {}
    steps = []
    for value in values:
        n = seen[round(value, 1)] = seen.get(round(value, 1), -1) + 1
        steps.append((n + 1) // 2 * (0.055 if n % 2 else -0.055))
    return np.asarray(np.clip(steps, -0.33, 0.33), dtype=np.float64)


def matrix(
    name: str, title: str, text: str, shown: HeatMap, data: Grid | None = None, wide: bool | None = None
) -> Picture:
    R, N = shown.values.shape
    wide = N > 20 if wide is None else wide
    inner_height = 0.62 if R <= 40 else 0.9
    height = min(inner_height, 0.14 + 0.062 * R * (0.5 if wide else 1.0)) if R < N else inner_height

    def draw(axes: "Axes") -> None:
        figure: Any = axes.figure
        width = 0.75 * figure.get_figwidth()  # the rest is for the rows' names and the scale
        shown.draw(axes, width, named_rows=max(12.0, 7.5 * figure.get_figheight()))

    return Picture(name, title, text, draw, height=height, wide=wide, data=data)


def feature_plane(name: str, title: str, text: str, plane: Plane, class_names: Sequence[str]) -> Picture:
    """Points with one colour a class, and the classifier's vectors: arrows from the features' mean, or stars
    where the plane knows no directions (t-SNE). Of many classes only those with most points have a colour and
    a vector."""
    places, labels, directions, arrows = plane.places, plane.labels, plane.directions, plane.is_pca
    chosen = _coloured(labels, len(class_names))
    colours = dict(zip(chosen, class_colours(len(chosen)), strict=True))

    def draw(axes: "Axes") -> None:
        for c in (None, *chosen):
            mine = places[labels == c] if c is not None else places[~np.isin(labels, chosen)]
            colour = colours[c] if c is not None else LINE
            axes.plot(*mine.T, "o", markersize=2.6, markeredgewidth=0, color=colour, alpha=0.75)
        lengths = np.linalg.norm(np.nan_to_num(directions), axis=1)
        if arrows:
            axes.update_datalim(1.2 * np.nan_to_num(directions[chosen]))
        for c in chosen:
            if not np.isnan(directions[c]).any():
                # where many arrows point out of the plane, their names would lie upon each other
                named = not arrows or lengths[c] > 0.2 * lengths.max()
                name = shortened(class_names[c], 14) if named else ""
                x, y = directions[c].tolist()
                _draw_vector(axes, (x, y), name, colours[c], arrows)
        axes.set_aspect("equal", adjustable="datalim")
        axes.set_xticks([])
        axes.set_yticks([])
        axes.set_xlabel(f"{plane.axes} 1", color=SOFT)
        axes.set_ylabel(f"{plane.axes} 2", color=SOFT)
        axes.margins(0.08)

    return Picture(name, title, text, draw, height=0.86)


def _draw_vector(axes: "Axes", tip: tuple[float, float], name: str, colour: str, arrow: bool) -> None:
    """An arrow from the features' mean, or a star, with its class's name."""
    from matplotlib import patheffects

    if arrow:
        look = {"arrowstyle": "->", "color": colour, "lw": 1.2, "shrinkA": 0, "shrinkB": 0}
        axes.annotate("", tip, (0, 0), arrowprops=look)
    else:
        axes.plot(*tip, marker="*", markersize=8, color=colour, markeredgecolor=INK, markeredgewidth=0.5)
    if name:
        axes.annotate(
            name,
            (1.09 * tip[0], 1.09 * tip[1]) if arrow else tip,
            xytext=(0, 0) if arrow else (4, 3),
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=7,
            fontweight="bold",
            color=colour,
            # a rim in the page's colour keeps names legible upon the points, in light and dark
            path_effects=[patheffects.withStroke(linewidth=1.8, foreground=PAGE)],
        )


def _coloured(labels: np.ndarray[Any, np.dtype[np.int64]], C: int) -> list[int]:
    """The classes that have a colour of their own: all, or of many those with most points."""
    if C <= COLOURED_UP_TO:
        return list(range(C))
    counts = np.bincount(labels, minlength=C)
    most = np.argsort(-counts, kind="stable")[: len(CLASSES)]
    return sorted(int(c) for c in most if counts[c])
