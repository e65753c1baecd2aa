"""Figures from seconds, the table, and what goes into JSON."""

import json

import pytest
import torch

from fedgela.bench.machine import describe
from fedgela.bench.measure import Limit
from fedgela.bench.rows import Row, Timing, to_json, to_text


def test_the_ratio_is_the_median_of_ratios_to_the_plain_round_right_before() -> None:
    # the machine slows down threefold for the last pair: speeds change, ratios hardly
    timing = Timing([1.0, 1.0, 3.0], [2.0, 2.2, 6.3], samples=100, plain_samples=100, rounds=1)
    row = Row("fedgela", "digits")
    timing.fill(row)
    assert row.ratio_to_plain == pytest.approx(2.1)
    assert row.ratio_low == pytest.approx(2.05)
    assert row.ratio_high == pytest.approx(2.15)
    assert row.round_seconds == pytest.approx(1.0)
    assert row.samples_per_second == pytest.approx(100.0)


def test_rounds_timed_together_are_told_singly() -> None:
    row = Row("plain", "digits")
    Timing([4.0], [4.0], samples=50, plain_samples=50, rounds=2).fill(row)
    assert row.round_seconds == pytest.approx(2.0)
    assert row.samples_per_second == pytest.approx(25.0)
    assert row.ratio_to_plain == pytest.approx(1.0)


def test_a_peer_that_sees_more_samples_in_a_round_is_compared_by_samples() -> None:
    row = Row("pfl", "digits")
    Timing([2.0], [2.0], samples=110, plain_samples=100, rounds=1).fill(row)
    assert row.ratio_to_plain == pytest.approx(1.1)


def test_json_is_a_list_of_rows_with_the_machine_in_each() -> None:
    rows = [Row("plain", "digits", 10.0, 1.0, machine=describe()), Row("pfl", "digits", error="no")]
    listed = json.loads(json.dumps(to_json(rows), allow_nan=False))
    assert [row["engine"] for row in listed] == ["plain", "pfl"]
    assert {"engine", "workload", "samples_per_second", "ratio_to_plain"} <= listed[0].keys()
    assert {"cpu", "cores", "gpu", "torch"} <= listed[0]["machine"].keys()
    assert listed[1]["samples_per_second"] is None
    assert listed[1]["error"] == "no"


def test_the_table_tells_what_is_missing_and_what_failed() -> None:
    rows = [
        Row("plain", "digits", 12345.6, 1.0, 1.0, 1.0, threads=[1], includes="training", machine=describe()),
        Row("pfl", "digits", error="the wheels came off", version="0.6"),
    ]
    text = to_text(rows)
    assert "| plain (1 thread) |    12,346 |    1.00 |" in text
    assert "pfl failed: the wheels came off" in text
    assert "a round of plain: training" in text
    rows[0].threads = [1, 2]
    assert "| plain (1 or 2 threads) |" in to_text(rows)
    assert "| pfl              |         - |" in text


def test_the_share_of_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedgela.bench.machine.matmul_rate", lambda device, precision: 1e9)
    limit = Limit(torch.device("cpu"))
    assert limit.share(2.5e8, "fp32") == pytest.approx(0.25)
    assert limit.share(2.5e8, "bf16") is None  # not measured on a CPU
