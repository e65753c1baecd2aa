"""A federation of sites does what a local run does, sends only what is declared, and bears with faults."""

import json
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedgela[flower]'")

import fedgela
from fedgela.algorithms import ALGORITHMS, Update
from fedgela.config import Experiment
from fedgela.data import load_dataset
from fedgela.deploy import load_model
from fedgela.deploy.export import export
from fedgela.errors import UserError
from fedgela.evaluation import client_accuracies, diverged
from fedgela.flower.outgoing import NotDeclared, check, declared
from fedgela.flower.privacy import CentralPrivacy, Releases
from fedgela.flower.server_app import together
from fedgela.flower.site import Site, agreed
from fedgela.flower.terms import RELEASES
from fedgela.flower.wire import decode, encode
from fedgela.models import State
from fedgela.resolve import resolve
from fedgela.runs import summarise
from fedgela.server import Server
from flower.sites import CLASSES, HOLDINGS, Played, write_data
from flower.tampering import TOLD, tampered
from helpers import tiny

METHODS = [name for name, method in ALGORITHMS.items() if not method.pooled]


pytestmark = pytest.mark.usefixtures("quick")


def small(whole: Path, **changes: Any) -> Experiment:
    return tiny(
        whole, **{"partition": "natural", "clients": 3, "rounds": 3, "algorithm": "fedgela"} | changes
    )


def assert_close(a: State, b: State) -> None:
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-4, atol=1e-5)


# -- the same result -------------------------------------------------------------------------------


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


# -- what leaves a site ----------------------------------------------------------------------------


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


# -- what stays on a site --------------------------------------------------------------------------


def test_personal_models_survive_a_restart_of_the_site_and_the_servers_going_back(whole: Path) -> None:
    experiment = small(whole, algorithm="fedrep")

    def rounds(restart: bool, back: bool) -> State:
        played = Played(whole.parent, experiment, whole, run=f"{restart}{back}")
        server = played.server()
        progress = server.begin()
        for _ in range(2):
            server.step(progress)
        if restart:
            played.grid.sites = {k: played.site(k) for k in range(len(HOLDINGS))}
        if back:  # the server is killed in the third round, when the sites have already trained
            kept = progress.server, progress.visited.clone()
            server.step(progress)
            progress.server, progress.visited = kept
            progress.round = 2
        server.step(progress)
        return progress.server.model

    expected = rounds(restart=False, back=False)
    assert_close(rounds(restart=True, back=False), expected)
    assert_close(rounds(restart=True, back=True), expected)
    kept = sorted(path.name for path in (whole.parent / "state-0" / "FalseFalse").glob("round-*"))
    assert [name.split(".")[0] for name in kept] == ["round-000001", "round-000002", "round-000003"]


@pytest.mark.parametrize(
    "algorithm",
    [
        {"name": "fedgela", "E_W": 25.0},
        {"name": "fedgela", "phi": "paper-sqrt", "personal_prediction": "present"},
        {"name": "fedrep"},
        {"name": "fedrod"},
        {"name": "fedproto", "prediction": "prototype"},
    ],
    ids=["fedgela", "shared statistics", "fedrep", "fedrod", "prototypes"],
)
def test_a_site_can_use_its_personal_model(algorithm: dict[str, Any], whole: Path, tmp_path: Path) -> None:
    played = Played(whole.parent, small(whole, algorithm=algorithm, rounds=2))
    server = played.server()
    progress = server.begin()
    for _ in range(2):
        server.step(progress)
    for k, site in played.grid.sites.items():
        model = load_model(site.state / "1")
        assert (model.card.client, model.card.round, model.card.classes) == (k, 2, CLASSES)
        predicted = model.probabilities(site.data.x_test).argmax(dim=1)
        assert int((predicted == site.data.y_test).sum()) == int(progress.right[k].sum())
    export(site.state / "1", tmp_path / "own.pt2")
    torch.testing.assert_close(
        load_model(tmp_path / "own.pt2").probabilities(site.data.x_test),
        model.probabilities(site.data.x_test),
        rtol=0,
        atol=1e-5,
    )
    (tmp_path / "site/state").mkdir(parents=True)
    (tmp_path / "site/state/1").symlink_to(site.state / "1")
    assert load_model(tmp_path / "site").card == model.card  # of a site's folder the newest run
    with pytest.raises(UserError, match="a site keeps its own last model only"):
        load_model(site.state / "1", client=0)
    for path in (site.state / "1").glob("round-000002.*"):
        path.unlink()
    with pytest.raises(UserError, match="the model of round 2 is not there any more"):
        load_model(site.state / "1")


