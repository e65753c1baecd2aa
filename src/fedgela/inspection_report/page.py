"""An inspection as one HTML page."""

import base64
from dataclasses import replace

from fedgela.html_page import advice, attribute, described, escape, html_page, paragraph
from fedgela.inspection import Inspection
from fedgela.inspection_report.tables import clients_grid, counts_grid
from fedgela.inspection_report.text import findings, in_short, verdict

LISTED_IN_HTML = 100
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
        paragraph(in_short(found), "lead"),
        advice(verdict(found), found.advice.warnings),
        "<h2>Classes by client</h2>\n",
        f'<figure{wide} tabindex="0"><img alt={attribute(alt)} src={attribute(source)}></figure>\n',
        "<h2>The federation</h2>\n",
        described(findings(found)),
        *(f"<h2>{escape(t.title)}</h2>\n{replace(t, title='').to_html()}" for t in tables if t),
    ]
    return html_page(title, "".join(body), _STYLE)
