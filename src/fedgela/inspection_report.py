"""An inspection for readers: text, JSON, a heat map and one self-contained HTML page."""

import base64
import io
import json
import math
import textwrap
import warnings
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedgela.class_maps import DRAWN_CLIENTS, drawn_clients, whole_ticks
from fedgela.files import write_atomically
from fedgela.grids import Grid
from fedgela.html_page import advice, attribute, described, escape, html_page, paragraph
from fedgela.inspection import Inspection

LISTED = 20  # clients in the text; of more, the WORST and a summary
LISTED_IN_HTML = 100
WORST = 10
COUNTED = (20, 12)  # clients and classes up to which the text has their counts
SOURCE = "a rule of thumb from the validation figures of docs/fedgela.md"
NO_PICTURES = "heatmap.png and inspect.html are left out: pip install 'fedgela[report]' adds them"


# -- the parts -------------------------------------------------------------------------------------


def heading(found: Inspection) -> str:
    e = found.experiment
    return (
        f"{found.name}: {found.classes} classes, {found.clients:,} clients by {e.partition} "
        f"(seed {e.partition_seed}), {found.samples.sum():,} training and "
        f"{found.test_samples.sum():,} test samples"
        + (f" ({e.validation:g} held out to stand in for the test sets)" if e.validation else "")
    )


def clients_grid(found: Inspection, listed: int = LISTED) -> Grid:
    head: tuple[str, ...] = (
        "client",
        "samples",
        "classes",
        "missing",
        "imbalance",
        "test",
        "cost",
        "too small",
    )
    if not found.too_small.any():
        head = head[:-1]
    if found.clients <= listed:
        rows = [_client_row(found, k)[: len(head)] for k in range(found.clients)]
        return Grid(head, rows, _legend(found), "Clients")
    order = np.lexsort((found.samples, -found.cost))[:WORST]
    rows = [_client_row(found, k)[: len(head)] for k in order.tolist()]
    columns = (found.samples, found.held, found.missing, found.imbalance, found.test_samples, found.cost)
    for name, q in (("least", 0.0), ("median", 0.5), ("most", 1.0)):
        rows.append((name, *_cells(*(_quantile(column, q) for column in columns)), "")[: len(head)])
    title = f"Clients: the {WORST} with the highest cost, and all {found.clients:,} in summary"
    return Grid(head, rows, _legend(found), title)


def label(found: Inspection, k: int) -> str:
    """A client's number, with its name or id where that says more."""
    name = found.client_names[k] if found.client_names else ""
    name = name if len(name) <= 24 else name[:23] + "…"
    return f"{k} {name}" if name else str(k)


def _client_row(found: Inspection, k: int) -> tuple[str, ...]:
    values = (found.samples, found.held, found.missing, found.imbalance, found.test_samples, found.cost)
    mark = "no samples" if found.samples[k] == 0 else "< batch" if found.too_small[k] else ""
    return (label(found, k), *_cells(*(float(column[k]) for column in values)), mark)


def _cells(
    samples: float, held: float, missing: float, imbalance: float, test: float, cost: float
) -> list[str]:
    ratio = "-" if math.isnan(imbalance) else f"{imbalance:,.1f}"
    return [f"{samples:,.0f}", f"{held:.0f}", f"{missing:.0%}", ratio, f"{test:,.0f}", f"{cost:.2f}"]


def _quantile(column: Any, q: float) -> float:
    kept = column[~np.isnan(column)]
    return float(np.quantile(kept, q)) if len(kept) else math.nan


def _legend(found: Inspection) -> str:
    whose = (
        "" if found.own_method else f" (FedGELA's defaults: {found.experiment.algorithm.name} adapts no ETF)"
    )
    return (
        "missing: share of all classes; imbalance: largest over smallest class the client has; cost: "
        f"||Phi_k W - W|| with phi = {found.method.phi}, E_W = {found.method.E_W:g}{whose}, "
        f"to compare with ||W|| = {found.W_norm:.2f}"
    )


