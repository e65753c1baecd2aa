"""Pictures of what changes by round: a line for each method."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgela.grids import Grid
from fedgela.heat_maps import Floats, shortened
from fedgela.over_seeds import mean_std
from fedgela.report.colours import Style
from fedgela.report.drawing import PAGE, SOFT, Picture, belongs, line_style, plain_axes
from fedgela.report.entries import Curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LISTED_ROUNDS = 40  # rows of a curve's table; of more rounds, evenly spaced ones
NAMED = 6  # up to so many lines have their names beside them; of more, only the legend has
AFTER = (1.02, 1.14)  # of the last round: where what was measured after it is drawn


def curves(
    name: str,
    title: str,
    y_label: str,
    series: Mapping[str, Curve],
    styles: Mapping[str, Style],
    target: tuple[float, str] | None = None,
    after: Mapping[str, Curve] | None = None,
    log: bool = False,
    most: float = math.inf,
    span: float = 0.0,
    narrow: bool = False,
) -> Picture:
    """A line a method with a band of one standard deviation over seeds, up to `most`; `after` is what was
    measured once, after the last round, `target` a level to reach and its name, `span` the least that the
    axis covers, so that a hair's breadth does not look like a leap."""
    after = after or {}
    veil = 0.16 if len(series) <= 6 else 0.07  # many bands must not bury the lines
    values = [v for curve in series.values() for v in curve.mean]
    # a few powers of two are read better on an even scale
    logarithmic = log and min(values, default=0) > 0 and max(values) > 5 * min(values)

    ends = {label: curve.mean[-1] for label, curve in (*series.items(), *after.items())}

    def draw(axes: "Axes") -> None:
        from matplotlib.ticker import FuncFormatter, MaxNLocator

        plain_axes(axes, "round", y_label)
        if logarithmic:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axes.yaxis.set_minor_formatter(FuncFormatter(lambda value, _: _between(value, *axes.get_ylim())))
        lines: list[tuple[str, Sequence[float], Curve]] = [(n, c.rounds, c) for n, c in series.items()]
        for label, curve in after.items():
            level = Curve([], 2 * curve.mean, 2 * curve.std)
            lines.append((label, [part * curve.rounds[-1] for part in AFTER], level))
        for label, rounds, curve in lines:
            style = styles[label]
            dot = "o" if len(rounds) == 1 else ""  # one round makes no line
            (line,) = axes.plot(rounds, curve.mean, marker=dot, markersize=3, **line_style(style))
            belongs(line, label)
            if any(curve.std):
                low, high = _band(curve, logarithmic, most)
                band = axes.fill_between(rounds, low, high, color=style.colour, alpha=veil, linewidth=0)
                belongs(band, label)
        if target is not None:
            _draw_target(axes, *target, above=min(values) < target[0])
        bottom, top = axes.get_ylim()
        if top - bottom < span:
            bottom = max((bottom + top - span) / 2, 0.0)
            top = bottom + span
            axes.set_ylim(bottom, top)
        if top > most:  # nothing lies there
            axes.set_ylim(top=most + 0.02 * (most - bottom))
        # a run of one round has one tick: with two there would be fractions of a round
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6, min_n_ticks=1))

    shown = {label: styles[label] for label in styles if label in series or label in after}
    return Picture(
        name,
        title,
        _curves_text(title, series, after, target),
        draw,
        flat=0.5,
        narrow=narrow,
        named=(lambda axes: _name_lines(axes, ends, styles))
        if 1 < len(ends) <= NAMED and not narrow
        else None,
        styles=shown,
        data=_curves_table({**series, **after}),
    )


def _band(curve: Curve, logarithmic: bool, most: float) -> tuple[Floats, Floats]:
    """One standard deviation below and above the mean; where there is no zero, never down to it."""
    mean, std = np.array(curve.mean), np.array([s or 0.0 for s in curve.std])
    low = np.maximum(mean - std, mean / 10) if logarithmic else mean - std
    return low, np.minimum(mean + std, most)


