"""Sites that fail, hang, lie, come late or go: named, and the round goes on without them."""

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedgela[flower]'")

from fedgela.errors import UserError
from fedgela.evaluation import diverged
from fedgela.flower.federated_server import STILL_ASKED
from flower.sites import Played, assert_close, small
from flower.tampering import TOLD, tampered

pytestmark = pytest.mark.usefixtures("quick")


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


def test_an_answer_that_flower_cannot_read_is_the_fault_of_its_site_alone(whole: Path) -> None:
    """What takes messages apart raises of any kind, as for an object of a class that there is none of."""
    played = Played(whole.parent, small(whole), whole)
    server = played.server()
    played.grid.unreadable = {0}
    record = server.step(server.begin())
    assert record["faults"] == {"north": "sent what Flower cannot read"}


def test_sites_that_are_removed_in_the_middle_of_a_round_are_all_named(whole: Path) -> None:
    played = Played(whole.parent, small(whole), whole)
    server = played.server()
    played.grid.removed = {0, 1}  # since the server saw them online
    record = server.step(server.begin())
    assert record["faults"] == dict.fromkeys(("north", "east"), "is not registered any more")


def test_a_hanging_site_is_not_asked_again_before_it_answers(whole: Path) -> None:
    played = Played(whole.parent, small(whole, rounds=9), whole)
    server = played.server()
    progress = server.begin()
    played.grid.tamper[1] = lambda answer: None
    server.step(progress)
    asked = len(played.grid.seen)
    record = server.step(progress)
    assert record["clients"] == [0, 2] and record["faults"]["east"] == STILL_ASKED
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


def test_a_site_that_is_started_anew_with_other_data_takes_no_part_until_the_run_is_resumed(
    whole: Path,
) -> None:
    played = Played(whole.parent, small(whole, rounds=9), whole)
    server = played.server()
    server.agreed.write(whole.parent / "agreed.json")
    progress = server.begin()
    server.step(progress)
    with np.load(whole.parent / "site-1.npz") as file:
        arrays = dict(file)
    turned = {**arrays, "x_train": arrays["x_train"][:, ::-1]}  # as many samples, of the same shape
    np.savez(whole.parent / "site-1.npz", **turned)
    played.grid.sites[1] = played.site(1)
    record = server.step(progress)
    assert "its data is not what it was when it joined the run" in record["faults"]["east"]
    assert progress.visited.tolist() == [2, 1, 2]
    played.recalled = whole.parent / "agreed.json"
    assert "faults" not in played.server().step(progress)


def test_a_sites_accuracy_is_of_the_test_samples_on_which_its_model_was_scored(whole: Path) -> None:
    played = Played(whole.parent, small(whole, rounds=9), whole)
    server = played.server()
    server.agreed.write(whole.parent / "agreed.json")
    progress = server.begin()
    first = server.step(progress)
    with np.load(whole.parent / "site-1.npz") as file:
        arrays = dict(file)
    np.savez(
        whole.parent / "site-1.npz", **arrays | {part: arrays[part][:2] for part in ("x_test", "y_test")}
    )
    played.grid.sites[1] = played.site(1)
    played.grid.tamper[1] = lambda answer: tampered(answer, "NaN")
    played.recalled, played.records = whole.parent / "agreed.json", [first]
    again = played.server().step(progress)
    by_site = "local_accuracy_by_site"
    assert 0 < first[by_site]["east"] == again[by_site]["east"]


def test_a_resumed_run_is_normalised_as_it_began_whoever_is_there(whole: Path) -> None:
    played = Played(whole.parent, small(whole), whole)
    first = played.server()
    first.agreed.write(whole.parent / "agreed.json")
    played.grid.offline = {0}
    played.recalled = whole.parent / "agreed.json"
    again = played.server()
    assert_close(again.agreed.normalisation, first.agreed.normalisation)


def test_too_few_sites_end_the_run_in_one_line(whole: Path) -> None:
    played = Played(whole.parent, small(whole), whole, min_sites=2)
    server = played.server()
    progress = server.begin()
    played.grid.offline = {0, 1}
    with pytest.raises(UserError, match="only 1 of at least 2 sites"):
        server.step(progress)
    played.grid.offline = {0, 1, 2}
    with pytest.raises(
        UserError, match=r"only 0 of at least 2 sites are there; 'fedgela .* --resume' goes on"
    ):
        played.server()


def test_too_few_sites_that_answer_in_time_end_the_run_in_a_line_that_names_the_others(whole: Path) -> None:
    slow = Played(whole.parent, small(whole), whole, min_sites=2)
    slow.grid.tamper = {site: lambda answer: None for site in (1, 2)}
    late = "no answer within 0.3 s"
    with pytest.raises(
        UserError, match=f"of at least 2 sites are there; east: {late}; south: {late}; 'fedgela "
    ):
        slow.server()
    played = Played(whole.parent, small(whole), whole, min_sites=2)
    server = played.server()
    progress = server.begin()
    played.grid.tamper = slow.grid.tamper
    server.step(progress)
    owing = (
        f"are there; east: {STILL_ASKED}; south: {STILL_ASKED}; 'fedgela .*--round-seconds 0.3 for answers"
    )
    with pytest.raises(UserError, match=owing):
        server.step(progress)
