"""An inspection as one HTML page."""

from dataclasses import replace

from fedgela.heat_maps import DRAWN_CLIENTS, class_map, drawn_clients
from fedgela.html_page import advice, described, escape, html_page, paragraph
from fedgela.inspection import Inspection
from fedgela.inspection_report.tables import LISTED, clients_grid, counts_grid, label
from fedgela.inspection_report.text import findings, in_short, verdict

LISTED_IN_HTML = 100
_STYLE = """
body { max-width: 62rem; }
h2 { font-size: 1.1rem; }
.advice { border-color: #2f6fb3; }
figure:not(.wide) { max-width: 40rem; }
"""


def to_html(found: Inspection) -> str:
    """One file that needs nothing else: no network, no script."""
    title = f"{found.name}: what its clients hold"
    tables = (clients_grid(found, LISTED_IN_HTML), counts_grid(found))
    body = [
        f"<h1>{escape(title)}</h1>\n",
        paragraph(in_short(found), "lead"),
        advice(verdict(found), found.advice.warnings),
        "<h2>Classes by client</h2>\n",
        _picture(found),
        "<h2>The federation</h2>\n",
        described(findings(found)),
        *(f"<h2>{escape(t.title)}</h2>\n{replace(t, title='').to_html()}" for t in tables if t),
    ]
    return html_page(title, "".join(body), _STYLE)


def _picture(found: Inspection) -> str:
    """Drawn in the page's own font and colours, as the report's pictures are."""
    from fedgela.report.figures import matrix

    chosen = drawn_clients(found.train_counts)
    counts = found.train_counts[chosen].T  # [C, N]
    C, N = counts.shape
    clients = [label(found, k) if N <= LISTED else str(k) for k in chosen.tolist()]
    title = "Training samples by class and client, empty where there are none"
    if found.clients > DRAWN_CLIENTS:
        title += f": {DRAWN_CLIENTS} of {found.clients:,} clients, from the fewest classes to the most"
    text = (
        f"Heat map: {found.missing_cells:.0%} of the cells are empty, where a client has no sample of a "
        "class. The figures are in the tables and in inspect.json."
    )
    shown = class_map(counts, found.class_names, clients)
    return matrix("classes-by-client", title, text, shown, wide=N > 20 or C > 40).to_html("map")
