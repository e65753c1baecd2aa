"""`fedgela report`: the file, the figures in papers' sizes, and mistakes in one line."""

import re
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fedgela.report.drawing import COLUMNS, PNG_DPI
from helpers import Cli


@pytest.fixture
def command(command: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """The command line in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return command


def test_a_file_is_written_where_one_is(command: Cli, made_run: Callable[..., Path], tmp_path: Path) -> None:
    code, out, err = command("report", made_run("run", [50.0, 60.0]))
    assert code == 0 and "1 run: written to report.html" in out
    assert "note: the data set 'cifar10' is not on this machine" in err
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")


def test_figures_have_the_sizes_of_papers(
    command: Cli, made_run: Callable[..., Path], tmp_path: Path
) -> None:
    code, out, _ = command(
        "report", made_run("run", [50.0, 60.0]), "--figures", "figures", "--out", "a/b.html"
    )
    assert code == 0 and (tmp_path / "a/b.html").exists()
    written = {path.name for path in (tmp_path / "figures").iterdir()}
    assert {"GA-3.25in.png", "GA-3.25in.svg", "GA-6.75in.png", "GA-6.75in.svg"} <= written
    assert len(written) == 4 * int(re.search(r"(\d+) figures", out)[1])  # type: ignore[index]
    for inches in COLUMNS:
        png = (tmp_path / f"figures/GA-{inches:g}in.png").read_bytes()
        assert struct.unpack(">I", png[16:20])[0] == round(inches * PNG_DPI)
        svg = (tmp_path / f"figures/GA-{inches:g}in.svg").read_text()
        assert f'width="{72 * inches:g}pt"' in svg and "fedgela" in svg  # with a legend of its own
        assert "var(--" not in svg


def test_mistakes(command: Cli, made_run: Callable[..., Path], tmp_path: Path) -> None:
    run = made_run("run", [50.0])
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    for arguments, words in (
        (["nowhere"], "nowhere: there is no such folder"),
        (["empty"], "empty: there is no run in this folder"),
        ([tmp_path / "file"], "is a file"),
        ([run, "--out", tmp_path], "is a folder; name an HTML file"),
        ([run, "--out", "file/x.html"], "file is a file, not a folder"),
        ([run, "--figures", "file"], "--figures: file is a file"),
        ([run, "--out", "/proc/nowhere/x.html"], "cannot be written to"),  # not even by root
        ([run, "--figures", "/proc/nowhere"], "cannot be written to"),
        ([run, "--out", run / "config.toml"], "config.toml is read by this command"),
        ([run, "--features", "umap"], "--features: pca or tsne, not 'umap'"),
    ):
        code, _, err = command("report", *arguments)
        assert code == 2 and words in err and len(err.splitlines()) == 1, err
    assert not (tmp_path / "report.html").exists()


def test_without_matplotlib_a_line_says_what_to_install(
    command: Cli, made_run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, _, err = command("report", made_run("run", [50.0]))
    assert code == 2 and "pip install 'fedgela[report]'" in err and len(err.splitlines()) == 1
