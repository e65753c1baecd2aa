"""The scripts that make the evidence use what the package has, and the docs' tables are what it gives."""

import ast
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SCRIPTS = sorted([*(ROOT / "results").glob("*.py"), *(ROOT / "examples").glob("**/*.py")])


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_what_a_script_imports_is_there(script: Path) -> None:
    for statement in ast.walk(ast.parse(script.read_text())):
        if isinstance(statement, ast.ImportFrom) and (statement.module or "").startswith("fedgela"):
            if statement.module.startswith("fedgela.flower"):
                pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedgela[flower]'")
            module = importlib.import_module(statement.module)
            for name in statement.names:
                if not hasattr(module, name.name):
                    importlib.import_module(f"{statement.module}.{name.name}")


def test_the_tables_of_the_docs_are_those_of_the_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "results"))
    tables = importlib.import_module("tables")
    marked = 0
    for page in tables.pages():
        text = page.read_text()
        marked += text.count("<!-- table: ")
        assert tables.rendered(text) == text, f"{page.name}: write it anew: python results/tables.py"
    assert marked >= len(tables.TABLES)