def counts_grid(found: Inspection) -> Grid | None:
    """Training samples by client and class, where that is small enough to read."""
    if found.clients > COUNTED[0] or found.classes > COUNTED[1]:
        return None
    names = [name if len(name) <= 12 else name[:11] + "…" for name in found.class_names]
    rows = [
        (label(found, k), *(str(n) if n else "." for n in row))
        for k, row in enumerate(found.train_counts.tolist())
    ]
    total = ("all", *map(str, found.train_counts.sum(axis=0).tolist()))
    tested = ("test", *map(str, found.test_counts.sum(axis=0).tolist()))
    title = "Training samples by client and class"
    return Grid(("client", *names), [*rows, total, tested], title=title)


def findings(found: Inspection) -> list[tuple[str, str]]:
    """The federation as a whole, as pairs of a name and what was found."""
    d = found.duplicates
    cells = f"{found.missing_cells:.1%} of {found.clients * found.classes:,} (client, class) cells"
    if found.disjoint_cells != found.missing_cells:
        cells += f"; {found.disjoint_cells:.1%} among training clients and classes that somebody has"
    small = int(found.too_small.sum())
    same = f", {d.test_in_train_of_same_client:,} of them by the same client" if d.test_in_train else ""
    return [
        ("missing", cells),
        (
            "class imbalance",
            f"{found.class_imbalance:,.1f}, largest over smallest class of all training samples",
        ),
        (
            "too small for a batch",
            f"{small:,} of {found.clients:,} clients (batch_size {found.experiment.batch_size})",
        ),
        ("only in a test set", _classes(found, found.only_in_test)),
        ("nowhere", _classes(found, found.nowhere)),
        (
            "test samples also trained on",
            f"{d.test_in_train:,}{same}{_examples('test', 'train', d.examples_test_in_train)}",
        ),
        (
            "samples of several clients",
            f"{d.across_clients:,}{_examples('train', 'train', d.examples_across_clients)}",
        ),
        (
            "samples twice on a client",
            f"{d.within_client:,}{_examples('train', 'train', d.examples_within_client)}",
        ),
        ("equal samples with other labels", f"{d.conflicting:,}"),
    ]


def _classes(found: Inspection, classes: list[int]) -> str:
    if not classes:
        return "no class"
    shown = ", ".join(found.class_names[c] for c in classes[:10])
    return f"{len(classes)}: {shown}" + (", ..." if len(classes) > 10 else "")


def _examples(left: str, right: str, pairs: Sequence[tuple[int, int]]) -> str:
    if not pairs:
        return ""
    return (
        " ("
        + ", ".join(f"{left} {i} = {right} {j}" for i, j in pairs[:3])
        + (", ...)" if len(pairs) > 3 else ")")
    )


def verdict(found: Inspection) -> str:
    advice = found.advice
    settings = ", ".join(
        f'{key} = "{value}"' if isinstance(value, str) else f"{key} = {value:g}"
        for key, value in advice.settings.items()
    )
    fit = f" with {settings}" if settings else ""
    return f"FedGELA is {advice.verdict} to help{fit}: {advice.reason} ({SOURCE})".replace(
        "is perhaps to help", "may help"
    )


# -- text and JSON ---------------------------------------------------------------------------------


def blocks(found: Inspection) -> list[str | Grid]:
    """The report in order: lines and tables."""
    counts = counts_grid(found)
    pairs = findings(found)
    width = max(len(name) for name, _ in pairs)
    lines = "\n".join(f"{name.ljust(width)}  {value}" for name, value in pairs)
    notes = "\n".join(f"note: {line}" for line in found.advice.warnings)
    parts: list[str | Grid | None] = [
        heading(found),
        clients_grid(found),
        counts,
        lines,
        verdict(found),
        notes,
    ]
    return [part for part in parts if part]


def to_text(found: Inspection) -> str:
    return "\n\n".join(b if isinstance(b, str) else b.to_text() for b in blocks(found)) + "\n"


