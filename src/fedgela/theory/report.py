"""A theory report for readers: tables in text, everything in JSON, figures as PNG and SVG."""

import math
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from fedgela.files import write_atomically, write_json
from fedgela.grids import Grid
from fedgela.measures import etf_angle
from fedgela.theory.bounds import Terms
from fedgela.theory.checks import AdaptedStructure, Convergence, Lemmas, Report
from fedgela.theory.convergence import Check, Global, rounds_until_false
from fedgela.theory.defects import Finding
from fedgela.theory.figures import draw

WIDTH = 100
SHOWN_ROUNDS = (0, 1, 2, 5, 10, 20, 50, 100, 200)


# -- tables ----------------------------------------------------------------------------------------


def lemma_grids(found: Lemmas) -> list[Grid]:
    s = found.setting
    rows = []
    for row in found.rows:
        x = row.structure
        apart = (x.W_cosine_error, x.H_cosine_error, x.length_error, x.duality_error, x.variability)
        losses = [f"{x.loss:.6f}", f"{row.etf_loss:.6f}"]
        rows.append([row.name, *(f"{error:.1e}" for error in apart), *losses, f"{row.residual:.0e}"])
    lemmas = Grid(
        ("", "cos W", "cos H", "lengths", "h = w", "NC1", "loss", "ETF's", "residual"),
        rows,
        f"C = {s.C}, d = {s.d}, E_W = {s.E_W:g}, E_H = {s.E_H:g}. cos: largest |cos + 1/(C-1)|; lengths: "
        "largest |1 - length / bound|; h = w: largest |h_c/|h_c| - w_c/|w_c||; NC1: largest distance from "
        f"the class mean; ETF's: log(1 + (C-1) exp(-C/(C-1) sqrt(E_W E_H))). Imbalanced: "
        f"{', '.join(map(str, s.counts))} samples. residual: the longest step that projected gradient would "
        "still make.",
        title="Lemmas 1 and 2: the layer-peeled model, distance from the ETF",
    )
    ratios = found.collapse[0].ratios
    collapse = Grid(
        ("imbalance R", *(f"W learnt, E_W = {c.E_W:g}" for c in found.collapse), "W = ETF (features)"),
        [
            [f"{R:g}", *(f"{c.minority[i]:.2f}" for c in found.collapse), f"{fixed:.2f}"]
            for i, (R, fixed) in enumerate(zip(ratios, found.minority_fixed, strict=True))
        ],
        f"{s.majority} classes with R samples for every one of the other {s.C - s.majority}; the ETF's angle "
        f"is {etf_angle(s.C):.2f}. residual at most "
        f"{max(c.residual for c in found.collapse):.0e}.",
        title="Minority collapse: mean angle in degrees between minority classifier vectors",
    )
    return [lemmas, collapse]


def structure_grids(found: AdaptedStructure) -> list[Grid]:
    s = found.setting
    rows = []
    for x in found.spreads:
        angles = (
            x.measured_ge,
            x.global_etf,
            x.measured_eq5,
            x.predicted_eq5,
            x.measured_all,
            x.predicted_all,
        )
        rows.append([str(x.classes), *(f"{angle:.2f}" for angle in angles)])
    spreads = Grid(
        ("m", "FedGE", "ETF", "FedGELA, Eq. 5", "predicted", "FedGELA, all classes", "predicted"),
        rows,
        f"E_W = {s.E_W:g}, equal shares. Eq. 5 sums over the classes present, predicted arccos(-1/(m-1)); "
        "'all classes' has missing ones at logit 0, where they hold the others back, the more so the larger "
        f"E_W is. residual at most {max(x.residual for x in found.spreads):.0e}.",
        title=f"Adapted structure: angle in degrees between the features of a client's m of {s.C} classes",
    )
    drawn = Grid(
        ("client", "class 1", "class 2", "class 3"),
        [[p.title, *(f"{share:.1%}" for share in p.share)] for p in found.planes],
        title="Three classes, as drawn: share of all directions that a class wins",
    )
    return [spreads, drawn]