def test_a_site_that_lost_its_model_starts_anew_and_is_named(whole: Path) -> None:
    played = Played(whole.parent, small(whole, algorithm="fedrep"))
    server = played.server()
    progress = server.begin()
    server.step(progress)
    for path in (whole.parent / "state-1" / "1").iterdir():
        path.write_bytes(path.read_bytes()[:-1])
    assert server.step(progress)["faults"] == {"east": "had lost its personal model, and started anew"}


def test_a_site_whose_updates_are_refused_keeps_its_personal_model(whole: Path) -> None:
    played = Played(whole.parent, small(whole, algorithm="fedrep", rounds=9), whole)
    server = played.server()
    progress = server.begin()
    server.step(progress)
    played.grid.tamper[1] = lambda answer: tampered(answer, "NaN")
    for _ in range(5):
        assert "no finite numbers" in server.step(progress)["faults"]["east"]
    del played.grid.tamper[1]
    assert "faults" not in server.step(progress)


# -- faults ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [*TOLD, "hangs"])
def test_a_faulty_site_is_named_and_the_round_goes_on_without_it(how: str, whole: Path) -> None:
    played = Played(whole.parent, small(whole), whole)
    server = played.server()
    played.grid.tamper[1] = lambda answer: None if how == "hangs" else tampered(answer, how)
    progress = server.begin()
    record = server.step(progress)
    told = TOLD.get(how, "no answer within")
    assert list(record["faults"]) == ["east"] and told in record["faults"]["east"]
    assert progress.visited.tolist() == [1, 0, 1]
    assert all(value.isfinite().all() for value in progress.server.model.values())
    json.dumps(record, allow_nan=False)


def test_a_hanging_site_is_not_asked_again_before_it_answers(whole: Path) -> None:
    played = Played(whole.parent, small(whole, rounds=9), whole)
    server = played.server()
    progress = server.begin()
    played.grid.tamper[1] = lambda answer: None
    server.step(progress)
    asked = len(played.grid.seen)
    record = server.step(progress)
    assert record["clients"] == [0, 2] and record["faults"]["east"] == "hangs"
    assert {site for site, _, _ in played.grid.seen[asked:]} == {0, 2}
    del played.grid.tamper[1]
    played.grid.answer_late(server.exchange.hanging[1])
    assert server.step(progress)["clients"] == [0, 1, 2]


def test_a_hanging_site_that_is_restarted_within_a_round_is_asked_again(whole: Path) -> None:
    """Flower tells that its question is lost only as long as the site is away."""
    played = Played(whole.parent, small(whole, rounds=9), whole)
    server = played.server()
    progress = server.begin()
    played.grid.tamper[1] = lambda answer: None
    server.step(progress)
    lost = server.exchange.hanging[1]

    def away(answer: bytes) -> bytes:
        played.grid.answer_late(lost)
        return answer

    played.grid.tamper = {0: away}
    server.step(progress)
    played.grid.tamper = {}
    played.grid.leave_unanswered(lost)
    assert server.step(progress)["clients"] == [0, 1, 2]


def test_a_round_without_any_answer_changes_nothing(whole: Path) -> None:
    played = Played(whole.parent, small(whole), whole)
    server = played.server()
    progress = server.begin()
    before = {name: value.clone() for name, value in progress.server.model.items()}
    played.grid.tamper = {k: lambda answer: b"" for k in range(3)}
    record = server.step(progress)
    assert len(record["faults"]) == 3
    assert "train_loss" not in record and not diverged(record)  # which is no sign of divergence
    assert_close(progress.server.model, before)


def test_a_late_site_takes_part_from_then_on(whole: Path) -> None:
    played = Played(whole.parent, small(whole), whole)
    played.grid.offline = {1}
    server = played.server()
    progress = server.begin()
    assert server.step(progress)["clients"] == [0, 2]
    played.grid.offline = set()
    assert server.step(progress)["clients"] == [0, 1, 2]
    assert progress.visited.tolist() == [2, 2, 2] and "east: takes part from now on" in played.notes


def test_a_resumed_run_is_normalised_as_it_began_whoever_is_there(whole: Path) -> None:
    played = Played(whole.parent, small(whole), whole)
    first, gathering = played.server(), played.gathering
    gathering.remember(whole.parent / "agreed.json", first)
    played.grid.offline = {0}
    played.recalled = whole.parent / "agreed.json"
    again = played.server()
    assert_close(again.normalisation, first.normalisation)


def test_too_few_sites_end_the_run_in_one_line(whole: Path) -> None:
    played = Played(whole.parent, small(whole), whole, min_sites=2)
    server = played.server()
    progress = server.begin()
    played.grid.offline = {0, 1}
    with pytest.raises(UserError, match="only 1 of at least 2 sites"):
        server.step(progress)
    played.grid.offline = {0, 1, 2}
    with pytest.raises(UserError, match="only 0 of at least 2 sites are there"):
        played.server()


