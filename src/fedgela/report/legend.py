"""The legend of the page's pictures: a button for each method."""

from collections.abc import Sequence

from fedgela.html_page import attribute, escape
from fedgela.report.colours import PALETTE, Style


def _swatch(style: Style) -> str:
    """A short line as the method's is drawn, for the page's legend."""
    dashes = " ".join(f"{1.4 * d:g}" for d in style.dashes)
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    colour = PALETTE[style.index][0]
    return (
        '<svg class="swatch" viewBox="0 0 28 8" aria-hidden="true">'
        f'<path d="M1 4H27" stroke="var(--{colour})" stroke-width="2.4"{dashed}/></svg>'
    )


def legend(styles: dict[str, Style], labels: Sequence[str]) -> str:
    """A button for each label, which hides and shows what is drawn of it."""
    buttons = "".join(
        f'<button type="button" aria-pressed="true" data-toggle={attribute(label)}>'
        f"{_swatch(styles[label])}{escape(label)}</button>"
        for label in labels
    )
    return f'<div class="legend" role="group" aria-label="Methods shown">{buttons}</div>\n'
