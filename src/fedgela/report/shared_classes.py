"""Figures by class of the sites that opted in to share them."""

from collections.abc import Mapping, Sequence

import numpy as np

from fedgela.grids import Grid
from fedgela.heat_maps import HeatMap
from fedgela.report.context import Context, Section, file_name
from fedgela.report.drawing import Picture
from fedgela.report.entries import Entry
from fedgela.report.figures import matrix
from fedgela.report.model_pictures import confusion

CONFUSED = 4  # sites whose confusion is drawn


def shared_by_class(c: Context) -> Section:
    section = Section("Classes of the sites that share them")
    for entry in c.setting.entries:
        records = entry.first.records
        held = next((r["by_class"] for r in reversed(records) if r.get("by_class")), None)
        if entry.first.sites is None or held is None:
            continue
        # a round's scores may be there without any model of a site's own
        rows = {site: f["local_accuracy"] for site, f in held.items() if "local_accuracy" in f}
        if rows:
            section.parts.append(_accuracies(c, entry, rows))
        confused = {site: f["local_confusion"] for site, f in held.items() if "local_confusion" in f}
        for site in list(confused)[:CONFUSED]:
            title = f"Confusion of {entry.label}'s own model on {site}, % of a class"
            section.parts.append(
                confusion(c, f"{file_name(entry.label)}-{site}", title, np.array(confused[site]))
            )
        of_global = [f["GA_confusion"] for f in held.values() if "GA_confusion" in f]
        if of_global:
            title = f"Confusion of {entry.label}'s global model on the sites that share, % of a class"
            total = np.sum([np.array(one) for one in of_global], axis=0)
            section.parts.append(confusion(c, f"{file_name(entry.label)}-global", title, total))
    return section


def _accuracies(c: Context, entry: Entry, rows: Mapping[str, Sequence[float | None]]) -> Picture:
    values = np.array([[np.nan if v is None else v for v in row] for row in rows.values()], dtype=np.float64)
    names = c.class_names(values.shape[1])
    table = [[site, *("-" if v is None else f"{v:.1f}" for v in row)] for site, row in rows.items()]
    return matrix(
        f"by-class-{file_name(entry.label)}",
        f"Accuracy of {entry.label}'s own models by site and class at the last round, %",
        "Each site's own model on its own test samples, of the sites that share it. Empty: no test samples.",
        HeatMap(values, list(rows), names, "", "class", scale=(0, 100), colour_label="%"),
        Grid(["site", *names], table),
    )