def constants_grid(found: Convergence) -> Grid:
    cs = [(c.method, c.theorem_1) for c in found.checks]
    s = found.setting
    lines: list[tuple[str, list[float]]] = [
        ("L", [g.constants.L for _, g in cs]),
        ("kappa = L / mu", [g.constants.kappa for _, g in cs]),
        ("gamma of Theorem 1", [g.gamma for _, g in cs]),
        ("gamma of Theorem 3", [c.theorem_3.gamma for c in found.checks]),
        ("sigma^2", [g.constants.sigma_squared for _, g in cs]),
        ("G^2", [g.constants.G_squared for _, g in cs]),
        ("Gamma", [g.constants.Gamma for _, g in cs]),
        ("Gamma_1", [g.constants.Gamma_1 for _, g in cs]),
        ("Gamma_2", [g.constants.Gamma_2 for _, g in cs]),
        ("F(W*)", [m.F_star for m, _ in cs]),
        ("|W^1 - W*|^2", [g.constants.distance_squared for _, g in cs]),
        ("F(limit) - F(W*)", [m.floor for m, _ in cs]),
    ]
    return Grid(
        ("", *(m.name for m, _ in cs)),
        [[name, *(f"{v:.4g}" for v in values)] for name, values in lines],
        f"digits in {s.p} dimensions, {s.clients} clients by {s.partition}, d = {s.d}, E_W = {s.E_W:g}, mu = "
        f"{s.mu:g}, {s.rounds} rounds of E = {s.E} steps on {s.b} samples, {s.repeats} repeats. FedAvg has a "
        "fixed random head. L = 1/2 |Phi_k W|^2 lambda_max(1/n_k sum x x^T) + mu holds for all H; mu is the "
        "weight of |H|^2 / 2; sigma and G are the largest on the steps of the run's watched rounds, each by "
        "enumerating all samples; optima by Newton's method. limit: the minimum of sum_k p_k F_k(H; Phi_k "
        "W).",
        title="The strongly convex problem: its constants",
    )


def B_grid(found: Convergence) -> Grid:
    rows = []
    for c in found.checks:
        for name, b in (
            ("Theorem 1", c.theorem_1.B),
            ("Li et al.", c.theorem_1.B_li),
            ("Theorem 3", c.theorem_3.B),
        ):
            rows.append([f"{c.method.name}, {name}", *_B_cells(b)])
    return Grid(
        ("", "sum p_k^2 sigma^2", "sum p_k |Phi_k W - W|", "6 L Gamma_1", "8 (E-1)^2 G^2", "B"),
        rows,
        "Li et al. have Gamma for Gamma_1 and no adaptation term; Theorem 3's G is 2 sum_k p_k E|grad "
        "F_k(W_k*)|^2.",
        title="B by its terms",
    )


def _B_cells(b: Terms) -> list[str]:
    return [f"{v:.4g}" for v in (b.noise, b.adaptation, b.heterogeneity, b.drift, b.total)]


def theorem_1_grid(check: Check) -> Grid:
    g = check.theorem_1
    last = len(g.gap) - 1
    rounds = [r for r in SHOWN_ROUNDS if r < last] + [last]
    note = f"measured <= bound in {_held(g)} rounds."
    if check.method.floor > 1e-12:
        note += (
            f" The gap ends at {check.method.floor:.4g}, the bound is below that from "
            f"T = {rounds_until_false(g, check.method.floor):.3g} on."
        )
    return Grid(
        ("round", "measured", "Theorem 1's bound", "measured, own objective", "Li et al.'s bound"),
        [
            [str(r), f"{g.gap[r]:.5f}", f"{g.bound[r]:.4g}", f"{g.own_gap[r]:.5f}", f"{g.bound_li[r]:.4g}"]
            for r in rounds
        ],
        note,
        title=f"Theorem 1, {check.method.name}: E F(W_g) - F(W*) by round",
    )


def theorem_3_grid(found: Convergence) -> Grid:
    rows = []
    for c in found.checks:
        g = c.theorem_3
        ends = (g.gap[0], g.gap[-1], g.bound[0], g.bound[-1])
        rows.append([c.method.name, *(f"{v:.6g}" for v in ends), _held(g)])
    return Grid(
        ("", "measured, start", "measured, end", "bound, start", "bound, end", "held"),
        rows,
        "k, which the paper does not define, is mu/2, the best there is. The steps are so small that nothing "
        "moves.",
        title="Theorem 3: E F(W_g) - F(W*), with its own gamma and steps",
    )


