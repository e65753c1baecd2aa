"""What would tell a site's classes leaves it only where the site opted in, and then reaches the metrics."""

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedgela[flower]'")

from fedgela.evaluation import Record
from fedgela.flower import sharing
from fedgela.flower.outgoing import NotDeclared, check
from fedgela.flower.site import Site
from fedgela.flower.wire import decode, encode
from flower.sites import CLASSES, HOLDINGS, Played
from helpers import tiny

C = len(CLASSES)


pytestmark = pytest.mark.usefixtures("quick")


def played(whole: Path, sharing_sites: tuple[int, ...], own_test_set: bool = False, **changes: Any) -> Played:
    table = {"partition": "natural", "clients": 3, "rounds": 2, "algorithm": "fedgela"} | changes
    made = Played(whole.parent, tiny(whole, **table), whole if own_test_set else None)
    for site in sharing_sites:
        made.grid.sites[site].share_classes = True
    return made


def rounds_of(made: Played) -> list[Record]:
    server = made.server()
    progress = server.begin()
    return [server.step(progress) for _ in range(made.experiment.rounds)]


def groups_sent(made: Played, site: int) -> list[tuple[str, set[str]]]:
    return [
        (decode(question)[1]["task"], set(decode(answer)[0].get(sharing.GROUP, {})))
        for who, question, answer in made.grid.seen
        if who == site
    ]


def test_by_default_no_site_tells_of_its_classes(whole: Path) -> None:
    made = played(whole, ())
    records = rounds_of(made)
    assert all(not names for site in range(3) for _, names in groups_sent(made, site))
    for record in records:
        assert not any("by_class" in key or "balanced" in key or "confusion" in key for key in record)
    assert all(told.keys() == {"samples", "tested"} for told in records[0]["joined"].values())


def test_only_the_site_that_opted_in_shares(whole: Path) -> None:
    made = played(whole, (0,))
    first, last = rounds_of(made)
    assert all(not names for site in (1, 2) for _, names in groups_sent(made, site))
    assert groups_sent(made, 0) == [
        ("join", {"train", "test"}),
        ("train", {"loss_sum", "loss_count", "right"}),
        ("score", {"right"}),
        ("train", {"loss_sum", "loss_count", "right", "confusion"}),
        ("score", {"right", "confusion"}),
    ]
    data = made.grid.sites[0].data
    joined = first["joined"]
    assert joined["north"]["train_by_class"] == torch.bincount(data.y_train, minlength=C).tolist()
    assert joined["north"]["test_by_class"] == torch.bincount(data.y_test, minlength=C).tolist()
    assert joined["east"].keys() == {"samples", "tested"} and "joined" not in last
    assert list(first["by_class"]) == list(last["by_class"]) == ["north"]
    assert first["by_class"]["north"].keys() == {"train_loss", "local_accuracy", "GA"}


def test_shared_figures_are_those_of_the_sums(whole: Path) -> None:
    """Accuracies by class, weighted by the test samples of each, are the site's own accuracy."""
    last = rounds_of(played(whole, (0, 1, 2)))[-1]
    tested = torch.zeros(C)
    right = torch.zeros(C)
    for k, (site, figures) in enumerate(last["by_class"].items()):
        local, seen = torch.tensor(figures["local_confusion"]), torch.tensor(figures["GA_confusion"])
        lacked = [c for c in range(C) if c not in HOLDINGS[k]]
        assert local.sum(dim=1)[lacked].tolist() == [0] * len(lacked)
        assert [figures["local_accuracy"][c] for c in lacked] == [None] * len(lacked)
        assert [figures["train_loss"][c] for c in lacked] == [None] * len(lacked)
        own = last["local_accuracy_by_site"][site]
        assert 100 * local.trace().item() / local.sum().item() == pytest.approx(own)
        for c in HOLDINGS[k]:
            assert 100 * local[c, c].item() / local[c].sum().item() == pytest.approx(
                figures["local_accuracy"][c]
            )
        right, tested = right + seen.diagonal(), tested + seen.sum(dim=1)
    assert 100 * (right.sum() / tested.sum()).item() == pytest.approx(last["GA"])


