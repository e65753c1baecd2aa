"""What saved models tell: accuracy by class, confusion, features in the plane, neural collapse at the end."""

from dataclasses import dataclass

import numpy as np
import torch

from fedgela.client_names import client_names
from fedgela.errors import UserError, first_line
from fedgela.grids import Grid
from fedgela.heat_maps import WRITTEN, Floats, HeatMap
from fedgela.html_page import paragraph
from fedgela.measures import neural_collapse
from fedgela.report.context import Context, Part, Section, file_name
from fedgela.report.drawing import Picture
from fedgela.report.embedding import embed
from fedgela.report.entries import Entry, Setting
from fedgela.report.figures import COLOURED_UP_TO, feature_plane, matrix
from fedgela.report.saved_models import (
    Answers,
    ask_client,
    ask_global,
    chosen_client,
    client_files,
    global_file,
)

FEATURED = 4  # entries whose models are looked into


@dataclass(frozen=True)
class Asked:
    """What the models of an entry's first run answer."""

    whole: Answers | None = None  # the global model's
    own: Answers | None = None  # of one client's own model
    client: int | None = None
    whose: str = ""  # that client in words


def of_models(c: Context) -> list[Section]:
    by_class = Section("By class", _accuracy_by_class(c))
    features = Section("Features")
    of_server: list[Picture] = []
    of_clients: list[Picture] = []
    collapse: list[list[str]] = []
    for entry in featured(c.setting):
        asked = _asked(c, entry)
        if asked.whole is not None:
            by_class.parts.append(_confusion(c, entry, asked.whole))
            of_server.append(_plane(c, entry, asked.whole, "the global model", "global"))
            collapse.append([entry.label, *_collapse_cells(asked.whole)])
        if asked.own is not None:
            whose = f"{asked.whose}'s own model"
            of_clients.append(_plane(c, entry, asked.own, whose, f"client-{asked.client}"))
    if of_server or of_clients:
        features.parts += [paragraph(_features_note(c), "note"), *of_server, *of_clients]
    if collapse:
        head = ["method", "NC1", "NC1, relative", "NC2, means", "NC2, classifier", "NC3", "NC4"]
        note = (
            "Of the first seed's last global model on test samples, 0 at the collapse. NC1: mean squared "
            "distance of features to their class mean (relative: over the spread of the class means); NC2: "
            "distance of the Gram matrix from a simplex ETF's; NC3: mean distance of a class mean's "
            "direction from its classifier vector's; NC4: share of samples that the nearest class mean "
            "would decide otherwise."
        )
        features.parts.append(Grid(head, collapse, note, title="Neural collapse at the end"))
    return [by_class, features]


def _asked(c: Context, entry: Entry) -> Asked:
    """Nothing where there are no models or no test samples, or where they cannot be asked, which is noted."""
    run, federation = entry.first, c.federations.of(entry.first)
    if federation is None or len(federation.data.y_test) == 0:
        return Asked()
    if run.sites is not None and run.experiment.batchnorm == "local":
        return Asked()  # the global model has no BatchNorm that was ever trained: it stays on the sites
    client, own, whose = chosen_client(run, federation), None, ""
    try:
        whole = ask_global(run, federation) if global_file(run) else None
        if client is not None:
            own = ask_client(run, federation, client)
            names = client_names(run.experiment, federation)
            whose = f"client {client}" + (f" ({names[client]})" if names else "")
    except UserError as error:
        c.note(first_line(error))
        return Asked()
    if not all(answers.h.isfinite().all() for answers in (whole, own) if answers is not None):
        c.note(f"{run.path}: the features are no finite numbers: no pictures of its models")
        return Asked()
    return Asked(whole, own, client, whose)


def _collapse_cells(answers: Answers) -> list[str]:
    m = neural_collapse(answers.h, answers.labels, answers.W)
    numbers = (m.nc1_relative, m.nc2_means, m.nc2_classifier, m.nc3, m.nc4)
    return [f"{m.nc1:.4g}", *(f"{v:.4f}" for v in numbers)]


def featured(setting: Setting) -> list[Entry]:
    """Whose models are looked into: FedAvg, FedGELA and the best by GA, of those with saved models."""
    able = [entry for entry in setting.entries if global_file(entry.first) or client_files(entry.first)]
    ranks = setting.ranks("GA", "last")
    order = sorted(
        able, key=lambda e: (e.method not in ("fedavg", "fedgela"), ranks.get(e.label, len(able) + 1))
    )
    chosen = order[:FEATURED]
    return [entry for entry in able if entry in chosen]