# -- what sites must agree on ----------------------------------------------------------------------


def test_class_names_are_collected_where_none_are_agreed_on_and_shown(tmp_path: Path) -> None:
    whole = write_data(tmp_path, named=True)
    played = Played(tmp_path, small(whole), classes=())
    assert played.server().federation.data.class_names == CLASSES
    assert "classes, as the sites name them: cat, cow, dog, hen" in played.notes
    assert any("told the server which classes there are here" in line for line in played.logs)


def test_which_classes_a_site_has_stays_there_where_the_federation_has_a_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the server asks, and were it answered by mistake."""
    played = Played(tmp_path, small(write_data(tmp_path, named=True)))
    site = played.grid.sites[0]
    question = encode({}, played.terms.question("classes", 0, played.experiment.to_toml()))
    assert "the federation has a list of classes" in decode(site.answer(question))[1]["error"]
    monkeypatch.setattr(Site, "_classes", lambda self: ({}, {"classes": list(CLASSES)}))
    assert decode(site.answer(question))[1] == {
        "error": "its answer held what the algorithm does not declare"
    }
    played.server()
    assert "classes" not in {decode(question)[1]["task"] for _, question, _ in played.grid.seen}


def test_class_names_are_matched_without_blanks_around_them(tmp_path: Path) -> None:
    played = Played(tmp_path, small(write_data(tmp_path, named=True)), classes=())
    data = played.grid.sites[1].data
    played.grid.sites[1].data = replace(data, class_names=("cat", " cow", "dog", "hen "))
    server = played.server()
    assert server.federation.data.class_names == CLASSES
    assert "faults" not in server.step(server.begin())


def test_collected_class_names_that_cannot_be_meant_alike_are_refused() -> None:
    assert together({"north": ["1", "0"], "east": [str(c) for c in range(12)]}) == tuple(map(str, range(12)))
    with pytest.raises(UserError, match="north has numbers for classes and east has names"):
        together({"north": ["0", "1"], "east": ["cat", "cow"]})
    with pytest.raises(UserError, match="north has a class 'cat' and east one 'Cat', which differ in case"):
        together({"north": ["cat", "cow"], "east": ["Cat", "cow"]})


def test_labels_become_places_in_the_federations_class_list(tmp_path: Path) -> None:
    data = load_dataset(str(write_data(tmp_path, named=True)))
    turned = agreed(data, CLASSES[::-1])
    assert turned.y_train.tolist() == [3 - y for y in data.y_train.tolist()]
    with pytest.raises(UserError, match="unknown to the federation: cow"):
        agreed(data, ("cat", "dog", "hen"))
    with pytest.raises(UserError, match="labels go up to 3"):
        agreed(load_dataset(str(write_data(tmp_path))), ("a", "b"))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"version": "0.0.0"}, f"the server has fedgela 0.0.0, this site {fedgela.__version__}"),
        ({"federation": "other"}, "of another federation"),
        ({"task": "steal"}, "there is no task 'steal'"),
        ({"run": "../../etc"}, "letters and digits"),
    ],
)
def test_a_site_refuses(change: dict[str, str], told: str, whole: Path) -> None:
    played = Played(whole.parent, small(whole))
    server = played.server()
    server.step(server.begin())
    question = next(q for _, q, _ in played.grid.seen if decode(q)[1]["task"] == "train")
    groups, about = decode(question)
    assert told in decode(played.grid.sites[0].answer(encode(groups, about | change)))[1]["error"]


def test_methods_that_need_all_data_in_one_place_are_refused(whole: Path) -> None:
    from fedgela.flower.server_app import check_possible

    with pytest.raises(UserError, match="pools all data"):
        check_possible(small(whole, algorithm="centralised"))
    with pytest.raises(UserError, match="track: shows all classes to every local model"):
        check_possible(small(whole, track=["angles"]))


# -- Flower's own loop -----------------------------------------------------------------------------


def test_the_supernodes_loop_is_the_one_that_is_hurried() -> None:
    from flwr.supernode import start_client_internal as loop

    from fedgela.flower.supernode import hurry

    held = loop.time
    try:
        assert hurry(), "Flower's loop has changed: look at it, and at the sleep that it has now"
    finally:
        loop.time = held


# -- differential privacy --------------------------------------------------------------------------


def update(k: int, value: float) -> Update:
    return Update(k, 10 + k, {"w": torch.full((4,), value)})


def test_changes_are_clipped_count_alike_and_get_noise() -> None:
    before = {"w": torch.zeros(4)}
    quiet = CentralPrivacy(noise=1e-9, clip=1.0)
    # (0.5, 0.5, 0.5, 0.5) is of length 1: the first is cut to it, the second, of length 0.2, is not
    together = quiet.together(before, [update(0, 9.0), update(1, 0.1)], sites=2)
    torch.testing.assert_close(together.model["w"], torch.full((4,), 0.3))
    loud = CentralPrivacy(noise=2.0, clip=3.0)
    wide = {"w": torch.zeros(40_000)}
    noisy = loud.together(wide, [Update(0, 1, {"w": torch.zeros(40_000)})], sites=4).model["w"]
    assert noisy.std().item() == pytest.approx(2.0 * 3.0 / 4, rel=0.03)
    again = loud.together(wide, [Update(0, 1, {"w": torch.zeros(40_000)})], sites=4).model["w"]
    assert not torch.equal(noisy, again)


def test_the_spent_epsilon_is_told_every_round(whole: Path) -> None:
    pytest.importorskip("dp_accounting")
    server = Played(whole.parent, small(whole), whole, dp_noise=1.0, dp_clip=0.1).server()
    progress = server.begin()
    spent = [server.step(progress)["epsilon"] for _ in range(3)]
    assert spent == sorted(spent)
    # the Gaussian mechanism's known figure: three rounds at noise 1 and delta 1e-5
    assert spent[-1] == pytest.approx(9.0, abs=0.3)


def moved(before: State, after: State) -> State:
    return {name: after[name] - value for name, value in before.items()}


def length(state: State) -> float:
    return float(torch.cat([value.flatten() for value in state.values()]).norm())


@pytest.mark.parametrize("absent", range(3))
def test_an_absent_site_changes_the_sum_by_no_more_than_the_clip(absent: int, whole: Path) -> None:
    pytest.importorskip("dp_accounting")
    clip = 0.01
    changes = []
    for offline in (set(), {absent}):
        played = Played(whole.parent, small(whole, algorithm="fedavg"), whole, dp_noise=1e-9, dp_clip=clip)
        server = played.server()
        progress = server.begin()
        before = progress.server.model
        played.grid.offline = offline
        server.step(progress)
        changes.append(moved(before, progress.server.model))
    assert length(moved(*changes)) * 3 <= clip * 1.001


def test_with_differential_privacy_all_sites_are_asked_in_every_round(whole: Path) -> None:
    """Of a draw among those that are there, an absent site would change who else takes part."""
    pytest.importorskip("dp_accounting")
    with pytest.raises(UserError, match="all 3 sites take part in every round"):
        Played(whole.parent, small(whole, sample=2), whole, dp_noise=1.0).server()


def test_a_round_without_any_answer_has_noise_too(whole: Path) -> None:
    pytest.importorskip("dp_accounting")
    played = Played(whole.parent, small(whole), whole, dp_noise=1.0, dp_clip=3.0)
    server = played.server()
    progress = server.begin()
    before = progress.server.model
    played.grid.tamper = {k: lambda answer: b"" for k in range(3)}
    record = server.step(progress)
    change = moved(server.travelling(before), progress.server.model)
    numbers = sum(value.numel() for value in change.values())
    assert length(change) / numbers**0.5 == pytest.approx(3.0 / 3, rel=0.1)
    assert record["epsilon"] == server.privacy.epsilon(1)


def test_a_round_that_is_done_again_after_a_kill_counts_again(whole: Path) -> None:
    pytest.importorskip("dp_accounting")
    played = Played(whole.parent, small(whole), whole, dp_noise=1.0, dp_clip=0.1)
    server = played.server()
    progress = server.begin()
    server.step(progress)
    kept = deepcopy(progress)  # the checkpoint
    server.step(progress)  # whose models sites may have seen when the server is killed
    again = played.server()
    assert again.step(kept)["round"] == 2
    assert again.step(kept)["epsilon"] == pytest.approx(CentralPrivacy(1.0, 0.1).epsilon(4))


def test_a_noisy_model_is_counted_before_anybody_sees_it(whole: Path) -> None:
    pytest.importorskip("dp_accounting")
    played = Played(whole.parent, small(whole), dp_noise=1.0, dp_clip=0.1)  # the sites score it
    server = played.server()
    counted = []
    played.grid.tamper[0] = lambda answer: counted.append(Releases(whole.parent / RELEASES).count) or answer
    server.step(server.begin())
    assert counted == [0, 1]  # when it has trained, and when it has scored


def test_what_noise_does_not_protect_is_refused(whole: Path) -> None:
    pytest.importorskip("dp_accounting")
    with pytest.raises(UserError, match="shares more than weights"):
        Played(whole.parent, small(whole, algorithm="fedproto"), whole, dp_noise=1.0).server()
    norm = {"algorithm": {"name": "fedgela", "feature_norm": "batchnorm"}}
    with pytest.raises(UserError, match="running_mean is a statistic of the data"):
        Played(whole.parent, small(whole, **norm), whole, dp_noise=1.0).server()