def to_json(found: Inspection) -> str:
    """Everything, with one line a client."""
    e = found.experiment
    value: dict[str, Any] = {
        "dataset": found.name,
        "kind": found.data.kind,
        "partition": e.partition,
        "partition_seed": e.partition_seed,
        "validation": e.validation,
        "batch_size": e.batch_size,
        "sample": e.sample,
        "class_names": found.class_names,
        "training_samples": int(found.samples.sum()),
        "test_samples": int(found.test_samples.sum()),
        "missing_cells": found.missing_cells,
        "missing_cells_of_training_clients_and_held_classes": found.disjoint_cells,
        "class_imbalance": found.class_imbalance,
        "median_imbalance": found.median_imbalance,
        "clients_too_small_for_a_batch": int(found.too_small.sum()),
        "classes_only_in_test": found.only_in_test,
        "classes_nowhere": found.nowhere,
        "cells_tested_without_training": found.tested_unseen,
        "round_misses_class": found.round_misses_class,
        "duplicates": asdict(found.duplicates),
        "phi": found.method.phi,
        "E_W": found.method.E_W,
        "W_norm": _finite(found.W_norm),
        "advice": asdict(found.advice),
    }
    clients = [
        json.dumps(
            {
                "client": k,
                "name": found.client_names[k] if found.client_names else None,
                "samples": int(found.samples[k]),
                "classes": int(found.held[k]),
                "missing": float(found.missing[k]),
                "imbalance": _finite(found.imbalance[k]),
                "too_small": bool(found.too_small[k]),
                "test_samples": int(found.test_samples[k]),
                "cost": _finite(found.cost[k]),
                "train_counts": found.train_counts[k].tolist(),
                "test_counts": found.test_counts[k].tolist(),
            },
            allow_nan=False,
        )
        for k in range(found.clients)
    ]
    head = json.dumps(value, indent=2, allow_nan=False).removesuffix("\n}")
    return head + ',\n  "clients": [\n    ' + ",\n    ".join(clients) + "\n  ]\n}\n"


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


# -- the heat map ----------------------------------------------------------------------------------


def heatmap(found: Inspection) -> bytes | None:
    """A PNG of classes by client as in the paper's appendix C, white where there is no sample; None
    where matplotlib is not installed."""
    try:
        from matplotlib.colors import LinearSegmentedColormap, LogNorm
        from matplotlib.figure import Figure
    except ImportError:
        return None
    import matplotlib

    chosen = drawn_clients(found.train_counts)
    counts = found.train_counts[chosen].T  # [C, N]
    C, N = counts.shape
    side = max(0.11, min(0.5, 10 / max(N, 1), 9 / C if C > 40 else 1.0))  # inches a cell
    cell_w, cell_h = max(side, 3.5 / N), max(min(side, 12 / C), 2.0 / C)
    width, height = cell_w * N + 2.4, cell_h * C + 1.5
    figure = Figure(figsize=(width, height), dpi=150, facecolor="white", layout="constrained")
    axes = figure.add_subplot()
    blues = matplotlib.colormaps["Blues"](np.linspace(0.25, 1.0, 256))
    colours = LinearSegmentedColormap.from_list("samples", blues).with_extremes(bad="white")
    most = max(int(counts.max()), 2)
    image = axes.imshow(
        np.ma.masked_equal(counts, 0),
        cmap=colours,
        norm=LogNorm(1, most),
        aspect="auto",
        interpolation="nearest",
    )
    if N <= 60 and C <= 60:  # a fine grid tells an empty cell from the page
        axes.set_xticks(np.arange(N + 1) - 0.5, minor=True)
        axes.set_yticks(np.arange(C + 1) - 0.5, minor=True)
        axes.grid(which="minor", color="0.85", linewidth=0.5)
        axes.tick_params(which="minor", length=0)
    if N <= 12 and C <= 12:
        for c, k in zip(*np.nonzero(counts), strict=True):
            n = int(counts[c, k])
            dark = math.log(n) > 0.55 * math.log(most)
            colour = "white" if dark else "black"
            axes.text(k, c, str(n), ha="center", va="center", fontsize=7, color=colour)
    columns = np.arange(0, N, max(1, math.ceil(N * 0.22 / (cell_w * N))))
    rows = np.arange(0, C, max(1, math.ceil(0.14 / cell_h)))
    labels = [label(found, k) if N <= LISTED else str(k) for k in chosen[columns].tolist()]
    axes.set_xticks(columns, labels, fontsize=8)
    if max(map(len, labels)) > 3 or (len(labels) > 20 and max(map(len, labels)) > 1):
        axes.tick_params(axis="x", labelrotation=90)
    names = [name if len(name) <= 24 else name[:23] + "…" for name in found.class_names]
    axes.set_yticks(rows, [names[i] for i in rows], fontsize=8)
    for tick in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        tick.set_parse_math(False)  # a class may be called $5
    axes.set_xlabel("client", fontsize=9)
    axes.set_ylabel("class", fontsize=9)
    title = f"{found.name}, {found.experiment.partition}: training samples, white where there are none"
    if found.clients > DRAWN_CLIENTS:
        title += f"\n{DRAWN_CLIENTS} of {found.clients:,} clients, from the fewest classes to the most"
    title = "\n".join(textwrap.fill(line, int(width * 13)) for line in title.splitlines())
    figure.suptitle(title, x=0.01, ha="left", fontsize=9, parse_math=False)
    bar = figure.colorbar(image, ax=axes, pad=0.02, label="samples")
    marks = whole_ticks(most)
    bar.set_ticks(marks, labels=[f"{n:,}" for n in marks], fontsize=8)
    bar.minorticks_off()
    out = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a font without some script's letters draws boxes
        figure.savefig(out, format="png")
    return out.getvalue()


