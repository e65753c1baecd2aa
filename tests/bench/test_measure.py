"""Who plays when, and what becomes of a contender that fails; no process is started for it."""

import multiprocessing
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from fedgela.bench import measure, stage
from fedgela.bench.contender import ENGINES, Contender, Engine
from fedgela.bench.measure import Limit
from fedgela.bench.rows import Row
from fedgela.bench.stage import ContenderFailed, Facts, perform
from fedgela.bench.workloads import prepare
from fedgela.config import Experiment
from helpers import tiny


class FakeStage:
    """Takes one second a round, pfl half of it; fluke fails at once, flower in its second round."""

    log: ClassVar[list[str]] = []
    peak_memory = 5_000_000
    peak_gpu_memory = None

    def __init__(self, contender: str, experiment: Experiment) -> None:
        self.name = contender
        self.rounds = 0

    def warm_up(self) -> Facts:
        if self.name == "fluke":
            raise ContenderFailed("Traceback\nImportError: no torchvision")
        return Facts(100, 2.0, (1,), "fp32", "training")

    def play(self, rounds: int) -> float:
        self.log.append(self.name)
        self.rounds += 1
        if self.name == "flower" and self.rounds == 2:
            raise ContenderFailed("Traceback\nRuntimeError: Ray is gone")
        return rounds * (0.5 if self.name == "pfl" else 1.0)

    def utilisation(self) -> None:
        return None

    def close(self, patience: float = 40.0) -> None:
        self.log.append(f"close {self.name}")


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Row]:
    FakeStage.log.clear()
    monkeypatch.setattr(measure, "Stage", FakeStage)
    monkeypatch.setattr("fedgela.bench.machine.matmul_rate", lambda device, precision: 1e12)
    for name in ENGINES:
        monkeypatch.setitem(ENGINES, name, Engine(name, () if name == "plain" else ("json",)))
    task = prepare("digits", torch.device("cpu"), tmp_path, samples=200)
    limit = Limit(torch.device("cpu"))
    said: list[str] = []
    kept: list[dict[str, int]] = []

    def keep(rows: list[Row]) -> None:
        kept.append({row.engine: row.repetitions for row in rows if row.samples_per_second})

    listed = measure.measure(task, ["plain", "pfl", "fluke", "flower"], 1, 2, limit, said.append, keep)
    assert said == [
        "digits: plain is ready after 2.0 s",
        "digits: pfl is ready after 2.0 s",
        "digits: fluke failed: ImportError: no torchvision",
        "digits: flower is ready after 2.0 s",
        "digits: turn 1 of 2: plain 1.00 s, pfl 0.50 s",
        "digits: turn 1 of 2: plain 1.00 s, flower 1.00 s",
        "digits: turn 2 of 2: plain 1.00 s, pfl 0.50 s",
        "digits: flower failed: RuntimeError: Ray is gone",
    ]
    # what is known after every turn, for the case that it is stopped
    assert kept == [{"plain": 2, "pfl": 1, "flower": 1}, {"plain": 4, "pfl": 2}]
    return {row.engine: row for row in listed}


def test_a_plain_round_comes_right_before_each_other_one(rows: dict[str, Row]) -> None:
    played = [name for name in FakeStage.log if not name.startswith("close")]
    assert played == ["plain", "pfl", "plain", "flower"] * 2


def test_ratios_and_shares(rows: dict[str, Row]) -> None:
    assert rows["plain"].ratio_to_plain == 1.0
    assert rows["pfl"].ratio_to_plain == 2.0
    assert rows["pfl"].samples_per_second == 200.0
    assert rows["pfl"].peak_memory_mb == 5.0
    plain, pfl = rows["plain"].arithmetic_share, rows["pfl"].arithmetic_share
    assert plain is not None and pfl is not None
    assert pfl == pytest.approx(2 * plain)


def test_who_fails_has_a_row_with_the_reason_and_no_figures(rows: dict[str, Row]) -> None:
    assert rows["fluke"].error == "ImportError: no torchvision"
    assert rows["flower"].error == "RuntimeError: Ray is gone"
    for name in ("fluke", "flower"):
        assert rows[name].samples_per_second is None
        assert rows[name].ratio_to_plain is None
    assert rows["plain"].error is None


def test_every_process_is_ended_once(rows: dict[str, Row]) -> None:
    closed = [name for name in FakeStage.log if name.startswith("close")]
    assert sorted(closed) == ["close flower", "close fluke", "close pfl", "close plain"]


class Broken(Contender):
    """A peer that cannot play."""

    def round(self) -> None:
        raise RuntimeError("first line\nthe wheels came off")


def test_a_contender_s_error_comes_back_as_its_traceback(npz: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedgela.bench.stage._become_quiet", lambda parent, log: None)
    mine, theirs = multiprocessing.Pipe()
    perform("test_measure:Broken", tiny(npz), theirs, 0, 0)
    failure = ContenderFailed(mine.recv())
    assert failure.reason == "the wheels came off"
    assert str(failure).startswith("Traceback")


@pytest.mark.parametrize("short", [True, False], ids=["short rounds", "long rounds"])
def test_a_gpu_is_watched_until_there_are_enough_readings(
    short: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of rounds too short to be looked at as well; no process is started, and there is no GPU."""
    monkeypatch.setattr(stage, "gpu_utilisation", lambda device: 50.0)
    monkeypatch.setattr(stage, "A_READING", -1.0)
    watched = stage.Stage.__new__(stage.Stage)
    watched._busy, watched._device = [], torch.device("cpu")
    played: list[int] = []
    monkeypatch.setattr(watched, "_send", played.append)
    monkeypatch.setattr(watched, "_answer", lambda look: 1.0 if short else look())
    assert watched.utilisation() == 50.0
    assert len(played) == (stage.ENOUGH_READINGS if short else stage.ENOUGH_READINGS / 2)
    monkeypatch.setattr(stage, "gpu_utilisation", lambda device: None)
    assert watched.utilisation() is None
