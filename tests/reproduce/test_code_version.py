"""The commit that a line of the ledger names."""

import subprocess
from pathlib import Path

import pytest

from fedgela.reproduce import code_version


def test_the_commit_is_of_the_package_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "src/fedgela"
    (package / "reproduce").mkdir(parents=True)
    monkeypatch.setattr(code_version, "__file__", str(package / "reproduce/code_version.py"))
    monkeypatch.delenv("FEDGELA_COMMIT", raising=False)
    (package / "__init__.py").write_text("")
    assert code_version.commit.__wrapped__() is None  # there is no repository

    def git(*arguments: str) -> None:
        names = ["-c", "user.name=n", "-c", "user.email=e"]
        subprocess.run(["git", "-C", str(tmp_path), *names, *arguments], check=True, capture_output=True)

    git("init")
    (tmp_path / "ledger").write_text("")
    git("add", ".")
    assert code_version.commit.__wrapped__() is None  # nor a commit in it
    git("commit", "-m", "first")
    clean = code_version.commit.__wrapped__()
    assert clean is not None and len(clean) >= 7 and "-" not in clean
    (tmp_path / "ledger").write_text("a line")
    assert code_version.commit.__wrapped__() == clean
    (package / "__init__.py").write_text("changed")
    assert code_version.commit.__wrapped__() == f"{clean}-dirty"
    monkeypatch.setenv("FEDGELA_COMMIT", "told")
    assert code_version.commit.__wrapped__() == "told"
