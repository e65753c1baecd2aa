"""Tables of texts: as plain text, Markdown, HTML, and for a terminal."""

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from fedgela.html_page import escape, paragraph

# A cell is a text, or a text with a mark: ("94.08", "best"). In HTML a mark is the cell's class; plain text
# and Markdown show only "best" and "second". In text an empty mark is a blank, so that numbers stay aligned.
Cell = str | tuple[str, str]

NAMED = 14  # columns of a terminal that the names of rows are left before heads are folded

_IN_TEXT = {"best": "*", "second": "_", "": " "}
_IN_MARKDOWN = {"best": ("**", "**"), "second": ("<u>", "</u>")}
# marks are not only a matter of style: bold and underline are elements, with words for screen readers
_IN_HTML = {
    "best": ("<strong>", '</strong><span class="hidden"> (best)</span>'),
    "second": ("<u>", '</u><span class="hidden"> (second best)</span>'),
}


@dataclass(frozen=True)
class Grid:
    """A table of texts. The first column names the rows and is aligned to the left, all others to the right;
    in HTML columns with cells marked "words" are aligned to the left, too."""

    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""
    title: str = ""
    sortable: bool = False  # by clicks, in a page that has the script for it

    def to_text(self) -> str:
        lines = padded([self.head, *(list(map(_text, row)) for row in self.rows)])
        rule = "  ".join("-" * cell_len(cell) for cell in lines[0])
        shown = ["  ".join(line).rstrip() for line in lines]
        above = [self.title] if self.title else []
        return "\n".join([*above, shown[0], rule, *shown[1:], *textwrap.wrap(self.note, 100)])

    def to_markdown(self, aligned: bool = False) -> str:
        """Head and rows; with `aligned` columns are padded, so that the Markdown is easy to read as text."""
        lines = [list(map(_markdown, row)) for row in (self.head, *self.rows)]
        rule = ["---"] * len(self.head)
        if aligned:
            lines = padded(lines)
            rule = ["-" * (cell_len(cell) + 1) + ":" for cell in lines[0]]
            rule[0] = rule[0][::-1]
        shown = [f"| {' | '.join(line)} |" for line in lines]
        return "\n".join([shown[0], f"|{'|'.join(rule)}|", *shown[1:]])

    def to_html(self, inline: Callable[[str], str] = escape) -> str:
        """`inline` turns a cell's text into HTML."""
        words = {i for row in self.rows for i, cell in enumerate(row) if parts(cell)[1] == "words"}
        head = "".join(
            f'<th scope="col"{_class("words" if i in words else "")}>{inline(name)}</th>'
            for i, name in enumerate(self.head)
        )
        body = "\n".join(
            f'<tr><th scope="row">{inline(parts(row[0])[0])}</th>'
            + "".join(_html(cell, inline) for cell in row[1:])
            + "</tr>"
            for row in self.rows
        )
        kind = _class("sortable" if self.sortable else "")
        caption = f"<caption>{inline(self.title)}</caption>" if self.title else ""
        return (
            f'<div class="scroll" tabindex="0"><table{kind}>{caption}\n<thead><tr>{head}</tr></thead>\n'
            f"<tbody>\n{body}\n</tbody></table></div>\n{paragraph(self.note, 'note') if self.note else ''}"
        )

    def to_rich(self, width: int = 80) -> Table:
        """For a terminal of `width` columns. Where room is short names are folded, then heads, and no figure
        is cut."""
        table = Table(title=Text(self.title), title_justify="left", box=SIMPLE_HEAD, show_edge=False)
        table.padding = (0, 1, 0, 0)
        table.caption, table.caption_justify = Text(self.note) if self.note else None, "left"
        cells = [list(map(_text, row)) for row in self.rows]
        inside = [max(map(cell_len, column)) for column in zip(*cells, strict=True)] or [0] * len(self.head)
        whole = sum(
            max(cell_len(name), room) + 2 for name, room in zip(self.head[1:], inside[1:], strict=True)
        )
        for i, name in enumerate(self.head):
            if i and whole + NAMED > width:
                name = "\n".join(textwrap.wrap(name, max(inside[i], 6)))
            table.add_column(
                Text(name),
                justify="right" if i else "left",
                no_wrap=i > 0,
                overflow="ellipsis" if i else "fold",
            )
        for row in cells:
            table.add_row(*map(Text, row))
        return table


def padded(lines: Sequence[Sequence[str]], others: Callable[[str, int], str] = str.rjust) -> list[list[str]]:
    """Cells padded to the width of their columns: the first column to the left, the others by `others`.
    Widths are those of a terminal, where a Chinese character is as wide as two letters."""
    columns = []
    for i, column in enumerate(zip(*lines, strict=True)):
        width = max(map(cell_len, column))
        pad = others if i else str.ljust
        columns.append([pad(cell, len(cell) + width - cell_len(cell)) for cell in column])
    return [list(line) for line in zip(*columns, strict=True)]


def parts(cell: Cell) -> tuple[str, str]:
    """A cell's text and its mark, which is empty where it has none."""
    return (cell, "") if isinstance(cell, str) else cell


def _text(cell: Cell) -> str:
    return cell if isinstance(cell, str) else cell[0] + _IN_TEXT.get(cell[1], "")


def _markdown(cell: Cell) -> str:
    text, mark = parts(cell)
    before, after = _IN_MARKDOWN.get(mark, ("", ""))
    return before + text.replace("|", "\\|") + after


def _html(cell: Cell, inline: Callable[[str], str]) -> str:
    text, mark = parts(cell)
    before, after = _IN_HTML.get(mark, ("", ""))
    return f"<td{_class(mark)}>{before}{inline(text)}{after}</td>"


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""
