"""`fedgela bench`, end to end and at its edges. What is fast is never asserted."""

import json
import sys
from pathlib import Path

import pytest

from fedgela.bench import ENGINES, Options, run
from fedgela.bench.contender import Engine
from fedgela.bench.stage import ContenderFailed
from fedgela.errors import UserError
from helpers import Cli


def test_the_command_measures_prints_and_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Cli
) -> None:
    """With a peer that is not installed: the others go on."""
    monkeypatch.setitem(ENGINES, "pfl", Engine("nobody:Pfl", ("no_such_module",), "pfl"))
    out = tmp_path / "bench.json"
    asked = "bench --workload digits --samples 200 --epochs 1 --repetitions 2 --engines plain,fedgela,pfl"
    code, text, told = command(*asked.split(), "--device", "cpu", "--out", out)
    assert code == 0, told
    assert "pfl is skipped: no_such_module not installed" in told
    assert "| fedgela" in text
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


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--workload", "digit"], "did you mean 'digits'?"),
        (["--engines", "plain,flowers"], "did you mean 'flower'?"),
        (["--out", "{tmp_path}/a-file/bench.json"], "a-file is a file, not a folder"),
        (["--out", "{tmp_path}"], "is a folder; name a JSON file"),
    ],
)
def test_mistakes_are_told_before_anything_is_measured(
    arguments: list[str], told: str, tmp_path: Path, command: Cli
) -> None:
    (tmp_path / "a-file").write_text("")
    code, text, error = command("bench", *(argument.format(tmp_path=tmp_path) for argument in arguments))
    assert (code, text) == (2, "") and told in error


@pytest.mark.parametrize("name", ["cuda:99", "hpu", "gpu"])
def test_a_device_that_is_not_there(name: str) -> None:
    with pytest.raises(UserError, match=f"device: '{name}' cannot be used here"):
        run(Options(device=name), lambda line: None)


def test_the_reason_of_a_failure_is_the_last_line_of_its_traceback() -> None:
    assert ContenderFailed("Traceback\n  File\nValueError: so it is\n").reason == "ValueError: so it is"
    assert ContenderFailed("").reason == "no reason given"
