"""An inspection's picture."""

import io
import textwrap
import warnings
from typing import Any

from fedgela.heat_maps import DRAWN_CLIENTS, class_map, drawn_clients
from fedgela.inspection import Inspection
from fedgela.inspection_report.tables import LISTED, label

_SETTINGS: Any = {
    "font.size": 8,
    "axes.labelsize": 9,
    "figure.titlesize": 9,
    "grid.color": "0.85",
    "text.parse_math": False,  # a class may be called $5
}


def heatmap(found: Inspection) -> bytes | None:
    """A PNG of classes by client as in the paper's appendix C, white where there is no sample; None
    where matplotlib is not installed."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        return None
    chosen = drawn_clients(found.train_counts)
    counts = found.train_counts[chosen].T  # [C, N]
    C, N = counts.shape
    side = max(0.11, min(0.5, 10 / max(N, 1), 9 / C if C > 40 else 1.0))  # inches a cell
    cell_w, cell_h = max(side, 3.5 / N), max(min(side, 12 / C), 2.0 / C)
    width, height = cell_w * N + 2.4, cell_h * C + 1.5
    clients = [label(found, k) if N <= LISTED else str(k) for k in chosen.tolist()]
    title = f"{found.name}, {found.experiment.partition}: training samples, white where there are none"
    if found.clients > DRAWN_CLIENTS:
        title += f"\n{DRAWN_CLIENTS} of {found.clients:,} clients, from the fewest classes to the most"
    title = "\n".join(textwrap.fill(line, int(width * 13)) for line in title.splitlines())
    out = io.BytesIO()
    with warnings.catch_warnings(), matplotlib.rc_context(_SETTINGS):
        warnings.simplefilter("ignore")  # a font without some script's letters draws boxes
        figure = Figure(figsize=(width, height), dpi=150, facecolor="white", layout="constrained")
        drawn = class_map(counts, found.class_names, clients)
        drawn.draw(figure.add_subplot(), cell_w * N, named_rows=cell_h * C / 0.14)
        figure.suptitle(title, x=0.01, ha="left")
        figure.savefig(out, format="png")
    return out.getvalue()
