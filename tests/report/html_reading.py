"""Reading a report as a browser would: balanced tags, tables, pictures with their words."""

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "link", "br", "img", "hr", "input"}


@dataclass
class Node:
    tag: str
    attributes: dict[str, str]
    children: "list[Node | str]" = field(default_factory=list)

    def find(self, tag: str) -> "list[Node]":
        found = [self] if self.tag == tag else []
        for child in self.children:
            if isinstance(child, Node):
                found += child.find(tag)
        return found

    def text(self) -> str:
        return "".join(c if isinstance(c, str) else c.text() for c in self.children)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.root = Node("", {})
        self.open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(set(names)) == len(names), f"<{tag}> has an attribute twice: {names}"
        node = Node(tag, {name: value or "" for name, value in attrs})
        self.open[-1].children.append(node)
        if tag not in VOID:
            self.open.append(node)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1].tag == tag, f"</{tag}> closes <{self.open[-1].tag}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.open[-1].children.append(data)


def read(html: str) -> Node:
    """The page as a tree; an AssertionError where its tags do not fit together."""
    reader = _Reader()
    reader.feed(html)
    reader.close()
    assert reader.open == [reader.root], f"<{reader.open[-1].tag}> is never closed"
    return reader.root


def table_after(page: Node, heading: str) -> dict[str, dict[str, str]]:
    """The first table after a heading: {row: {column: text}}."""
    seen = False
    for node in _in_order(page):
        if node.tag in ("h2", "h3", "h4") and node.text() == heading:
            seen = True
        if seen and node.tag == "table":
            return table_of(node)
    raise AssertionError(f"no table after {heading!r}")


def table_of(table: Node) -> dict[str, dict[str, str]]:
    head = [cell.text() for cell in table.find("thead")[0].find("th")]
    return {row[0]: dict(zip(head, row, strict=True)) for row in rows_of(table)}


def rows_of(table: Node) -> list[list[str]]:
    rows = table.find("tbody")[0].find("tr")
    return [[cell.text() for cell in row.children if isinstance(cell, Node)] for row in rows]


def _in_order(node: Node) -> list[Node]:
    nodes = [node]
    for child in node.children:
        if isinstance(child, Node):
            nodes += _in_order(child)
    return nodes
