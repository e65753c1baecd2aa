"""A federation's models where they are asked: in the server's run folder, and on the sites."""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import save_file

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedgela[flower]'")

from fedgela.checkpoints import FolderStore
from fedgela.deploy import load_model
from fedgela.deploy.samples import read_samples
from fedgela.errors import UserError
from fedgela.files import write_json
from fedgela.flower.server_app import conduct
from fedgela.flower.terms import AGREED, TERMS
from fedgela.listener import Listener
from fedgela.runfolder import CONFIG, METRICS, RESULT, RunFolder
from fedgela.runs import go_on
from flower.sites import Played, small, write_data

pytestmark = pytest.mark.usefixtures("quick")


def play(played: Played, path: Path) -> RunFolder:
    """A whole run, in a folder as the server's process leaves it."""
    server = played.server()
    folder = RunFolder(path)
    path.mkdir()
    test_data = None if played.test_data is None else str(played.test_data)
    write_json(path / TERMS, {"terms": asdict(server.terms), "test_data": test_data, "nodes": {}})
    server.agreed.write(path / AGREED)
    folder.create(server.experiment)
    go_on(folder, server, FolderStore(folder.clients), None, Listener())
    return folder


def test_columns_in_another_order_are_refused_where_only_sites_know_their_names(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    draws = np.random.default_rng(0)
    for k in range(3):
        labels = np.arange(20) % 2
        rows = [f"{draws.normal() + 3 * y:.3f},{draws.normal():.3f},{'cat' if y else 'dog'}" for y in labels]
        (tmp_path / f"site-{k}.csv").write_text("\n".join(["age,dose,label", *rows, ""]))
    played = Played(tmp_path, small(tmp_path / "none", rounds=1), suffix=".csv", classes=("cat", "dog"))
    play(played, tmp_path / "run")
    model = load_model(tmp_path / "run")
    as_trained, turned = tmp_path / "site-0.csv", tmp_path / "turned.csv"
    turned.write_text("dose,age\n1,2\n")

    def asked(path: Path) -> None:
        read_samples(path, model.card.input, model.card.classes, model.card.features)

    asked(as_trained)
    with pytest.raises(UserError, match="columns are not those that the sites trained on, in their order"):
        asked(turned)


def test_what_is_constant_on_all_sites_has_no_effect_where_it_changes_later(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    draws = np.random.default_rng(0)
    for k in range(3):
        rows = [f"{draws.normal() + 3 * (i % 2):.3f},5,{'cat' if i % 2 else 'dog'}" for i in range(20)]
        (tmp_path / f"site-{k}.csv").write_text("\n".join(["age,scanner,label", *rows, ""]))
    played = Played(tmp_path, small(tmp_path / "none", rounds=1), suffix=".csv", classes=("cat", "dog"))
    play(played, tmp_path / "run")
    model = load_model(tmp_path / "run")
    answers = [model.probabilities(np.array([[1.5, scanner]], dtype=np.float32)) for scanner in (5, 500)]
    assert answers[0].tolist() == answers[1].tolist()


def test_a_global_model_without_trained_batchnorm_is_not_asked(tmp_path: Path) -> None:
    whole = write_data(tmp_path)
    algorithm = {"name": "fedgela", "feature_norm": "batchnorm"}
    play(Played(tmp_path, small(whole, rounds=1, algorithm=algorithm, batchnorm="local")), tmp_path / "run")
    with pytest.raises(UserError, match="has no BatchNorm that was ever trained"):
        load_model(tmp_path / "run")


def test_a_model_does_not_need_the_servers_test_set(tmp_path: Path) -> None:
    whole = write_data(tmp_path)
    play(Played(tmp_path, small(whole, rounds=1), whole), tmp_path / "run")
    whole.unlink()
    assert load_model(tmp_path / "run").card.round == 1


def test_a_site_tells_where_its_model_is_not_what_PA_counts(tmp_path: Path) -> None:
    whole = write_data(tmp_path)
    played = Played(tmp_path, small(whole, rounds=1, algorithm={"name": "moon"}))
    play(played, tmp_path / "run")
    card = load_model(played.grid.sites[0].state / "1").card
    assert "as it last trained: PA counts the global model fine-tuned" in str(card)


@pytest.mark.parametrize("method", ["fedproto", "local"])
def test_weights_that_do_not_reach_the_sites_are_refused(tmp_path: Path, method: str) -> None:
    whole = write_data(tmp_path)
    body = Played(tmp_path, small(whole)).server().net.backbone.state_dict()
    save_file({name: value.contiguous() for name, value in body.items()}, tmp_path / "w.safetensors")
    weights = str(tmp_path / "w.safetensors")
    Played(tmp_path, small(whole, weights=weights)).server()
    with pytest.raises(UserError, match="weights: sites would begin without them"):
        Played(tmp_path, small(whole, weights=weights, algorithm={"name": method})).server()


def test_a_late_site_with_a_class_that_has_no_length_is_refused(tmp_path: Path) -> None:
    """phi = paper-sqrt divides by what the sites that began the run have of a class."""
    whole = write_data(tmp_path)
    played = Played(tmp_path, small(whole, algorithm={"name": "fedgela", "phi": "paper-sqrt"}))
    played.grid.offline = {2}
    server = played.server()
    progress = server.begin()
    server.step(progress)
    played.grid.offline = set()
    record = server.step(progress)
    assert "has a class that no site had when the run began" in record["faults"]["south"]
    assert progress.visited.tolist() == [2, 2, 0]


@pytest.mark.parametrize("away", [set(), {2}])
def test_a_class_has_the_length_that_it_began_with_in_a_resumed_run(tmp_path: Path, away: set[int]) -> None:
    """Whichever sites are there when it goes on: only south has hens."""
    whole = write_data(tmp_path)
    played = Played(tmp_path, small(whole, algorithm={"name": "fedgela", "phi": "paper-sqrt"}))
    began_without = {2} - away
    played.grid.offline = began_without
    server = played.server()
    progress = server.begin()
    server.step(progress)
    server.agreed.write(tmp_path / AGREED)
    played.recalled, played.grid.offline = tmp_path / AGREED, away
    server = played.server()
    played.grid.offline = set()
    record = server.step(progress)
    assert record["clients"] == ([0, 1] if began_without else [0, 1, 2])
    told = "has a class that no site had when the run began"
    assert (told in record.get("faults", {}).get("south", "")) == bool(began_without)


def test_a_site_that_is_away_counts_in_PA_of_a_resumed_run_too(tmp_path: Path) -> None:
    whole = write_data(tmp_path)
    found = []
    for resumed in (False, True):
        folder = tmp_path / str(resumed)
        folder.mkdir()
        for file in tmp_path.glob("*.npz"):
            (folder / file.name).write_bytes(file.read_bytes())
        played = Played(folder, small(whole, rounds=3, epochs=2, lr=0.05))
        server = played.server()
        progress = server.begin()
        records = [json.loads(json.dumps(server.step(progress)))]
        played.grid.offline = {2}
        if resumed:
            server.agreed.write(folder / AGREED)
            played.recalled, played.records = folder / AGREED, records
            server = played.server()
        record = server.step(progress)
        found.append((record["PA"], record["local_accuracy_by_site"]))
    assert found[0] == found[1]
    assert set(found[1][1]) == {"north", "east", "south"}


def test_a_run_whose_last_line_is_incomplete_goes_on(tmp_path: Path) -> None:
    """As one whose server's disk was full."""
    played = Played(tmp_path, small(write_data(tmp_path), rounds=2))
    folder = play(played, tmp_path / "run")
    config = folder.path / CONFIG
    config.write_text(config.read_text().replace("rounds = 2", "rounds = 3"))
    (folder.path / RESULT).unlink()
    with (folder.path / METRICS).open("a") as file:
        file.write('{"round": 3, "lr')
    asked = {"terms": asdict(played.terms), "test_data": None, "nodes": {100: 0, 101: 1, 102: 2}}
    write_json(folder.path / TERMS, asked)
    assert conduct(folder, played.grid)["GA"]["last_round"] == 3  # type: ignore[arg-type]
    assert [record["round"] for record in folder.records()] == [1, 2, 3]
