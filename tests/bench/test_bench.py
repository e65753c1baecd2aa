"""`fedgela bench`, end to end and at its edges. What is fast is never asserted."""

import json
import sys
from pathlib import Path

import pytest

from fedgela import cli
from fedgela.bench import ENGINES, Options, run
from fedgela.bench.contender import Engine
from fedgela.bench.stage import ContenderFailed
from fedgela.errors import UserError

Capture = pytest.CaptureFixture[str]


def bench(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> object:
    monkeypatch.setattr("sys.argv", ["fedgela", "bench", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return stop.value.code


def test_the_command_measures_prints_and_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """With a peer that is not installed: the others go on."""
    monkeypatch.setitem(ENGINES, "pfl", Engine("nobody:Pfl", ("no_such_module",), "pfl"))
    out = tmp_path / "bench.json"
    command = "--workload digits --samples 200 --epochs 1 --repetitions 2 --engines plain,fedgela,pfl"
    code = bench(monkeypatch, *command.split(), "--device", "cpu", "--out", str(out))
    captured = capsys.readouterr()
    assert code == 0, captured.err
    assert "pfl is skipped: no_such_module not installed" in captured.err
    assert "| fedgela" in captured.out
    rows = {row["engine"]: row for row in json.loads(out.read_text())}
    assert list(rows) == ["plain", "fedgela"]
    assert rows["plain"]["ratio_to_plain"] == 1.0
    for row in rows.values():
        assert row["workload"] == "digits"
        assert row["samples_per_second"] > 0
        assert row["ratio_to_plain"] > 0
        assert row["start_seconds"] > 0
        assert row["arithmetic_share"] > 0
        assert row["gpu_utilisation"] is None
        assert row["training_samples"] == 200
        assert row["machine"]["cores"] >= 1
    if sys.platform == "linux":
        assert rows["plain"]["peak_memory_mb"] > 10
    assert rows["plain"]["threads"]


def test_unknown_names_are_told_with_the_nearest(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    assert bench(monkeypatch, "--workload", "digit") == 2
    assert "did you mean 'digits'?" in capsys.readouterr().err
    assert bench(monkeypatch, "--engines", "plain,flowers") == 2
    assert "did you mean 'flower'?" in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_told_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    (tmp_path / "a-file").write_text("")
    assert bench(monkeypatch, "--out", str(tmp_path / "a-file" / "bench.json")) == 2
    assert "a-file is a file, not a folder" in capsys.readouterr().err
    assert bench(monkeypatch, "--out", str(tmp_path)) == 2
    assert "is a folder; name a JSON file" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["cuda:99", "hpu", "gpu"])
def test_a_device_that_is_not_there(name: str) -> None:
    with pytest.raises(UserError, match=f"device: '{name}' cannot be used here"):
        run(Options(device=name), lambda line: None)


def test_the_reason_of_a_failure_is_the_last_line_of_its_traceback() -> None:
    assert ContenderFailed("Traceback\n  File\nValueError: so it is\n").reason == "ValueError: so it is"
    assert ContenderFailed("").reason == "no reason given"
