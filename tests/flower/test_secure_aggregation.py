"""With secure aggregation a federation learns the same models, and its server no single update."""

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedgela[flower]'")

from fedgela.errors import UserError
from fedgela.flower.conducting import _check
from fedgela.flower.masks import Masker
from fedgela.flower.privacy import CentralPrivacy
from fedgela.flower.server_app import check_possible
from fedgela.flower.wire import decode, encode
from fedgela.models import State
from flower.sites import Played, assert_close, small

pytestmark = pytest.mark.usefixtures("quick")

TASKS = ("key", "train", "unmask")


def secure(whole: Path, test_data: Path | None = None, terms: dict[str, Any] | None = None, **changes: Any):
    more = {"secure_aggregation": True, "min_sites": 2} | (terms or {})
    return Played(whole.parent, small(whole, **changes), test_data, **more)


def only(task: str, change: Any) -> Any:
    """Tampers with the answers to questions of this task."""
    return lambda answer: change(answer) if _task_of(answer) == task else answer


def _task_of(answer: bytes) -> str:
    about = decode(answer)[1]
    return "unmask" if "own" in about else "key" if "key" in about else "train" if "seconds" in about else ""


@pytest.mark.parametrize("method", ["fedavg", "moon", "fedgela", "fedrep", "fedrod"])
def test_the_models_are_those_of_a_run_without_it(method: str, whole: Path) -> None:
    plain = Played(whole.parent, small(whole, algorithm=method), whole).server()
    masked = secure(whole, whole, algorithm=method).server()
    mine, theirs = plain.begin(), masked.begin()
    for _ in range(3):
        a, b = plain.step(mine), masked.step(theirs)
        assert_close(mine.server.model, theirs.server.model)
        assert "faults" not in b
        assert {key: b.get(key) for key in ("GA", "PA")} == pytest.approx(
            {key: a.get(key) for key in ("GA", "PA")}
        )


@pytest.mark.parametrize("wire", ["bf16", "fp16"])
def test_masked_updates_take_twice_the_bits_of_the_wire(wire: str, whole: Path) -> None:
    records = {}
    for name in ("fp32", wire):
        server = secure(whole, whole, {"wire": name}, projection=64, rounds=1).server()
        progress = server.begin()
        records[name] = server.step(progress), progress.server.model
    (full, exact), (half, near) = records["fp32"], records[wire]
    assert half["bytes_up"] < 0.6 * full["bytes_up"]
    for name, value in exact.items():
        torch.testing.assert_close(near[name], value, rtol=0.02, atol=0.02)


def test_no_answer_of_a_site_holds_its_update(whole: Path) -> None:
    played = secure(whole)
    server = played.server()
    progress = server.begin()
    for _ in range(2):
        server.step(progress)
    trained = [(k, decode(a)[0]["model"]) for k, q, a in played.grid.seen if decode(q)[1]["task"] == "train"]
    assert len(trained) == 6
    for _, model in trained:
        for value in model.values():
            assert value.dtype == torch.int64
            # a change of 2^20 would be 2^52 in whole numbers: nearly all of 64 random bits are beyond
            assert (value.double().abs() > 2.0**52).double().mean() > 0.9


def test_keys_come_with_the_answers_and_are_asked_for_only_where_they_did_not(whole: Path) -> None:
    played = secure(whole)
    server = played.server()
    progress = server.begin()
    for _ in range(3):
        server.step(progress)
    asked = [decode(question)[1]["task"] for _, question, _ in played.grid.seen]
    assert [asked.count(task) for task in TASKS] == [3, 9, 9]
    keys = [decode(q)[1]["mask"]["keys"] for _, q, _ in played.grid.seen if "mask" in decode(q)[1]]
    assert len({tuple(key.values()) for key in keys}) == 3  # one set a round
    digests = [line.split(": ")[1] for line in played.logs if "masked among 3 sites" in line]
    assert len(digests) == 9 and len(set(digests)) == 3


