"""The report of a run on the sites of a federation: what only such a run has, and nothing that it lacks."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from html_reading import Node, read, rows_of, table_after

from fedgela.flower.terms import AGREED, TERMS, Agreed, Terms
from fedgela.inputs import InputSpec
from fedgela.report import make_report

SITES = ("north", "east", "south")
CLASSES = ("cat", "cow", "dog", "hen")
Make = Callable[..., Path]


@pytest.fixture
def run_on_sites(made_run: Make) -> Make:
    """A run's folder as `fedgela federation run` leaves it, with numbers that a test can foretell."""

    def make(
        name: str = "run",
        shares: tuple[str, ...] = (),
        faults: dict[int, dict[str, str]] | None = None,
        test_data: str | None = None,
        federation: str = "f00d",
        terms: dict[str, Any] | None = None,
        **config: Any,
    ) -> Path:
        sites = {
            "dataset": "federation",
            "partition": "natural",
            "clients": 3,
            "sample": 3,
            "model": "tiny-cnn",
        }
        folder = made_run(name, [50.0, 60.0, 70.0], **sites | {"projection": 8} | config)
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        for record in lines:
            number = record["round"]
            record.pop("GA_by_class")
            record |= {
                "clients": [0, 1, 2],
                "site_seconds": {site: number * (k + 1.0) for k, site in enumerate(SITES)},
                "local_accuracy_by_site": {site: 10.0 * (number + k) for k, site in enumerate(SITES)},
                "bytes_up": 3000 * number,
                "bytes_down": 6000 * number,
            }
            if faults and number in faults:
                record["faults"] = faults[number]
                for site in faults[number]:
                    del record["site_seconds"][site]
            if terms and terms.get("dp_noise"):
                record["epsilon"] = 1.5 * number
        lines[0]["joined"] = {
            site: {"samples": 100 * (k + 1), "tested": 10 * (k + 1)}
            | (
                {"train_by_class": [25 * (k + 1)] * 4, "test_by_class": [10 * (k + 1), 0, 0, 0]}
                if site in shares
                else {}
            )
            for k, site in enumerate(SITES)
        }
        if shares:
            figures = {
                "local_accuracy": [80.0, None, None, None],
                "local_confusion": np.eye(4, dtype=int).tolist(),
            }
            lines[-1]["by_class"] = dict.fromkeys(shares, figures)
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        agreed_on = Terms(federation, "1", SITES, CLASSES, **terms or {})
        asked = {"terms": asdict(agreed_on), "test_data": test_data, "nodes": {}}
        (folder / TERMS).write_text(json.dumps(asked))
        normalisation = {"mean": torch.tensor([0.5]), "deviation": torch.tensor([2.0])}
        Agreed(CLASSES, InputSpec("image", (1, 8, 8)), normalisation).write(folder / AGREED)
        return folder

    return make


def words(page: Node) -> str:
    return " ".join(page.text().split())


def titles(page: Node) -> list[str]:
    return [caption.text() for caption in page.find("figcaption")]


def test_a_federation_is_no_data_set_that_is_missing(run_on_sites: Make) -> None:
    report = make_report([run_on_sites()])
    assert report.notes == []
    page = read(report.html)
    assert page.find("h1")[0].text() == "fedgela: a federation of 3 sites, tiny-cnn"
    assert "stays on 3 sites: north, east, south" in words(page)
    assert "split by natural" not in words(page)


def test_sites_time_and_PA_are_shown(run_on_sites: Make) -> None:
    page = read(make_report([run_on_sites()]).html)
    rows = table_after(page, "Sites")
    assert list(rows) == list(SITES)
    assert rows["east"] == {
        "site": "east",
        "training samples": "200",
        "test samples": "20",
        "rounds trained": "3 of 3",
        "a round": "4 s",
        "training in all": "12 s",
        "PA last": "40.00",
        "rounds with a fault": "none",
        "classes": "not shared",
    }
    assert "Seconds of training by site and round" in titles(page)
    assert "No faults" in words(page)


