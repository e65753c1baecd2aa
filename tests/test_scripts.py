"""The scripts that make the evidence use what the package has: nothing else runs them."""

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