@pytest.mark.parametrize("how", ["silent", "unreadable", "wrong shape", "not masked"])
def test_without_a_site_the_sum_is_of_the_others(how: str, whole: Path) -> None:
    def broken(answer: bytes) -> bytes | None:
        groups, about = decode(answer)
        if how == "wrong shape":
            groups["model"] = {name: value[:1].clone() for name, value in groups["model"].items()}
        if how == "not masked":
            groups["model"] = {name: value.float() for name, value in groups["model"].items()}
        return {"silent": None, "unreadable": b"?"}.get(how, encode(groups, about))

    models = []
    for terms in ({}, {"secure_aggregation": True, "min_sites": 2}):
        played = Played(whole.parent, small(whole), whole, **terms)
        if not terms and how == "not masked":
            played.grid.tamper[1] = only("train", lambda answer: b"?")
        else:
            played.grid.tamper[1] = only("train", broken)
        server = played.server()
        progress = server.begin()
        record = server.step(progress)
        assert list(record["faults"]) == ["east"]
        models.append(progress.server.model)
    assert_close(*models)


def test_a_round_that_cannot_be_opened_changes_nothing_and_the_next_one_does(whole: Path) -> None:
    played = secure(whole, whole)
    server = played.server()
    progress = server.begin()
    before = dict(progress.server.model)
    played.grid.tamper[1] = only("unmask", lambda answer: None)
    record = server.step(progress)
    assert_close(progress.server.model, before)
    assert "no answer within" in record["faults"]["east"]
    assert record["lost"] == "too few sites stayed to open their sum"
    assert f"round 1: its updates are lost: {record['lost']}" in played.notes
    played.grid.tamper = {}
    assert "lost" not in server.step(progress)
    assert not all(torch.equal(before[name], value) for name, value in progress.server.model.items())


def test_a_site_that_was_restarted_misses_a_round_at_most(whole: Path) -> None:
    played = secure(whole, whole)
    server = played.server()
    progress = server.begin()
    server.step(progress)
    played.grid.sites[2] = played.site(2)  # its keys were in memory
    record = server.step(progress)
    assert "restarted" in record["faults"]["south"] and progress.visited.tolist() == [2, 2, 1]
    assert "faults" not in server.step(progress)


def test_a_server_that_goes_on_after_a_kill_asks_for_new_keys(whole: Path) -> None:
    played = secure(whole, whole)
    server = played.server()
    progress = server.begin()
    server.step(progress)
    kept = deepcopy(progress)
    server.step(progress)
    again = played.server()
    assert "faults" not in again.step(kept)
    assert_close(kept.server.model, progress.server.model)


def test_one_site_of_two_opens_nothing(whole: Path) -> None:
    played = secure(whole, whole, sample=2)
    server = played.server()
    progress = server.begin()
    before = dict(progress.server.model)
    first = server.select(1)[0]
    played.grid.tamper[first] = only("train", lambda answer: None)
    server.step(progress)
    assert not any(decode(question)[1]["task"] == "unmask" for _, question, _ in played.grid.seen)
    assert_close(progress.server.model, before)


def test_seeds_that_nobody_asked_for_are_not_taken(whole: Path) -> None:
    def more(answer: bytes) -> bytes:
        groups, about = decode(answer)
        return encode(groups, about | {"pairs": {"0": about["own"]}})

    played = secure(whole, whole)
    played.grid.tamper[1] = only("unmask", more)
    server = played.server()
    record = server.step(server.begin())
    assert "seeds of other masks" in record["faults"]["east"]


@pytest.mark.parametrize("task", ["key", "unmask"])
def test_a_key_with_which_nobody_would_mask_is_the_fault_of_its_site_alone(task: str, whole: Path) -> None:
    def broken(answer: bytes) -> bytes:
        groups, about = decode(answer)
        return encode(groups, about | {"key": bytes(32).hex()})

    played = secure(whole, whole)
    played.grid.tamper[1] = only(task, broken)
    server = played.server()
    progress = server.begin()
    for _ in range(2):
        faults = server.step(progress)["faults"]
        assert list(faults) == ["east"] and "a key or a seed that is none" in faults["east"]


