"""Personal models stay on their site, survive what happens to it, and can be used there."""

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedgela[flower]'")

from fedgela.deploy import load_model
from fedgela.deploy.export import export
from fedgela.errors import UserError
from fedgela.models import State
from flower.sites import CLASSES, HOLDINGS, Played, assert_close, small
from flower.tampering import tampered

pytestmark = pytest.mark.usefixtures("quick")


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


def test_a_site_that_cannot_read_its_model_for_now_keeps_it(whole: Path) -> None:
    played = Played(whole.parent, small(whole, algorithm="fedrep"))
    server = played.server()
    progress = server.begin()
    server.step(progress)
    (path,) = (whole.parent / "state-1" / "1").glob("round-000001.*")
    aside = path.rename(whole.parent / "aside")
    path.symlink_to(path)  # which no system reads
    assert "OSError" in server.step(progress)["faults"]["east"]
    path.unlink()
    aside.rename(path)
    assert "faults" not in server.step(progress)


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
