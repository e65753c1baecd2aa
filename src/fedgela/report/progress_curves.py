"""What changes by round: accuracies, losses, angles, collapse; and PA by client at the end."""

import math
from collections.abc import Mapping
from itertools import product

from fedgela.grids import Grid
from fedgela.html_page import details, paragraph
from fedgela.measures import etf_angle
from fedgela.over_seeds import spread
from fedgela.report.context import Context, Part, Section
from fedgela.report.curves import curves
from fedgela.report.entries import Curve, personal_accuracies
from fedgela.report.figures import client_dots

LISTED_CLIENTS = 100
LEAST_SPAN = 5  # points of accuracy that an axis covers
TRACKED_ON = "a sample of the training data with as many of every class"


def _series(c: Context, key: str) -> dict[str, Curve]:
    found = {entry.label: entry.curve(key) for entry in c.setting.entries}
    return {label: curve for label, curve in found.items() if curve.rounds}


def accuracy_curves(c: Context) -> Section:
    parts: list[Part] = []
    GA = _series(c, "GA")
    if GA:
        parts.append(
            curves("GA", f"GA: {c.setting.GA_of}, %", "GA, %", GA, c.styles, most=100, span=LEAST_SPAN)
        )
    PA, finetuned = _series(c, "PA"), _finetuned(c)
    if PA:
        title = "PA: personal models on their clients' own test samples, %"
        if finetuned:
            title += " (right of the last round: fine-tuned after it)"
        parts.append(curves("PA", title, "PA, %", PA, c.styles, after=finetuned, most=100, span=LEAST_SPAN))
    local = _series(c, "local_accuracy")
    if local and local.keys() != PA.keys():
        title = "Local models on their clients' own test samples, before aggregation, %"
        parts.append(
            curves("local-accuracy", title, "accuracy, %", local, c.styles, most=100, span=LEAST_SPAN)
        )
    loss = _series(c, "train_loss")
    if loss:
        title = "Mean training loss of a round (each method's own)"
        parts.append(curves("loss", title, "loss", loss, c.styles, log=True))
    return Section("Curves", parts)


def _finetuned(c: Context) -> dict[str, Curve]:
    """PA of methods that are fine-tuned after the last round: a curve of that round alone."""
    found = {}
    for entry in c.setting.entries:
        results = [run.result or {} for run in entry.runs.values()]
        # sites that had gone by then are not fine-tuned
        held = [result for result in results if result.get("PA_of") == "finetuned" and "PA" in result]
        if held:
            last_round = max(r["PA"]["last_round"] for r in held)
            over_seeds = spread([r["PA"]["last"] for r in held])
            found[entry.label] = Curve([last_round], [over_seeds["mean"] or 0.0], [over_seeds["std"]])
    return found


def personal_by_client(c: Context) -> Section:
    values = {entry.label: held for entry in c.setting.entries if (held := entry.by_client())}
    if not values:
        return Section("PA by client")
    seeds = max(len(entry.runs) for entry in c.setting.entries)
    title = "PA of every client at the last round" + (f", all of {seeds} seeds" if seeds > 1 else "")
    picture = client_dots("PA-by-client", title, values, c.styles)
    return Section("PA by client", [picture, *_each_client(c)])


def _each_client(c: Context) -> list[Part]:
    """Who is who: the first seed's clients by name. Of another seed they are others."""
    called = c.client_names() if c.setting.sites is None else []  # sites have a table of their own
    seed = c.setting.entries[0].first.seed
    runs = {entry.label: entry.runs[seed] for entry in c.setting.entries if seed in entry.runs}
    columns = {label: personal_accuracies(run) for label, run in runs.items()}
    shown = {label: values for label, values in columns.items() if len(values) == len(called)}
    if not shown or len(called) > LISTED_CLIENTS:
        return []
    rows = [
        [name, *("-" if values[k] is None else f"{values[k]:.2f}" for values in shown.values())]
        for k, name in enumerate(called)
    ]
    table = Grid(["client", *shown], rows, sortable=True)
    return [details(f"PA of each client, seed {seed}, %", table.to_html())]


_KINDS = {"angle": "classifier vectors", "class_mean_angle": "class means of features"}
_OWNERS = {"clients": "the clients'", "server": "the server's"}
_GROUPS = {
    "existing": "of the classes a client has",
    "missing": "of the classes a client lacks",
    "all": "of all classes",
}