def test_a_sum_that_is_absurdly_far_is_not_taken(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hostile site can still bend the model, but not blow it up."""
    true_mask = Masker.mask

    def enlarged(self: Masker, change: State, site: int, *more: Any) -> State:
        return true_mask(self, {n: v + 1e6 * (site == 1) for n, v in change.items()}, site, *more)

    monkeypatch.setattr(Masker, "mask", enlarged)
    played = secure(whole, whole)
    server = played.server()
    progress = server.begin()
    before = dict(progress.server.model)
    assert "away from the global one" in server.step(progress)["lost"]
    assert_close(progress.server.model, before)


def test_a_site_can_insist_on_it(whole: Path) -> None:
    for terms, refuses in (({}, True), ({"secure_aggregation": True, "min_sites": 2}, False)):
        played = Played(whole.parent, small(whole), whole, **terms)
        played.grid.sites[1].masked_only = True
        server = played.server()  # a site that refuses does so before the run begins
        record = server.step(server.begin())
        assert record["clients"] == ([0, 2] if refuses else [0, 1, 2])
        assert ("--masked-only" in record.get("faults", {}).get("east", "")) == refuses


def test_a_site_that_insists_sends_no_update_without_a_mask_whatever_the_server_says(whole: Path) -> None:
    played = Played(whole.parent, small(whole), whole)
    server = played.server()
    played.grid.sites[1].masked_only = True
    server.terms = replace(server.terms, secure_aggregation=True)  # in words only
    record = server.step(server.begin())
    assert "--masked-only" in record["faults"]["east"]
    sent = [decode(answer)[0] for site, _, answer in played.grid.seen if site == 1]
    assert not any("model" in groups for groups in sent)


def test_with_differential_privacy_sites_clip_and_the_sum_is_the_same(
    whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("dp_accounting")
    monkeypatch.setattr("fedgela.flower.privacy._normal", torch.zeros)
    models, spent = [], []
    for terms in ({}, {"secure_aggregation": True, "min_sites": 2}):
        played = Played(whole.parent, small(whole), whole, dp_noise=1.0, dp_clip=0.05, **terms)
        played.grid.tamper[0] = only("train", lambda answer: None)  # an absent one counts as no change
        server = played.server()
        progress = server.begin()
        spent.append(server.step(progress)["epsilon"])
        models.append(progress.server.model)
    assert_close(*models)
    assert spent == [CentralPrivacy(1.0, 0.05).epsilon(n) for n in (1, 2)]  # one run's folder counts both


def test_a_lost_round_has_noise_too(whole: Path) -> None:
    pytest.importorskip("dp_accounting")
    played = secure(whole, whole, {"dp_noise": 1.0, "dp_clip": 3.0})
    played.grid.tamper[1] = only("unmask", lambda answer: None)
    server = played.server()
    progress = server.begin()
    before = dict(progress.server.model)
    assert server.step(progress)["epsilon"] == CentralPrivacy(1.0, 3.0).epsilon(1)
    body = server.travelling(before)
    assert not any(torch.equal(progress.server.model[name], value) for name, value in body.items())


def test_what_it_does_not_hide_or_cannot_add_up_is_refused(whole: Path) -> None:
    for changes, why in (
        ({"algorithm": "fedproto"}, "FedProto shares more than weights"),
        ({"aggregation": "median"}, 'aggregation = "median" looks at single updates'),
        ({"sample": 1}, "sample = 1"),
    ):
        with pytest.raises(UserError, match=why):
            check_possible(small(whole, **changes), secure(whole).terms)
    with pytest.raises(UserError, match="this is --min-sites 1"):
        _check(secure(whole, terms={"min_sites": 1}).terms)
    with pytest.raises(UserError, match="a federation of one site"):
        _check(secure(whole, terms={"sites": ("north",)}).terms)