def test_bytes_are_those_that_were_counted(run_on_sites: Make) -> None:
    page = read(make_report([run_on_sites()]).html)
    told = "Messages: 6 kB up and 12 kB down a round, the median; 18 kB up and 36 kB down in all."
    assert told in words(page)
    costs = table_after(page, "Time, communication and memory")["fedgela"]
    assert costs["up in all"] == "18 kB" and costs["down in all"] == "36 kB"
    assert costs["up, client and round"] == "2 kB" and costs["client keeps"] == "-"
    assert "to FedAvg's" not in costs  # there is none
    rounds = next(t for t in page.find("table") if "slowest site" in t.text())
    shown = rows_of(rounds)
    assert shown[1][:3] == ["2", "6 kB", "12 kB"] and shown[1][5] == "south, 6.0 s"
    assert shown[-1][:3] == ["all", "18 kB", "36 kB"]


def test_faults_are_named_by_round_and_site(run_on_sites: Make) -> None:
    gone = {"east": "is not connected"}
    page = read(make_report([run_on_sites(faults={1: {"north": "OSError"}, 2: gone, 3: gone})]).html)
    table = next(t for t in page.find("table") if "Faults" in t.text())
    assert rows_of(table) == [["1", "north", "OSError"], ["2 to 3", "east", "is not connected"]]
    assert table_after(page, "Sites")["east"]["rounds trained"] == "1 of 3"
    assert table_after(page, "Sites")["east"]["rounds with a fault"] == "2"


def test_the_spent_epsilon_is_told(run_on_sites: Make) -> None:
    page = read(make_report([run_on_sites(terms={"dp_noise": 1.2, "dp_clip": 0.5})]).html)
    assert "epsilon 4.5 at delta 1e-05 after round 3 (noise 1.2, changes cut to length 0.5)" in words(page)
    assert "Epsilon spent by round" in titles(page)
    plain = read(make_report([run_on_sites("plain")]).html)
    assert "Differential privacy" not in words(plain)


def test_it_is_told_that_updates_were_masked_and_which_rounds_were_lost(run_on_sites: Make) -> None:
    folder = run_on_sites(terms={"secure_aggregation": True, "min_sites": 2})
    assert "Rounds whose updates are lost" not in words(read(make_report([folder]).html))
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    lines[1]["lost"] = "too few sites stayed to open their sum"
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    shown = words(read(make_report([folder]).html))
    assert "the sum of the updates, and no single one. Rounds whose updates are lost: 2." in shown
    assert "--min-sites 2 --secure-aggregation" in shown


def test_a_local_run_has_no_part_about_sites(made_run: Make) -> None:
    page = read(make_report([made_run("local", [50.0])]).html)
    assert "Sites" not in [heading.text() for heading in page.find("h2")]


def test_by_default_no_classes_are_shown(run_on_sites: Make) -> None:
    headings = [h.text() for h in read(make_report([run_on_sites()]).html).find("h2")]
    assert "Who holds what" not in headings and "Classes of the sites that share them" not in headings


def test_the_map_has_the_sites_that_share_and_marks_the_others(run_on_sites: Make) -> None:
    page = read(make_report([run_on_sites(shares=("north", "south"))]).html)
    rows = table_after(page, "Who holds what")
    assert rows["south"] == {"site": "south"} | dict.fromkeys(CLASSES, "75")
    assert rows["east"] == {"site": "east", "cat": "not shared"} | dict.fromkeys(CLASSES[1:], "")
    assert "2 of 3 sites share their class counts. Not shared: east." in words(page)
    figure = next(f for f in page.find("figure") if "Training samples by class and site" in f.text())
    assert any("east (not shared" in text.text() for text in figure.find("text"))
    assert table_after(page, "Sites")["north"]["classes"] == "shared"
    by_class = table_after(page, "Classes of the sites that share them")
    assert list(by_class) == ["north", "south"] and by_class["north"]["cat"] == "80.0"
    assert "Confusion of fedgela's own model on south, % of a class" in titles(page)


def test_scores_may_be_shared_without_any_model_of_a_site(run_on_sites: Make) -> None:
    folder = run_on_sites(shares=("north",))
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    lines[-1]["by_class"] = {"north": {"GA_confusion": np.eye(4, dtype=int).tolist()}}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = titles(read(make_report([folder]).html))
    assert "Confusion of fedgela's global model on the sites that share, % of a class" in found
    assert not any("by site and class" in title for title in found)