def _accuracy_by_class(c: Context) -> list[Part]:
    rows = {entry.label: held for entry in c.setting.entries if (held := entry.GA_by_class())}
    if not rows or len({len(held) for held in rows.values()}) > 1:
        return []
    values = np.array([[np.nan if v is None else v for v in held] for held in rows.values()])
    names = c.class_names(values.shape[1])
    ends = "; ".join(
        f"{label} from {np.nanmin(v):.1f} to {np.nanmax(v):.1f}"
        for label, v in zip(rows, values, strict=True)
    )
    cells = [[label, *("-" if v is None else f"{v:.1f}" for v in held)] for label, held in rows.items()]
    several = any(len(entry.runs) > 1 for entry in c.setting.entries)
    return [
        matrix(
            "GA-by-class",
            f"GA by class at the last round{', mean over seeds' if several else ''}, %",
            f"Accuracy on each class, a row for each method: {ends}.",
            _percent(values, list(rows), names, "", "class"),
            Grid(["method", *names], cells),
        )
    ]


def _confusion(c: Context, entry: Entry, answers: Answers) -> Picture:
    C = len(answers.W)
    cells = torch.bincount(answers.labels * C + answers.predicted, minlength=C * C).view(C, C).numpy()
    part = "" if len(answers.labels) == answers.of else f", {len(answers.labels):,} of {answers.of:,} samples"
    title = f"Confusion of {entry.label}'s global model, seed {entry.first.seed}{part}: % of a class"
    return confusion(c, file_name(entry.label), title, cells)


def confusion(c: Context, name: str, title: str, cells: np.ndarray) -> Picture:
    """Of counts [C, C]: true class, predicted class."""
    C = len(cells)
    share = 100 * cells / np.maximum(cells.sum(axis=1, keepdims=True), 1)
    names = c.class_names(C)
    wrong = [(int(cells[i, j]), i, j) for i in range(C) for j in range(C) if i != j and cells[i, j]]
    worst = sorted(wrong, reverse=True)[:5]
    told = "; ".join(f"{n} of class {names[i]} taken for {names[j]}" for n, i, j in worst) or "no mistake"
    right = 100 * np.trace(cells) / max(cells.sum(), 1)
    table = None
    if C <= 20:
        rows = [[names[i], *(str(n) if n else "." for n in cells[i].tolist())] for i in range(C)]
        table = Grid(["true \\ predicted", *names], rows, "samples")
    return matrix(
        f"confusion-{name}",
        title,
        f"Rows are true classes, columns predictions; {right:.2f}% lie on the diagonal. Most often: {told}.",
        _percent(np.where(cells > 0, share, np.nan), names, names, "true class", "predicted class"),
        table,
        wide=False,
    )


def _percent(values: Floats, rows: list[str], columns: list[str], row: str, column: str) -> HeatMap:
    """Numbers in the cells say it all; where there is no room for them, a scale beside does."""
    scale_label = "" if max(values.shape) <= WRITTEN else "%"
    return HeatMap(values, rows, columns, row, column, scale=(0, 100), colour_label=scale_label)


def _plane(c: Context, entry: Entry, answers: Answers, whose: str, file: str) -> Picture:
    plane = embed(answers.h, answers.labels, answers.W, c.embedding)
    names = c.class_names(len(answers.W))
    drawn = int((~np.isnan(plane.directions).any(axis=1)).sum())
    held = f"{plane.explained:.0%} of the variance" if plane.explained is not None else ""
    text = (
        f"{len(plane.labels)} test samples as points in {plane.axes} coordinates of the "
        f"last-layer features of {len(np.unique(plane.labels))} classes, one colour a class"
        f"{'' if len(names) <= COLOURED_UP_TO else ' for those with most points, grey for others'}, with "
        f"classifier vectors as {'arrows' if plane.is_pca else 'stars'}; {drawn} classes have one."
        + (f" The plane holds {held}." if held else "")
    )
    title = f"{entry.label}, {whose}, seed {entry.first.seed}" + (f" ({held})" if held else "")
    return feature_plane(f"features-{file_name(entry.label)}-{file}", title, text, plane, names)


def _features_note(c: Context) -> str:
    if c.embedding == "tsne":
        how = "t-SNE by angle; the classifier's vectors are stars among the points."
    else:
        how = (
            "The two directions in which test features vary most (PCA). Arrows are the classifier's "
            "directions: the shorter, the less of it lies in the plane."
        )
    return how + (
        " One colour a class (of many classes, for those with most points). A client's own model is shown on "
        "its own test samples, where the method keeps one; classes that it gives no length have no arrow."
    )
