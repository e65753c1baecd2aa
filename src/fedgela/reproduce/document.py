"""A page of headings, paragraphs and tables, as Markdown and as HTML with colours."""

import html
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from fedgela.grids import Cell, Grid
from fedgela.html_page import html_page

Field = Cell  # of a table here: a cell is one of the paper's
_STYLE = """
body { max-width: 77rem; font-size: 15px; }
h1 { font-size: 2em; } h2 { font-size: 1.5em; } h3 { font-size: 1.17em; }
table { font-size: 1em; margin: 1rem 0; }
th, td, th:first-child { border: 1px solid var(--line); padding: .25rem .6rem; text-align: left;
  white-space: normal; overflow-wrap: normal; }
thead th, thead th:first-child { background: var(--card); vertical-align: middle; }
tbody th { font-weight: normal; }
td.reached { background: #d5ecfb; color: #003a5c; }
td.below { background: #fde3cf; color: #6b2c00; }
td.untried { color: var(--soft); }
@media (prefers-color-scheme: dark) {
  td.reached { background: #06354f; color: #bfe6ff; }
  td.below { background: #4d2506; color: #ffd9bb; }
}
"""


@dataclass(frozen=True)
class Heading:
    level: int
    text: str


@dataclass(frozen=True)
class Paragraph:
    text: str  # with `code` in backticks


@dataclass(frozen=True)
class Listing:
    """Numbered from 1, as notes are referred to."""

    items: tuple[str, ...]


Block = Heading | Paragraph | Listing | Grid


def to_markdown(blocks: Sequence[Block]) -> str:
    return "\n\n".join(_markdown(block) for block in blocks) + "\n"


def _markdown(block: Block) -> str:
    if isinstance(block, Heading):
        return f"{'#' * block.level} {block.text}"
    if isinstance(block, Paragraph):
        return textwrap.fill(block.text, 118, break_long_words=False, break_on_hyphens=False)
    if isinstance(block, Listing):
        return "\n".join(f"{number}. {item}" for number, item in enumerate(block.items, start=1))
    return block.to_markdown()


def to_html(blocks: Sequence[Block], title: str) -> str:
    return html_page(title, "\n".join(map(_html, blocks)), _STYLE)


def _html(block: Block) -> str:
    if isinstance(block, Heading):
        # settings below it have the same names in several tables
        named = f' id="{anchor(block.text)}"' if block.level == 2 else ""
        return f"<h{block.level}{named}>{_inline(block.text)}</h{block.level}>"
    if isinstance(block, Paragraph):
        return f"<p>{_inline(block.text)}</p>"
    if isinstance(block, Listing):
        return "<ol>" + "".join(f"<li>{_inline(item)}</li>" for item in block.items) + "</ol>"
    return block.to_html(_inline)


def anchor(heading: str) -> str:
    """What a link names a heading by, here as on GitHub."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def raised(numbers: Sequence[int]) -> str:
    """The numbers of the notes that a text refers to."""
    return f" <sup>{','.join(map(str, numbers))}</sup>" if numbers else ""


def _inline(text: str) -> str:
    escaped = re.sub(r"`([^`]*)`", r"<code>\1</code>", html.escape(text))
    escaped = re.sub(r"&lt;sup&gt;([\d,]+)&lt;/sup&gt;", r"<sup>\1</sup>", escaped)
    escaped = re.sub(r"\*\*([^*]*)\*\*", r"<strong>\1</strong>", escaped)
    escaped = re.sub(r" ± |(?<=[▲▼]) ", lambda m: m[0].replace(" ", "\u00a0"), escaped)  # numbers stay whole
    return re.sub(r"\[([^\]]*)\]\(([^)]*)\)", r'<a href="\2">\1</a>', escaped)