def test_GA_that_is_not_known_is_said_to_be(run_on_sites: Make) -> None:
    folder = run_on_sites(algorithm={"name": "fedrep"})
    result = json.loads((folder / "result.json").read_text())
    del result["GA"]
    (folder / "result.json").write_text(json.dumps(result))
    lines = [json.loads(line) | {"GA": None} for line in (folder / "metrics.jsonl").read_text().splitlines()]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    report = make_report([folder])
    page = read(report.html)
    assert report.notes == [] and "1 run, 1 finished" in words(page)
    assert "neither models nor samples leave a site" in words(page)
    assert table_after(page, "Results")["fedrep"]["GA last"] == "-"


def test_runs_of_other_federations_and_on_other_terms_are_told_apart(run_on_sites: Make) -> None:
    one = run_on_sites("one")
    run_on_sites("two", terms={"wire": "bf16"})
    run_on_sites("three", federation="beef")
    report = make_report([one.parent])
    entries = [[entry.label for entry in setting.entries] for setting, _ in report.settings]
    assert sorted(map(sorted, entries)) == [["fedgela"], ["fedgela (wire bf16)", "fedgela (wire fp32)"]]


def test_it_is_run_again_with_the_same_options(run_on_sites: Make) -> None:
    html = make_report([run_on_sites(terms={"wire": "bf16", "min_sites": 2})]).html
    assert "fedgela federation run DIR fedgela.toml --min-sites 2 --wire bf16 --out runs/" in html


def test_a_federations_folder_is_a_folder_of_runs(run_on_sites: Make, tmp_path: Path) -> None:
    run_on_sites("federation/runs/001")
    (tmp_path / "federation/federation.toml").write_text("")
    flower = tmp_path / "federation/server/flwr"
    flower.mkdir(parents=True)
    (flower / "config.toml").write_text("[superlink]\n")
    report = make_report([tmp_path / "federation"])
    assert len(report.runs) == 1 and report.notes == []


def test_test_data_that_is_gone_is_said(run_on_sites: Make) -> None:
    report = make_report([run_on_sites(test_data="/nowhere/test.npz")])
    assert len(report.notes) == 1 and report.notes[0].endswith(": no pictures of models")
    assert "the server's own test samples" in report.html


def test_damaged_terms_are_said(run_on_sites: Make) -> None:
    folder = run_on_sites()
    (folder / TERMS).write_text("{")
    assert any("its sites are not shown" in note for note in make_report([folder]).notes)


def test_the_global_model_is_shown_on_the_servers_own_test_samples(tmp_path: Path) -> None:
    """From a run that was trained: the folder, the model and the server's data fit together."""
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedgela[flower]'")
    from fedgela.checkpoints import FolderStore
    from fedgela.listener import Listener
    from fedgela.runfolder import RunFolder
    from fedgela.runs import go_on
    from flower.sites import Played, write_data
    from helpers import tiny

    whole = write_data(tmp_path)
    played = Played(
        tmp_path, tiny(whole, partition="natural", clients=3, rounds=1, algorithm="fedgela"), whole
    )
    server = played.server()
    folder = RunFolder(tmp_path / "run")
    with folder.locked():
        folder.create(server.experiment)
        server.agreed.write(folder.path / AGREED)
        asked = {"terms": asdict(played.terms), "test_data": str(whole), "nodes": {}}
        (folder.path / TERMS).write_text(json.dumps(asked))
        result = go_on(folder, server, FolderStore(folder.clients), None, Listener())
    report = make_report([folder.path])
    assert report.notes == []
    page = read(report.html)
    figure = next(f for f in page.find("figure") if "Confusion of fedgela's global model" in f.text())
    assert f"{result['GA']['last']:.2f}% lie on the diagonal" in figure.find("desc")[0].text()
    assert table_after(page, "By class")["fedgela"].keys() == {"method", *CLASSES}


def test_the_report_needs_no_flower() -> None:
    check = "import sys; sys.modules['flwr'] = None; import fedgela.report; print('fine')"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=False)
    assert done.stdout == "fine\n", done.stderr
