"""A page of headings, paragraphs and tables, as Markdown and as HTML with colours."""

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Tone = Literal["reached", "below", "untried", "plain"]
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem;
       padding: 0 1rem; color: #1b1f24; background: #fff; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
th, td { border: 1px solid #d0d7de; padding: .25rem .6rem; text-align: left; }
th { background: #f3f5f8; }
.reached { background: #d5ecfb; color: #003a5c; }
.below { background: #fde3cf; color: #6b2c00; }
.untried { color: #6a737d; }
@media (prefers-color-scheme: dark) {
  body { background: #14181e; color: #e6e9ed; }
  th, td { border-color: #3a424d; }
  th { background: #1e242c; }
  .reached { background: #06354f; color: #bfe6ff; }
  .below { background: #4d2506; color: #ffd9bb; }
  .untried { color: #9aa4b0; }
}
"""


@dataclass(frozen=True)
class Field:
    """One cell of a table: its text, the numbers of its notes, and whether it is good news."""

    text: str
    notes: tuple[int, ...] = ()
    tone: Tone = "plain"


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


@dataclass(frozen=True)
class Grid:
    head: tuple[str, ...]
    rows: tuple[tuple[Field, ...], ...]


Block = Heading | Paragraph | Listing | Grid


def to_markdown(blocks: Sequence[Block]) -> str:
    return "\n\n".join(_markdown(block) for block in blocks) + "\n"


def _markdown(block: Block) -> str:
    if isinstance(block, Heading):
        return f"{'#' * block.level} {block.text}"
    if isinstance(block, Paragraph):
        return block.text
    if isinstance(block, Listing):
        return "\n".join(f"{number}. {item}" for number, item in enumerate(block.items, start=1))
    lines = [f"| {' | '.join(block.head)} |", "|" + "---|" * len(block.head)]
    for row in block.rows:
        texts = [field.text.replace("|", "\\|") + _marks(field) for field in row]
        lines.append(f"| {' | '.join(texts)} |")
    return "\n".join(lines)


def _marks(field: Field) -> str:
    return f" <sup>{','.join(map(str, field.notes))}</sup>" if field.notes else ""


def to_html(blocks: Sequence[Block], title: str) -> str:
    body = "\n".join(_html(block) for block in blocks)
    return (
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{html.escape(title)}</title>\n'
        f"<style>{_STYLE}</style>\n{body}\n</html>\n"
    )


def _html(block: Block) -> str:
    if isinstance(block, Heading):
        return f"<h{block.level}>{_inline(block.text)}</h{block.level}>"
    if isinstance(block, Paragraph):
        return f"<p>{_inline(block.text)}</p>"
    if isinstance(block, Listing):
        return "<ol>" + "".join(f"<li>{_inline(item)}</li>" for item in block.items) + "</ol>"
    head = "".join(f"<th>{_inline(text)}</th>" for text in block.head)
    rows = "\n".join(
        "<tr>"
        + "".join(f'<td class="{field.tone}">{_inline(field.text)}{_marks(field)}</td>' for field in row)
        + "</tr>"
        for row in block.rows
    )
    return f"<table>\n<tr>{head}</tr>\n{rows}\n</table>"


def _inline(text: str) -> str:
    escaped = re.sub(r"`([^`]*)`", r"<code>\1</code>", html.escape(text))
    escaped = re.sub(r"\*\*([^*]*)\*\*", r"<strong>\1</strong>", escaped)
    return re.sub(r"\[([^\]]*)\]\(([^)]*)\)", r'<a href="\2">\1</a>', escaped)