def angle_curves(c: Context) -> Section:
    """A row of pictures for each kind of vectors of each kind of models."""
    parts: list[Part] = []
    fixed: list[str] = []
    C = c.classes()
    etf = etf_angle(C) if C else math.nan
    target = (etf, f"simplex ETF, {etf:.2f}°") if C else None
    for kind, whose in product(_KINDS, _OWNERS):
        drawn: list[Part] = []
        for group, which in _GROUPS.items():
            key = f"{kind}_{group}_{whose}"
            series = _angles(c, key)
            # where nobody lacks a class, those that clients have are all
            if not series or (group != "all" and _same(series, _angles(c, f"{kind}_all_{whose}"))):
                continue
            what = f"{_OWNERS[whose]} {_KINDS[kind]} {which}"
            if _stay_at(etf, series):
                fixed.append(what)
                continue
            title = f"Mean angle between {what}"
            name = key.replace("_", "-")
            drawn.append(curves(name, title, "degrees", series, c.styles, target, narrow=True))
        parts += [*drawn, ""]  # which ends the row
    if c.setting.keys("class_mean_angle_"):
        parts.insert(0, paragraph(f"Class means are those of features of {TRACKED_ON}.", "note"))
    if fixed:
        told = f"A simplex ETF's {etf:.2f}° in every round, and not drawn: {'; '.join(fixed)}."
        parts.append(paragraph(told, "note"))
    return Section("Angles", parts if any(parts) else [])


def _angles(c: Context, key: str) -> dict[str, Curve]:
    series = _series(c, key)
    if key.startswith("angle_") and key.endswith("_server"):
        # older runs of methods without a global model have angles of its first classifier, which nobody uses
        headless = {e.label for e in c.setting.entries if e.experiment.algorithm.GA_of != "global"}
        series = {label: curve for label, curve in series.items() if label not in headless}
    return series


def _same(some: Mapping[str, Curve], others: Mapping[str, Curve]) -> bool:
    """Whether two pictures would look alike."""
    return some.keys() == others.keys() and all(
        curve.rounds == others[label].rounds
        and all(math.isclose(a, b, rel_tol=1e-4) for a, b in zip(curve.mean, others[label].mean, strict=True))
        for label, curve in some.items()
    )


def _stay_at(level: float, series: Mapping[str, Curve]) -> bool:
    """Whether all lines lie on a level, up to rounding, so that there is nothing to see but that."""
    values = [v for curve in series.values() for v in curve.mean]
    return all(math.isclose(v, level, rel_tol=1e-4, abs_tol=1e-6) for v in values)


_COLLAPSE = {
    "nc1_relative": "NC1: variability within classes over that between class means",
    "nc1": "NC1: variability of features within classes",
    "nc2_means": "NC2: distance of the class means from a simplex ETF",
    "nc2_classifier": "NC2: distance of the classifier from a simplex ETF",
    "nc3": "NC3: distance between class means and classifier",
    "nc4": "NC4: share of samples that the nearest class mean would decide otherwise",
    "drift": "Drift: distance of local models from the global one, over its norm",
    "adaptation_cost": "Cost of adaptation: norm of Phi_k W - W",
    "gradient_norm": "Gradient: norm of the global loss's at the global model",
}


_WHERE = {"server": "the global model", "clients": "the clients' models"}


def other_curves(c: Context) -> Section:
    """Collapse against 0, and whatever else was tracked; a measure of the global model beside that of the
    clients'."""
    parts: list[Part] = []
    collapsed: list[str] = []
    order = list(_COLLAPSE)
    known = {key: max((k for k in order if key.startswith(k)), key=len) for key in c.setting.keys(*_COLLAPSE)}
    before = ""
    for key in sorted(known, key=lambda key: (order.index(known[key]), not key.endswith("_server"))):
        series = _series(c, key)
        if not series:
            continue
        where = key.removeprefix(known[key]).strip("_")
        title = _COLLAPSE[known[key]] + (f" ({_WHERE.get(where, where)})" if where else "")
        target = (0.0, "collapse, 0") if key.startswith("nc") else None
        if target and _stay_at(0.0, series):
            collapsed.append(title)
            continue
        name, what = key.replace("_", "-"), title.partition(":")[0]
        if known[key] != before and (target or before.startswith("nc")):
            parts.append("")  # which ends the row
        before = known[key]
        parts.append(curves(name, title, what, series, c.styles, target))
    if collapsed:
        parts.append(paragraph(f"0 in every round, and not drawn: {'; '.join(collapsed)}.", "note"))
    note = paragraph(f"NC1 to NC4 and the gradient are measured on {TRACKED_ON}.", "note")
    return Section("Neural collapse and drift", [note, *parts] if parts else [])
