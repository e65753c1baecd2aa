"""Who holds what: the heat map of classes by client."""

import numpy as np

from fedgela.grids import Grid
from fedgela.heat_maps import DRAWN_CLIENTS, class_map, drawn_clients
from fedgela.html_page import paragraph
from fedgela.report.context import Context, Section
from fedgela.report.figures import matrix
from fedgela.saved.sites import Sites, joined


def who_holds_what(c: Context) -> Section:
    if c.setting.sites is not None:
        return _what_sites_share(c, c.setting.sites)
    if c.federation is None:
        return Section("Who holds what")
    counts = c.federation.train_counts.numpy()
    N, C = counts.shape
    chosen = drawn_clients(counts)
    missing = float((counts == 0).mean())
    names, called = c.class_names(C), c.client_names()
    title = f"Training samples by class and client, seed {c.setting.entries[0].first.seed}"
    if N > DRAWN_CLIENTS:
        title += f": {DRAWN_CLIENTS} of {N:,} clients, from the fewest classes to the most"
    text = f"{N:,} clients, {C} classes; {missing:.0%} of the cells are empty: the client lacks the class."
    table = None
    if N * C <= 2000:
        rows = [[called[k], *(str(n) if n else "." for n in counts[k].tolist())] for k in range(N)]
        table = Grid(["client", *names], rows)
    clients = [called[k] for k in chosen.tolist()]
    picture = matrix(
        "who-holds-what",
        title,
        text,
        class_map(counts[chosen].T, names, clients),
        table,
    )
    return Section("Who holds what", [paragraph(text, "note"), picture])


def _what_sites_share(c: Context, sites: Sites) -> Section:
    """The map of the sites that opted in to share their class counts; the others' columns stay empty."""
    told = joined(c.setting.entries[0].first.records)
    counts = {
        name: told[name]["train_by_class"] for name in sites.names if "train_by_class" in told.get(name, {})
    }
    if not counts:
        return Section("Who holds what")
    C = len(next(iter(counts.values())))
    names = c.class_names(C)
    kept = [name for name in sites.names if name not in counts]
    text = f"{len(counts)} of {len(sites.names)} sites share their class counts."
    text += f" Not shared: {', '.join(kept)}." if kept else ""
    shown = np.array([counts.get(name, [0] * C) for name in sites.names]).T
    rows = [
        [name, *(str(n) if n else "." for n in counts[name])]
        if name in counts
        else [name, "not shared", *[""] * (C - 1)]
        for name in sites.names
    ]
    columns = [name if name in counts else f"{name} (not shared)" for name in sites.names]
    picture = matrix(
        "who-holds-what",
        "Training samples by class and site",
        text,
        class_map(shown, names, columns, "site"),
        Grid(["site", *names], rows),
    )
    return Section("Who holds what", [paragraph(text, "note"), picture])
