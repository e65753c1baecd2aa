"""The docs' tables are what the evidence gives."""

import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def test_the_tables_of_the_docs_are_those_of_the_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "results"))
    tables = importlib.import_module("tables")
    marked = 0
    for page in tables.pages():
        text = page.read_text()
        marked += text.count("<!-- table: ")
        assert tables.rendered(text) == text, f"{page.name}: write it anew: python results/tables.py"
    assert marked >= len(tables.TABLES)
