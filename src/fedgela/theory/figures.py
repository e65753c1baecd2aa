"""The theory's figures, each as PNG and SVG. matplotlib is imported here alone, and only when drawing."""

import io
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgela.theory.checks import AdaptedStructure, Convergence, Lemmas, Report
from fedgela.theory.structure import Plane, predicted_cosine

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, RED, GREY = "#0072b2", "#e69f00", "#009e73", "#d55e00", "#777777"
LIGHT = ("#cfe3f1", "#f8e6c0", "#c9e9df")  # the same for areas
CLASSES = (BLUE, "#b97a00", GREEN)


def draw(report: Report) -> dict[str, bytes]:
    """Every figure of what was checked, by file name."""
    figures: dict[str, Figure] = {}
    if report.lemmas is not None:
        figures["minority_collapse"] = minority_collapse(report.lemmas)
    if report.structure is not None:
        figures["adapted_structure"] = adapted_structure(report.structure)
        figures["spread"] = spread(report.structure)
    if report.convergence is not None:
        figures["global_convergence"] = global_convergence(report.convergence)
        figures["local_convergence"] = local_convergence(report.convergence)
    files: dict[str, bytes] = {}
    for name, figure in figures.items():
        files |= {f"{name}.png": _saved(figure, "png"), f"{name}.svg": _saved(figure, "svg")}
    return files


def _figure(width: float, height: float) -> "Figure":
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=150, facecolor="white", layout="constrained")


def _saved(figure: "Figure", form: str) -> bytes:
    import matplotlib

    out = io.BytesIO()
    # no date and no random ids: the same report gives the same bytes
    with matplotlib.rc_context({"svg.hashsalt": "fedgela"}):
        figure.savefig(out, format=form, metadata={"Date": None} if form == "svg" else None)
    return out.getvalue()


def _plain(axes: "Axes", x: str, y: str, title: str = "") -> None:
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)
    axes.set_title(title, fontsize=10, loc="left")
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="0.92", linewidth=0.7)
    axes.set_axisbelow(True)


# -- lemmas ----------------------------------------------------------------------------------------


def minority_collapse(found: Lemmas) -> "Figure":
    figure = _figure(6.4, 3.8)
    axes = figure.add_subplot()
    marks = ("o", "s", "^")
    for curve, colour, mark in zip(found.collapse, (GREEN, BLUE, ORANGE), marks, strict=False):
        axes.plot(
            curve.ratios,
            curve.minority,
            color=colour,
            marker=mark,
            markersize=4,
            label=f"W learnt, $E_W$ = {curve.E_W:g}",
        )
    axes.plot(
        found.collapse[0].ratios,
        found.minority_fixed,
        color="black",
        marker="D",
        markersize=4,
        label="W fixed as the ETF",
    )
    axes.set_xscale("log")
    axes.set_ylim(-4, 108)
    _plain(
        axes,
        "imbalance ratio R (samples of a majority class for one of a minority class)",
        "angle between minority classes, degrees",
        "Minority collapse in the layer-peeled model",
    )
    axes.legend(fontsize=8, frameon=False, loc="lower left", bbox_to_anchor=(0.0, 0.05))
    return figure


# -- adapted structure -----------------------------------------------------------------------------


def adapted_structure(found: AdaptedStructure) -> "Figure":
    """Features, classifier vectors and who wins where, for three classes: the paper's Figure 3c."""
    figure = _figure(13.5, 3.1)
    radius = math.sqrt(found.setting.E_H)
    longest = max(float(p.Phi_W.norm(dim=1).max()) for p in found.planes)
    for axes, p in zip(figure.subplots(1, len(found.planes)), found.planes, strict=True):
        _disc(axes, p, radius, longest)
    figure.suptitle(
        "Areas: the class with the largest logit.  Arrows: classifier vectors $\\Phi_k W$.  Stars: features",
        fontsize=9,
    )
    return figure


def _disc(axes: "Axes", p: Plane, radius: float, longest: float) -> None:
    from matplotlib.patches import Wedge

    turn = np.deg2rad(np.arange(0.0, 360.0, 0.25) + 0.125)
    logits = np.stack([np.cos(turn), np.sin(turn)], axis=1) @ p.Phi_W.numpy().T
    logits[:, np.array(p.share) == 0] = -np.inf  # a missing class that is left out
    winner = logits.argmax(axis=1)
    edges = np.flatnonzero(np.diff(winner, prepend=winner[-1]))
    for i, first in enumerate(edges):
        last = edges[(i + 1) % len(edges)]
        start, end = first * 0.25, last * 0.25 + (360 if last <= first else 0)
        axes.add_patch(Wedge((0, 0), radius, start, end, facecolor=LIGHT[winner[first]], linewidth=0))
    scale = 0.92 * radius / longest
    for c, w in enumerate(p.Phi_W.numpy()):
        if np.hypot(*w) > 0:
            axes.annotate(
                "",
                xy=tuple(scale * w),
                xytext=(0, 0),
                arrowprops={"arrowstyle": "-|>", "color": CLASSES[c], "linewidth": 1.8, "shrinkB": 0},
            )
    present = [c for c in range(3) if p.counts[c]]
    for c, h in zip(present, p.H.numpy(), strict=True):
        axes.plot(*h, marker="*", markersize=15, color=CLASSES[c], markeredgecolor="white", zorder=3)
        x, y = (float(v) for v in h / np.hypot(*h) * radius)
        # labels are wider than they are high
        axes.text(1.42 * x, 1.2 * y, f"class {c + 1}", ha="center", va="center", fontsize=9, color=CLASSES[c])
    bare = radius * 1.62
    axes.set(xlim=(-bare, bare), ylim=(-1.35 * radius, 1.35 * radius), aspect="equal")
    axes.axis("off")
    head, _, tail = p.title.partition(": ")
    axes.set_title(f"{head}\n{tail}", fontsize=10)
    shares = "  ".join(f"{c + 1}: {share:.0%}" for c, share in enumerate(p.share) if share > 0)
    axes.text(
        0.5, -0.02, f"share of space  {shares}", transform=axes.transAxes, ha="center", va="top", fontsize=8.5
    )