def _held(g: Global) -> str:
    return f"{sum(a <= b for a, b in zip(g.gap, g.bound, strict=True))} of {len(g.gap)}"


def local_grid(found: Convergence) -> Grid:
    rows = []
    for c in found.checks:
        for name, x in (("Theorem 2", c.theorem_2), ("Theorem 4", c.theorem_4)):
            rows.append(
                [
                    f"{name}, {c.method.name}",
                    f"{x.measured[-1]:.4g}",
                    f"{x.bound[-1]:.4g}",
                    f"{min(x.slack):.4g}",
                    f"{x.held} of {x.pairs}",
                    f"{x.held_by_proof} of {x.pairs}",
                ]
            )
    return Grid(
        ("", "measured, last", "bound, last", "least slack", "held", "held by the proof's terms"),
        rows,
        "Means over clients; pairs of (round, client). Theorem 2: E F_k^((t+1)E); Theorem 4: F_k - F_k*. The "
        "proof's terms: |F_k before - after aggregation| for Theorem 2's Gamma_1; F_k(W*) - F_k* and "
        "L |Phi_k W - W| in Theorem 4's D.",
        title="Theorems 2 and 4: the local loss",
    )


def findings_text(findings: Sequence[Finding]) -> str:
    lines = ["What does not hold in the paper's statements and proofs"]
    for i, f in enumerate(findings, 1):
        mark = "shown" if f.shown else "not shown here"
        head = f"{i:2d}. {f.place}: {f.claim} [{mark}]"
        lines += textwrap.wrap(head, WIDTH, subsequent_indent="    ")
        lines += textwrap.wrap(f.numbers, WIDTH, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(lines)


def blocks(report: Report) -> list[str | Grid]:
    """The report in order: lines and tables."""
    parts: list[str | Grid] = []
    if report.lemmas is not None:
        parts += lemma_grids(report.lemmas)
    if report.structure is not None:
        parts += structure_grids(report.structure)
    if (found := report.convergence) is not None:
        parts += [constants_grid(found), B_grid(found)]
        parts += [theorem_1_grid(c) for c in found.checks]
        parts += [theorem_3_grid(found), local_grid(found), findings_text(found.findings)]
    return parts


def to_text(report: Report) -> str:
    return "\n\n".join(b if isinstance(b, str) else b.to_text() for b in blocks(report)) + "\n"


# -- JSON and files --------------------------------------------------------------------------------


def to_json(report: Report) -> dict[str, Any]:
    value: dict[str, Any] = {"seed": report.seed}
    if report.lemmas is not None:
        value["lemmas"] = asdict(report.lemmas)
    if report.structure is not None:
        value["structure"] = asdict(report.structure)
    if (c := report.convergence) is not None:
        value["convergence"] = {
            "setting": asdict(c.setting),
            "methods": {check.method.name: _check_json(check) for check in c.checks},
            "findings": [asdict(f) for f in c.findings],
        }
    return _plain(value)  # type: ignore[no-any-return]


def _check_json(check: Check) -> dict[str, Any]:
    def with_total(g: Global) -> dict[str, Any]:
        value = asdict(g)
        value["B"]["total"], value["B_li"]["total"] = g.B.total, g.B_li.total
        return value

    return {
        "F_star": check.method.F_star,
        "floor": check.method.floor,
        "theorem_1": with_total(check.theorem_1),
        "theorem_2": asdict(check.theorem_2),
        "theorem_3": with_total(check.theorem_3),
        "theorem_4": asdict(check.theorem_4),
    }


def _plain(value: Any) -> Any:
    """As JSON has it: tensors are lists, and what is infinite is None."""
    if isinstance(value, dict):
        return {key: _plain(v) for key, v in value.items()}
    if isinstance(value, Tensor):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def save(report: Report, folder: Path) -> list[str]:
    """Write text, JSON and figures, all made before the first file; the files' names come back."""
    files: dict[str, bytes | str] = {"theory.txt": to_text(report), **draw(report)}
    value = to_json(report)
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        write_atomically(folder / name, content)
    write_json(folder / "theory.json", value)
    return ["theory.json", *files]
