"""Small pieces of HTML: text, tables, parts that fold."""

import html
from collections.abc import Sequence
from dataclasses import dataclass

# a cell is its text, or text with a mark: ("94.08", "best")
Cell = str | tuple[str, str]


def escape(text: str) -> str:
    return html.escape(text, quote=False)


def attribute(text: str) -> str:
    return f'"{html.escape(text)}"'


def paragraph(text: str, kind: str = "") -> str:
    mark = f' class="{kind}"' if kind else ""
    return f"<p{mark}>{escape(text)}</p>\n"


def details(summary: str, content: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>\n{content}</details>\n"


@dataclass(frozen=True)
class Table:
    """The first column names a row; all others are to the right, but those of cells marked "words"."""

    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""
    sortable: bool = False
    caption: str = ""

    def to_html(self) -> str:
        kind = ' class="sortable"' if self.sortable else ""
        caption = f"<caption>{escape(self.caption)}</caption>" if self.caption else ""
        words = {i for row in self.rows for i, cell in enumerate(row) if cell[1:] == ("words",)}
        kinds = (' class="words"' if i in words else "" for i in range(len(self.head)))
        head = "".join(
            f'<th scope="col"{kind}>{escape(name)}</th>' for name, kind in zip(self.head, kinds, strict=True)
        )
        body = "\n".join(
            "<tr>" + _row_head(row[0]) + "".join(map(_cell, row[1:])) + "</tr>" for row in self.rows
        )
        note = paragraph(self.note, "note") if self.note else ""
        return (
            f'<div class="scroll" tabindex="0"><table{kind}>{caption}\n<thead><tr>{head}</tr></thead>\n'
            f"<tbody>\n{body}\n</tbody></table></div>\n{note}"
        )


def _row_head(cell: Cell) -> str:
    text = cell if isinstance(cell, str) else cell[0]
    return f'<th scope="row">{escape(text)}</th>'


def _cell(cell: Cell) -> str:
    if isinstance(cell, str):
        return f"<td>{escape(cell)}</td>"
    text, kind = cell
    # marks must not be by looks alone: bold and underline are elements, with a word for those who listen
    if kind == "best":
        return f'<td class="best"><strong>{escape(text)}</strong><span class="hidden"> (best)</span></td>'
    if kind == "second":
        return f'<td class="second"><u>{escape(text)}</u><span class="hidden"> (second best)</span></td>'
    return f'<td class="{kind}">{escape(text)}</td>'
