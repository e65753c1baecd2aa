"""The README and the docs: links lead somewhere, code shows as code, and commands take the options that they
name."""

import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from markdown_it import MarkdownIt

from fedgela.cli import app

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
MARKDOWN = MarkdownIt("commonmark").enable("table")
TABLE = re.compile(r"<!-- table: (.*?) -->\n(.*?)\n<!-- end -->", re.DOTALL)

of_every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def anchors(page: Path) -> set[str]:
    """The headings of a page as links name them: lower case, words joined by -, nothing else kept."""
    tokens = MARKDOWN.parse(page.read_text("utf-8"))
    headings = [after.content for token, after in itertools.pairwise(tokens) if token.tag[:1] == "h"]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(page: Path) -> Iterator[str]:
    for token in MARKDOWN.parse(page.read_text("utf-8")):
        for child in token.children or []:
            if child.type in ("link_open", "image"):
                yield str(child.attrs.get("href") or child.attrs["src"])


def code(text: str) -> Iterator[str]:
    for token in MARKDOWN.parse(text):
        if token.type in ("code_block", "fence"):
            yield token.content


@of_every_page
def test_links_lead_somewhere(page: Path) -> None:
    for link in links(page):
        if not link.startswith("https://"):
            file, _, anchor = link.partition("#")
            target = page.parent / file if file else page
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), link


@of_every_page
def test_what_is_indented_as_code_is_shown_as_code(page: Path) -> None:
    """Below a list an indentation of four is a paragraph of its last item: a fence is not."""
    text = page.read_text("utf-8")
    shown = {line.strip() for block in code(text) for line in block.splitlines()}
    for before, line in itertools.pairwise(text.splitlines()):
        if line.startswith("    ") and not before.strip():
            assert line.strip() in shown


def commands(page: Path) -> Iterator[list[str]]:
    for block in code(TABLE.sub("", page.read_text("utf-8"))):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True) if line.startswith("fedgela ") else []
            if words:
                yield words[1:]


@of_every_page
def test_commands_take_the_options_that_are_named(page: Path) -> None:
    for words in commands(page):
        command = typer.main.get_command(app)
        rest = iter(words)
        while hasattr(command, "commands"):
            command = command.commands[next(rest)]
        known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
        assert {word for word in rest if word.startswith("--")} <= known, " ".join(words)