def spread(found: AdaptedStructure) -> "Figure":
    s = found.setting
    figure = _figure(6.4, 3.8)
    axes = figure.add_subplot()
    m = [x.classes for x in found.spreads]
    axes.plot(m, [x.predicted_eq5 for x in found.spreads], color=BLUE, label="FedGELA, Eq. 5")
    axes.plot(m, [x.measured_eq5 for x in found.spreads], "o", color=BLUE, markersize=5)
    for E_W, line in ((1.0, ":"), (s.E_W, "-"), (100.0, "--")):
        angles = [math.degrees(math.acos(predicted_cosine(s.C, k, E_W, s.E_H, False))) for k in m]
        axes.plot(m, angles, line, color=ORANGE, label=f"FedGELA, all classes, $E_W$ = {E_W:g}")
    axes.plot(m, [x.measured_all for x in found.spreads], "s", color=ORANGE, markersize=5)
    axes.plot(m, [x.measured_ge for x in found.spreads], "D-", color=GREY, markersize=4, label="FedGE")
    axes.set_xticks(m)
    _plain(
        axes,
        f"classes m that the client has, of {s.C}",
        "angle between features, degrees",
        "How far existing classes spread: lines predicted, marks measured",
    )
    axes.legend(fontsize=8, frameon=False)
    return figure


# -- convergence -----------------------------------------------------------------------------------


def global_convergence(found: Convergence) -> "Figure":
    figure = _figure(11.2, 3.9)
    panels = figure.subplots(1, len(found.checks), sharey=True)
    lines: list[Any] = []
    for axes, c in zip(panels, found.checks, strict=True):
        g = c.theorem_1
        rounds = range(len(g.gap))
        lines = [
            axes.plot(rounds, g.bound, color=RED, label="Theorem 1's bound")[0],
            axes.plot(
                rounds, g.bound_li, color=RED, linestyle="--", label="Li et al.'s bound (own objective)"
            )[0],
            axes.plot(rounds, g.gap, color=BLUE, label="measured: E F(W$_g$) − F(W*)")[0],
            axes.plot(
                rounds, g.own_gap, color=BLUE, linestyle=":", linewidth=2, label="measured, own objective"
            )[0],
        ]
        if c.method.floor > 1e-12:
            lines.append(
                axes.axhline(
                    c.method.floor, color="black", linewidth=1, linestyle="-.", label="where the gap ends"
                )
            )
        axes.set_yscale("log")
        note = " (fixed random head)" if c.method.name == "FedAvg" else ""
        title = f"{c.method.name}{note}, κ = {g.constants.kappa:.0f}"
        _plain(axes, "round", "gap to the optimum" if axes is panels[0] else "", title)
    figure.legend(handles=lines, fontsize=8, frameon=False, loc="outside lower center", ncols=len(lines))
    return figure


def local_convergence(found: Convergence) -> "Figure":
    figure = _figure(9.0, 3.9)
    panels = figure.subplots(1, 2)
    named = (("Theorem 2: $F_k$ after local training", 2), ("Theorem 4: $F_k - F_k^*$ of the global body", 4))
    handles: list[Any] = []
    for axes, (title, theorem) in zip(panels, named, strict=True):
        handles = []
        for c, colour in zip(found.checks, (ORANGE, GREEN, BLUE), strict=True):
            x = c.theorem_2 if theorem == 2 else c.theorem_4
            rounds = range(len(found.checks[0].theorem_1.gap) - len(x.measured), len(c.theorem_1.gap))
            handles += axes.plot(rounds, x.measured, color=colour, label=f"{c.method.name}, measured")
            handles += axes.plot(
                rounds, x.bound, color=colour, linestyle="--", label=f"{c.method.name}, bound"
            )
        axes.set_yscale("log")
        _plain(axes, "round", "mean over clients" if theorem == 2 else "", title)
    figure.legend(handles=handles, fontsize=8, frameon=False, loc="outside lower center", ncols=3)
    return figure