def _name_lines(axes: "Axes", ends: Mapping[str, float], styles: Mapping[str, Style]) -> None:
    """Every line's name right of its end; names that would lie upon each other are moved apart."""
    figure: Any = axes.figure
    axes.autoscale_view()
    to_axes = axes.transScale + axes.transLimits
    at = {label: float(to_axes.transform((1.0, y))[1]) for label, y in ends.items()}
    order = sorted(at, key=lambda label: at[label])
    gap = 8.5 / (72 * 0.78 * figure.get_figheight())  # a line of text, as a share of the axis
    for below, label in pairwise(order):
        at[label] = max(at[label], at[below] + gap)
    at[order[-1]] = min(at[order[-1]], 1.0)
    for label, below in pairwise(reversed(order)):
        at[below] = min(at[below], at[label] - gap)
    for label in order:
        name = axes.annotate(
            shortened(label, 14),
            (1, at[label]),
            xycoords="axes fraction",
            xytext=(3, 0),
            textcoords="offset points",
            va="center",
            fontsize=7,
            color=styles[label].colour,
            annotation_clip=False,
        )
        belongs(name, label)


def _draw_target(axes: "Axes", level: float, words: str, above: bool) -> None:
    """A dotted level with its name above or below it, legible upon lines, too."""
    axes.axhline(level, color=SOFT, linewidth=0.9, linestyle=(0, (1, 1.5)))
    axes.annotate(
        words,
        (1, level),
        xycoords=("axes fraction", "data"),
        xytext=(0, 2 if above else -2),
        textcoords="offset points",
        ha="right",
        va="bottom" if above else "top",
        fontsize=7,
        color=SOFT,
        bbox={"facecolor": PAGE, "edgecolor": "none", "alpha": 0.75, "pad": 0.5},
    )
    axes.margins(y=0.1)


def _between(value: float, low: float, high: float) -> str:
    """The name of a tick between powers of ten: 2 and 5, where fewer than two powers would name the axis."""
    powers = math.floor(math.log10(high)) - math.ceil(math.log10(low)) + 1
    return f"{value:g}" if f"{value:e}"[0] in "25" and powers < 2 else ""


def _curves_text(
    title: str, series: Mapping[str, Curve], after: Mapping[str, Curve], target: tuple[float, str] | None
) -> str:
    ends = [f"{label} {curve.mean[-1]:.4g} in round {curve.rounds[-1]}" for label, curve in series.items()]
    ends += [f"{label} {curve.mean[-1]:.4g} after the last round" for label, curve in after.items()]
    against = f" Dotted level: {target[1]}." if target else ""
    return f"{title}, by round. At the end: {'; '.join(ends)}.{against}"


def _curves_table(series: Mapping[str, Curve]) -> Grid:
    rounds = sorted({r for curve in series.values() for r in curve.rounds})
    if len(rounds) > LISTED_ROUNDS:
        chosen = np.linspace(0, len(rounds) - 1, LISTED_ROUNDS).round().astype(int)
        rounds = [rounds[i] for i in chosen]
    columns: dict[str, dict[int, str]] = {}
    for label, curve in series.items():
        both = zip(curve.mean, curve.std, strict=True)
        small = any(0 < abs(mean) < 0.1 for mean in curve.mean)
        cells = (_precise(m, s) if small else mean_std({"mean": m, "std": s}) for m, s in both)
        columns[label] = dict(zip(curve.rounds, cells, strict=True))
    rows = [[str(r), *(column.get(r, "") for column in columns.values())] for r in rounds]
    return Grid(["round", *columns], rows)


def _precise(mean: float, std: float | None) -> str:
    """Losses and measures of collapse go over many powers of ten."""
    return f"{mean:.4g}" + ("" if std is None else f" ± {std:.2g}")