def test_sharing_changes_no_other_figure(whole: Path) -> None:
    plain, shared = (rounds_of(played(whole, sites)) for sites in ((), (0, 1, 2)))
    of_their_own = {"seconds", "site_seconds", "bytes_up", "bytes_down", "joined", "by_class"}
    for a, b in zip(plain, shared, strict=True):
        assert {k: v for k, v in a.items() if k not in of_their_own} == {
            k: v for k, v in b.items() if k not in of_their_own
        }


def test_only_evaluated_rounds_have_figures(whole: Path) -> None:
    records = rounds_of(played(whole, (0,), rounds=3, eval_every=2))
    assert ["by_class" in record for record in records] == [False, True, True]


def test_figures_by_class_of_the_servers_own_test_set_are_its_own(whole: Path) -> None:
    record = rounds_of(played(whole, (), own_test_set=True))[-1]
    assert len(record["GA_by_class"]) == C and "PA_by_class" not in record
    assert record["GA_balanced"] == pytest.approx(sum(record["GA_by_class"]) / C)


@pytest.mark.parametrize("task", ["join", "train", "score"])
def test_the_check_before_sending_lets_classes_out_of_who_opted_in_only(task: str) -> None:
    counts = {sharing.GROUP: {name: torch.zeros(shape) for name, shape in sharing.shapes(task, C).items()}}
    with pytest.raises(NotDeclared, match=sharing.GROUP):
        check(task, counts, {}, {})
    check(task, counts, {}, {sharing.GROUP: sharing.shapes(task, C)})
    with pytest.raises(NotDeclared, match="samples"):
        check(
            task, {sharing.GROUP: {"samples": torch.zeros(C)}}, {}, {sharing.GROUP: sharing.shapes(task, C)}
        )


def test_a_site_that_did_not_opt_in_cannot_be_made_to_share(whole: Path, monkeypatch: Any) -> None:
    """Were the figures added by mistake, the check on the site would keep the answer back."""
    made = played(whole, ())
    server = made.server()
    monkeypatch.setattr(
        "fedgela.flower.site.groups_of",
        lambda visit: {"measures": {}, sharing.GROUP: {"right": torch.zeros(C)}},
    )
    record = server.step(server.begin())
    assert set(record["faults"].values()) == {"its answer held what the algorithm does not declare"}


def test_who_opts_in_during_a_run_shares_from_the_next_on(whole: Path) -> None:
    made = played(whole, ())
    server = made.server()
    progress = server.begin()
    made.grid.sites[1].share_classes = True
    record = server.step(progress)
    assert "faults" not in record and "by_class" not in record


def test_shared_figures_that_are_none_are_a_fault(whole: Path) -> None:
    made = played(whole, (0,))
    server = made.server()

    def wrong(answer: bytes) -> bytes:
        groups, about = decode(answer)
        if "right" in groups.get(sharing.GROUP, {}):
            groups[sharing.GROUP]["right"] = torch.full((C,), -1)
        return encode(groups, about)

    made.grid.tamper[0] = wrong
    assert "no counts and no sums" in server.step(server.begin())["faults"]["north"]


def test_a_late_site_shares_too(whole: Path) -> None:
    made = played(whole, (1,))
    made.grid.offline = {1}
    server = made.server()
    progress = server.begin()
    assert set(server.step(progress)["joined"]) == {"north", "south"}
    made.grid.offline = set()
    record = server.step(progress)
    assert "train_by_class" in record["joined"]["east"] and list(record["by_class"]) == ["east"]


@pytest.mark.parametrize("options", [[], ["--share-classes"]])
def test_the_sites_command_opts_in(options: list[str], whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from fedgela.flower.cli import app
    from fedgela.flower.folder import init

    made = init(whole.parent / "fed", ["north"], "127.0.0.1", 8123, list(CLASSES))
    opened: list[Site] = []
    monkeypatch.setattr("fedgela.flower.site_process.serve", lambda folder, site, log: opened.append(site))
    monkeypatch.setattr("fedgela.flower.cli._end_in_order", lambda: None)
    data = str(whole.parent / "site-0.npz")
    done = CliRunner().invoke(app, ["site", str(made.path / "north"), "--data", data, *options])
    assert done.exit_code == 0, done.output
    assert opened[0].share_classes == bool(options)
    assert ("shares its class counts" in done.output) == bool(options)
