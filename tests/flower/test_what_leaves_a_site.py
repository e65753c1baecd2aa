"""What leaves a site is what is declared, and nothing else."""

import errno
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedgela[flower]'")

from fedgela.algorithms import ALGORITHMS
from fedgela.flower.outgoing import NotDeclared, check, declared
from fedgela.flower.wire import decode
from flower.sites import CLASSES, Played, small

METHODS = [name for name, method in ALGORITHMS.items() if not method.pooled]

pytestmark = pytest.mark.usefixtures("quick")


def test_what_leaves_a_site_is_the_backbone_and_sums(whole: Path) -> None:
    played = Played(whole.parent, small(whole))
    server = played.server()
    progress = server.begin()
    for _ in range(2):
        server.step(progress)
    backbone = {f"model/{name}" for name in declared(server)["model"]}
    assert backbone and not any("head" in name for name in backbone)
    tasks = set()
    for site, question, answer in played.grid.seen:
        task = decode(question)[1]["task"]
        tasks.add(task)
        groups, about = decode(answer)
        sent = {f"{group}/{name}" for group, state in groups.items() for name in state}
        if task == "train":
            assert sent == backbone | {"measures/loss_sum", "measures/loss_count", "measures/right"}
            assert about.keys() == {"samples", "state_lost", "seconds"}
        else:
            assert sent <= {"sums/total", "sums/squares", "measures/right"}
        assert str(whole.parent).encode() not in answer and f"site-{site}".encode() not in answer
        assert not any(name.encode() in answer for name in CLASSES)
        # no tensor has one number a class: no class counts, no Phi, no loss by class
        data = played.grid.sites[site].data
        counts = torch.bincount(data.y_train, minlength=len(CLASSES))
        for state in groups.values():
            for value in state.values():
                assert value.flatten().tolist() != counts.tolist()
    assert tasks == {"join", "train", "score"}


@pytest.mark.parametrize("method", METHODS)
def test_no_personal_entry_leaves_a_site(method: str, whole: Path) -> None:
    experiment = small(whole, algorithm=method, rounds=1)
    played = Played(whole.parent, experiment)
    server = played.server()
    server.step(server.begin())
    for _, question, answer in played.grid.seen:
        if decode(question)[1]["task"] == "train":
            groups, _ = decode(answer)
            assert all(server.algorithm.travels(name) for name in groups.get("model", {}))
            assert "classifier" not in groups["measures"] and "own_norm" not in groups
            if server.algorithm.shares() is None:
                assert not groups.get("extra")


def test_an_answer_with_more_than_is_declared_is_not_sent(whole: Path, monkeypatch: Any) -> None:
    played = Played(whole.parent, small(whole))
    server = played.server()
    monkeypatch.setattr("fedgela.flower.site.without_classes", lambda visit: visit)
    record = server.step(server.begin())
    assert set(record["faults"].values()) == {"its answer held what the algorithm does not declare"}
    assert any("not sent" in line for line in played.logs)
    with pytest.raises(NotDeclared, match="model/head"):
        check("train", {"model": {"head.weight": torch.zeros(2)}}, {}, declared(server))
    with pytest.raises(NotDeclared, match="counts"):
        check("train", {}, {"counts": [1, 2]}, declared(server))


def test_an_exceptions_text_stays_on_the_site(whole: Path, monkeypatch: Any) -> None:
    played = Played(whole.parent, small(whole))
    server = played.server()

    def fail(*_: object) -> None:
        raise OSError("/secret/patient-7.png cannot be read")

    monkeypatch.setattr("fedgela.flower.client.visit", fail)
    record = server.step(server.begin())
    assert record["faults"]["north"] == "OSError (the site's own log tells more)"
    assert not any(b"patient" in answer for _, _, answer in played.grid.seen)
    assert any("patient-7" in line for line in played.logs)


def test_a_sites_own_log_says_what_a_method_shares_beyond_weights(whole: Path) -> None:
    """Before it is sent: the server's operator alone would else be told."""
    played = Played(whole.parent, small(whole, algorithm="fedgen"))
    played.server()
    assert (
        played.logs
        == [
            "run 1: FedGen shares more than weights: each client's label counts, by which the "
            "generator's teachers are weighted"
        ]
        * 3
    )


def test_a_full_disk_is_a_line_in_the_sites_log(whole: Path, monkeypatch: Any) -> None:
    played = Played(whole.parent, small(whole))
    server = played.server()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "state/1")

    monkeypatch.setattr("fedgela.flower.site.SiteStore.put", full)
    record = server.step(server.begin())
    assert record["faults"]["north"] == "OSError (the site's own log tells more)"
    told = [line for line in played.logs if "No space left" in line]
    assert told == ["cannot answer: [Errno 28] No space left on device: 'state/1'"] * 3
