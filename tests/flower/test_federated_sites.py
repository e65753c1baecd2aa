"""A federation of sites does what a local run does."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedgela[flower]'")

from fedgela.algorithms import ALGORITHMS
from fedgela.algorithms.fedproto import FedProto
from fedgela.evaluation import client_accuracies
from fedgela.flower.site import Site
from fedgela.flower.wire import decode, encode
from fedgela.resolve import resolve
from fedgela.result import summarise
from fedgela.server import Server
from flower.sites import Played, assert_close, small

METHODS = [name for name, method in ALGORITHMS.items() if not method.pooled]

pytestmark = pytest.mark.usefixtures("quick")


@pytest.mark.parametrize("method", METHODS)
def test_sites_and_a_local_run_give_the_same_rounds(method: str, whole: Path) -> None:
    experiment = small(whole, algorithm=method, sample=2, server_momentum=0.5, lr=0.01)
    here, there = Server(*resolve(experiment)), Played(whole.parent, experiment, test_data=whole).server()
    mine, theirs = here.begin(), there.begin()
    for _ in range(experiment.rounds):
        a, b = here.step(mine), there.step(theirs)
        assert_close(mine.server.model, theirs.server.model)
        assert_close(mine.server.extra, theirs.server.extra)
        assert a["clients"] == b["clients"]
        assert b["train_loss"] == pytest.approx(a["train_loss"], rel=1e-4)
        if here.algorithm.GA_of == "global":
            assert b["GA"] == pytest.approx(a["GA"])
    assert torch.equal(mine.visited, theirs.visited)
    seen = mine.visited > 0
    assert mine.right[seen].sum(dim=1).tolist() == theirs.right[seen][:, 0].tolist()
    ours, other = here.finish(mine), there.finish(theirs)
    assert ours.keys() == other.keys()
    for which in ours.keys() & {"last"}:
        assert other[which]["by_client"] == pytest.approx(ours[which]["by_client"])


@pytest.mark.parametrize("at_the_server", [True, False])
@pytest.mark.parametrize("method", ["fedavg", "fedgela"])
def test_an_average_over_rounds_is_measured_and_fine_tuned_as_in_a_local_run(
    method: str, at_the_server: bool, whole: Path
) -> None:
    experiment = small(whole, algorithm=method, sample=2, lr=0.05, server_average=0.6)
    test_data = whole if at_the_server else None
    here, there = Server(*resolve(experiment)), Played(whole.parent, experiment, test_data=test_data).server()
    mine, theirs = here.begin(), there.begin()
    for _ in range(experiment.rounds):
        a, b = here.step(mine), there.step(theirs)
        assert_close(mine.global_model, theirs.global_model)
        assert b["GA"] == pytest.approx(a["GA"])
    ours, other = here.finish(mine), there.finish(theirs)
    for which in ours:
        assert other[which]["by_client"] == pytest.approx(ours[which]["by_client"])


def test_a_sites_log_says_of_every_run_what_it_trains_and_when(whole: Path) -> None:
    played = Played(whole.parent, small(whole, epochs=2))
    for run in ("1", "2"):
        played.terms = replace(played.terms, run=run)
        server = played.server()
        log: list[str] = []
        played.grid.sites[0].log = log.append
        progress = server.begin()
        for _ in range(2):
            server.step(progress)
        assert [line.partition(" in ")[0] for line in log] == [
            f"run {run}: method FedGELA, model tiny-cnn, rounds 3, local epochs 2",
            "round 1: training begins",
            "round 1: trained",
            "round 2: training begins",
            "round 2: trained",
        ]


def test_shared_statistics_are_pooled_as_on_one_machine(whole: Path) -> None:
    experiment = small(whole, algorithm={"name": "fedgela", "phi": "paper-sqrt"}, rounds=1)
    here, there = Server(*resolve(experiment)), Played(whole.parent, experiment).server()
    assert_close(here.begin().server.extra, there.begin().server.extra)


def test_without_a_test_set_GA_is_the_sites_mean(whole: Path) -> None:
    experiment = small(whole, rounds=1)
    here, there = Server(*resolve(experiment)), Played(whole.parent, experiment).server()
    assert there.step(there.begin())["GA"] == pytest.approx(here.step(here.begin())["GA"])


@pytest.mark.parametrize("method", ["fedrep", "fedproto", "local", "fedbabu"])
def test_GA_of_local_models_is_not_known_and_the_run_says_why(method: str, whole: Path) -> None:
    played = Played(whole.parent, small(whole, algorithm=method, rounds=1), whole)
    server = played.server()
    assert any("neither models nor samples leave a site" in note for note in played.notes)
    record = server.step(server.begin())
    assert "GA_locals" not in record
    if method != "fedbabu":  # which has a global model too
        assert record["GA"] is None and record["PA_weighted"] is not None


def test_who_is_not_there_is_left_out_of_the_means_at_the_end(whole: Path) -> None:
    played = Played(whole.parent, small(whole, algorithm="fedavg", rounds=1), whole)
    played.grid.offline = {2}
    server = played.server()
    progress = server.begin()
    server.step(progress)
    played.grid.offline = {1, 2}
    last = server.finish(progress)["last"]
    assert [value is None for value in last["by_client"]] == [False, True, True]
    assert last["PA"] == pytest.approx(last["by_client"][0]) and last["PA_clients_left_out"] == 2
    # the site that never trained has no local accuracy either; the one that left still has
    totals = server.federation.test_counts
    assert [value is None for value in client_accuracies(progress.right, totals)] == [False, False, True]


def test_a_run_whose_sites_have_all_gone_at_its_end_still_ends(whole: Path) -> None:
    played = Played(whole.parent, small(whole, algorithm="fedavg", rounds=2), whole)
    server = played.server()
    progress = server.begin()
    records = [server.step(progress) for _ in range(2)]
    played.grid.offline = {0, 1, 2}
    finetuned = server.finish(progress)
    assert finetuned["last"]["PA"] is None and finetuned["last"]["PA_worst"] is None
    result = summarise(server, progress, records, finetuned, 1.0)
    assert "PA" not in result and result["GA"]["last"] is not None


def test_a_site_that_left_for_a_while_counts_again(whole: Path, monkeypatch: Any) -> None:
    played = Played(whole.parent, small(whole, algorithm="fedavg", rounds=1), whole)
    server = played.server()
    server.step(server.begin())
    progress = server.begin()
    server.step(progress)
    progress.best_round = 7  # of another round: both are fine-tuned
    both = iter([{1}, set()])
    ask = server.finetuned
    monkeypatch.setattr(
        server,
        "finetuned",
        lambda *args: (setattr(played.grid, "offline", next(both)), ask(*args))[1],
    )
    record = server.finish(progress)
    assert record["best"]["by_client"][1] is None and record["last"]["by_client"][1] is not None


def test_own_batchnorm_stays_on_the_site(whole: Path) -> None:
    played = Played(whole.parent, small(whole, batchnorm="local", rounds=2))
    server = played.server()
    progress = server.begin()
    assert server.step(progress)["GA"] is not None and server.step(progress)["PA"] is not None


def test_a_site_has_the_last_batchnorm_only_and_is_fine_tuned_from_the_last_model(whole: Path) -> None:
    norm = {"name": "fedge", "feature_norm": "batchnorm"}
    server = Played(whole.parent, small(whole, batchnorm="local", rounds=2, algorithm=norm)).server()
    progress = server.begin()
    for _ in range(2):
        server.step(progress)
    progress.best_round = 1
    assert server.own_norm and not progress.best_norms
    assert server.finish(progress)["best"]["round"] == 2
    assert progress.best_round == 1  # the best global model is what it was


@pytest.mark.parametrize("wire", ["bf16", "fp16"])
def test_counts_are_exact_whatever_the_wire(wire: str) -> None:
    """In 16 bits 1001 would be 1000, or 70000 infinite."""
    counts = torch.tensor([0, 1001, 70_000, 1])
    sent = FedProto().sends(counts, lambda: (torch.ones(1, 3), torch.zeros(1, dtype=torch.int64)))
    groups, _ = decode(encode({"extra": sent}, {}, wire))
    assert groups["extra"]["weights"].tolist() == counts.tolist()


def test_a_message_is_read_in_one_order() -> None:
    names = list("hgfedcba")
    sent = encode({"model": {name: torch.ones(2) for name in names}}, {})
    for _ in range(3):
        assert list(decode(sent)[0]["model"]) == sorted(names)


def test_a_site_makes_its_net_once_a_run(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    make = Site._make_server
    monkeypatch.setattr(Site, "_make_server", lambda *given: made.append("one") or make(*given))
    server = Played(whole.parent, small(whole)).server()
    progress = server.begin()
    for _ in range(3):
        server.step(progress)
    assert len(made) == 3  # of three sites


@pytest.mark.parametrize("wire", ["bf16", "fp16"])
def test_half_precision_on_the_wire_halves_the_bytes(wire: str, whole: Path) -> None:
    experiment = small(whole, rounds=1, projection=64)
    records = {}
    for name in ("fp32", wire):
        server = Played(whole.parent, experiment, whole, wire=name).server()
        progress = server.begin()
        records[name] = server.step(progress), progress.server.model
    (full, exact), (half, near) = records["fp32"], records[wire]
    for way in ("bytes_up", "bytes_down"):
        assert 0.45 < half[way] / full[way] < 0.75  # names and text stay as they are
    for name, value in exact.items():
        torch.testing.assert_close(near[name], value, rtol=0.02, atol=0.02)


def test_the_supernodes_loop_is_the_one_that_is_hurried() -> None:
    from flwr.supernode import start_client_internal as loop

    from fedgela.flower.supernode import hurry

    held = loop.time
    try:
        assert hurry(), "Flower's loop has changed: look at it, and at the sleep that it has now"
    finally:
        loop.time = held