# -- HTML ------------------------------------------------------------------------------------------

_STYLE = """
body { max-width: 62rem; }
h2 { font-size: 1.1rem; }
.advice { border-color: #2f6fb3; }
figure { background: #fff; border: 1px solid var(--line); border-radius: 4px; overflow-x: auto; }
figure img { display: block; max-width: 100%; height: auto; margin: 0 auto; }
figure.wide img { min-width: 48rem; }
@media print { figure { overflow: visible; } figure.wide img { min-width: 0; } }
"""


def to_html(found: Inspection, picture: bytes) -> str:
    """One file that needs nothing else: no network, no script."""
    title = f"{found.name}: what its clients hold"
    alt = (
        f"Heat map of training samples by class and client: {found.missing_cells:.0%} of the cells are "
        "white, where a client has no sample of a class. The figures are in the tables and in inspect.json."
    )
    wide = ' class="wide"' if found.clients > 20 else ""  # scrolls on a phone instead of shrinking away
    source = f"data:image/png;base64,{base64.b64encode(picture).decode()}"
    tables = (clients_grid(found, LISTED_IN_HTML), counts_grid(found))
    body = [
        f"<h1>{escape(title)}</h1>\n",
        paragraph(heading(found).partition(": ")[2], "lead"),
        advice(verdict(found), found.advice.warnings),
        "<h2>Classes by client</h2>\n",
        f'<figure{wide} tabindex="0"><img alt={attribute(alt)} src={attribute(source)}></figure>\n',
        "<h2>The federation</h2>\n",
        described(findings(found)),
        *(f"<h2>{escape(t.title)}</h2>\n{replace(t, title='').to_html()}" for t in tables if t),
    ]
    return html_page(title, "".join(body), _STYLE)


# -- files -----------------------------------------------------------------------------------------


def save(found: Inspection, folder: Path) -> list[str]:
    """Write what can be written, all of it made before the first file; the files' names come back."""
    files: dict[str, str | bytes] = {"inspect.txt": to_text(found), "inspect.json": to_json(found)}
    picture = heatmap(found)
    if picture is not None:
        files |= {"heatmap.png": picture, "inspect.html": to_html(found, picture)}
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        write_atomically(folder / name, content)
    return list(files)
