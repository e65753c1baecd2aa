"""What a method costs a client, counted by hand where it can be."""

import json
import time
from pathlib import Path

import pytest

from fedgela import burden
from fedgela.algorithms import Update
from fedgela.burden import lines, measure
from fedgela.resolve import resolve
from fedgela.server import Server
from fedgela.training import Outcome
from helpers import Cli, tiny


def test_parameters_held_kept_and_sent(npz: Path) -> None:
    names = ["fedavg", "fedprox", "moon", "fedrep", "fedproto", "fedgela", "local"]
    burdens = {b.method: b for b in measure({n: tiny(npz, algorithm=n, sample=4) for n in names}, 1)}
    server = Server(*resolve(tiny(npz, algorithm="fedavg")))
    model = sum(p.numel() for p in server.net.parameters()) / 1e6
    head = sum(p.numel() for p in server.net.head.parameters()) / 1e6
    held = {name: b.held / model for name, b in burdens.items()}
    assert held["fedavg"] == pytest.approx(1)
    assert held["fedprox"] == pytest.approx(2)  # the global model
    assert held["moon"] == pytest.approx(3)  # the global model, and the client's last one
    assert burdens["fedrep"].sent == pytest.approx(model - head)
    assert burdens["local"].sent == 0
    assert burdens["fedavg"].kept == 0
    assert burdens["moon"].kept == pytest.approx(model)
    C, d = 4, 8  # of the tiny experiment
    assert burdens["fedproto"].sent == pytest.approx(C * d / 1e6)  # class means; counts are no parameters
    assert burdens["fedgela"].sent == pytest.approx(model - head)  # the ETF stays


def test_times_are_medians_and_quartiles_of_pairs(npz: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # fedavg for itself, fedavg right before moon, moon; and so on
    seconds = iter([7.0, 1.0, 1.0, 7.0, 2.0, 4.0, 8.0, 1.0, 3.0, 9.0, 2.0, 8.0, 7.0, 1.0, 5.0])
    monkeypatch.setattr(burden, "_train_once", lambda server, progress: next(seconds))
    fedavg, moon = measure({name: tiny(npz, algorithm=name) for name in ("fedavg", "moon")}, 5)
    assert (fedavg.seconds, moon.seconds) == (7, 4)
    assert (fedavg.ratio_low, fedavg.ratio, fedavg.ratio_high) == (1, 1, 1)
    assert (moon.ratio_low, moon.ratio, moon.ratio_high) == (2, 3, 4)  # of 1, 2, 3, 4 and 5
    assert not list(seconds)


def test_the_time_is_of_training_and_of_the_update(npz: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(*resolve(tiny(npz, algorithm="fedproto")))
    progress = server.begin()
    server.step(progress)
    sent, update = [], server.update

    def slow(outcome: Outcome) -> Update:
        time.sleep(0.1)
        sent.append(outcome.client)
        return update(outcome)

    monkeypatch.setattr(server, "update", slow)
    assert burden._train_once(server, progress) > 0.4
    assert sorted(sent) == [0, 1, 2, 3]


def test_the_command_prints_a_table_and_writes_json(npz: Path, tmp_path: Path, command: Cli) -> None:
    out = tmp_path / "new" / "burden.json"
    small = f"--dataset {npz} --partition classes:2 --clients 4 --epochs 1".split()
    code, printed, _ = command("burden", "--algorithms", "fedavg,fedgela", *small, "--out", out)
    assert code == 0
    assert "| fedgela |" in printed
    assert [row["method"] for row in json.loads(out.read_text())] == ["fedavg", "fedgela"]


def test_a_place_that_cannot_be_written_to_is_told_before_anything_is_measured(
    npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Cli
) -> None:
    monkeypatch.setattr(burden, "measure", pytest.fail)
    for out, words in (
        (tmp_path, "is a folder; name a JSON file"),
        (npz / "b.json", "is a file, not a folder"),
        ("/proc/nowhere/b.json", "cannot be written to"),  # not even by root
    ):
        code, _, told = command("burden", "--dataset", npz, "--out", out)
        assert code == 2 and told.startswith("fedgela: --out: ") and words in told
        assert len(told.splitlines()) == 1


def test_times_are_relative_to_fedavg_wherever_it_stands(npz: Path) -> None:
    found = measure({name: tiny(npz, algorithm={"name": name}) for name in ("moon", "fedavg")}, 1)
    moon, fedavg = found
    assert {burden.reference for burden in found} == {"fedavg"}
    assert (fedavg.ratio, fedavg.ratio_low, fedavg.ratio_high) == (1, 1, 1)
    head, _, row, _ = lines(found)
    assert "time, of fedavg's" in head
    assert f"| {moon.held / fedavg.held:.2f} x |" in row
    alone = measure({"moon": tiny(npz, algorithm={"name": "moon"})}, 1)
    assert "time, of moon's" in lines(alone)[0]
