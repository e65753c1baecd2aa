"""The report: one file that needs nothing else, with the runs' own numbers, and words for every picture."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from html_reading import Node, read, table_after, table_of
from rich.console import Console

from fedgela.errors import UserError
from fedgela.measures import etf_angle
from fedgela.nets import empty_net
from fedgela.progress import PlainView
from fedgela.report import Report, make_report
from fedgela.report.arranging import arrange
from fedgela.report.paper_numbers import paper_number
from fedgela.report.saved_models import Federations
from fedgela.runs import run
from fedgela.saved.runs import find_runs
from fedgela.seeds import run_seeds
from helpers import run_cut, tiny, tiny_arrays, tiny_npz


@pytest.fixture(scope="session")
def page(report: Report) -> Node:
    return read(report.html)


def figures(page: Node) -> dict[str, Node]:
    return {figure.find("figcaption")[0].text(): figure for figure in page.find("figure")}


def figure_about(page: Node, words: str) -> Node:
    found = [node for title, node in figures(page).items() if words in title]
    assert found, f"no picture of {words!r} among {list(figures(page))}"
    return found[0]


# -- the file --------------------------------------------------------------------------------------


def test_nothing_is_loaded_from_anywhere(report: Report, page: Node) -> None:
    assert not re.search(r"https?:|//[a-z]+\.", report.html)
    for node in page.find(""):
        for child in node.find("script") + node.find("link") + node.find("img"):
            assert "src" not in child.attributes and "href" not in child.attributes
    places = re.findall(r'(?:href|src)="([^"]*)"', report.html)
    assert places and all(place.startswith(("#", "data:image/png;base64,")) for place in places)


def test_every_reference_within_the_file_leads_somewhere_and_ids_are_unique(report: Report) -> None:
    ids = re.findall(r'\bid="([^"]+)"', report.html)
    assert len(ids) == len(set(ids))
    for place in re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', report.html):
        assert "".join(place) in ids
    for pair in re.findall(r'aria-labelledby="([^"]+)"', report.html):
        assert set(pair.split()) <= set(ids)


def test_every_picture_has_words(page: Node) -> None:
    pictures = [svg for figure in page.find("figure") for svg in figure.find("svg")]
    assert len(pictures) > 12
    for svg in pictures:
        assert svg.attributes["role"] == "img"
        assert len(svg.find("title")[0].text()) > 10
        assert len(svg.find("desc")[0].text()) > 40
    drawn = [svg for svg in page.find("svg") if svg not in pictures]
    assert drawn and all(svg.attributes.get("aria-hidden") == "true" for svg in drawn)


def test_pictures_follow_the_page_into_dark_mode(page: Node, report: Report) -> None:
    assert "prefers-color-scheme: dark" in report.html and "@media print" in report.html
    svg = figure_about(page, "GA: the global model").find("svg")[0]
    styles = " ".join(n.attributes.get("style", "") for tag in ("path", "text") for n in svg.find(tag))
    assert "var(--blue)" in styles and "var(--orange)" in styles and "var(--ink)" in styles
    assert "#0072b2" not in styles and "#1c2430" not in styles


def test_the_same_runs_give_the_same_bytes(comparison: Path, report: Report) -> None:
    assert make_report([comparison]).html == report.html


# -- numbers ---------------------------------------------------------------------------------------


def test_the_results_are_the_comparisons_own(comparison: Path, page: Node) -> None:
    shown = table_after(page, "Results")
    table = json.loads((comparison / "table.json").read_text())
    assert list(shown) == ["fedavg", "fedrep", "fedgela"]
    for row in table:
        for metric in ("PA", "GA"):
            for when in ("best", "last"):
                cell = row[metric][when]
                text = shown[row["algorithm"]][f"{metric} {when}"]
                assert text.split(" (")[0] == f"{cell['mean']:.2f} ± {cell['std']:.2f}"
            if row["algorithm"] != "fedavg":
                cell = row["difference_to_fedavg"][metric]["last"]
                assert (
                    shown[row["algorithm"]][f"Δ {metric} last"] == f"{cell['mean']:+.2f} ± {cell['std']:.2f}"
                )


def test_best_and_second_best_are_marked(comparison: Path, page: Node) -> None:
    table = json.loads((comparison / "table.json").read_text())
    shown = table_after(page, "Results")
    means = sorted({round(row["GA"]["last"]["mean"], 2) for row in table}, reverse=True)
    for row in table:
        text = shown[row["algorithm"]]["GA last"]
        level = means.index(round(row["GA"]["last"]["mean"], 2))
        assert ("(best)" in text) == (level == 0)
        assert ("(second best)" in text) == (level == 1)


def records(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def numbers_of(figure: Node) -> dict[str, dict[str, str]]:
    return table_of(figure.find("details")[0].find("table")[0])


@pytest.mark.parametrize(
    ("words", "key"), [("GA: the", "GA"), ("the server's classifier vectors of all", "angle_all_server")]
)
def test_curves_have_the_runs_numbers(comparison: Path, page: Node, words: str, key: str) -> None:
    shown = numbers_of(figure_about(page, words))
    seeds = [records(comparison / "fedavg" / f"seed-{seed}") for seed in (0, 1)]
    for i in range(2):
        a, b = (record[i][key] for record in seeds)
        assert shown[str(i + 1)]["fedavg"] == f"{(a + b) / 2:.2f} ± {abs(a - b) / 2**0.5:.2f}"


def test_finetuned_PA_is_of_the_end_with_its_spread_and_local_PA_of_every_round(
    comparison: Path, page: Node
) -> None:
    shown = numbers_of(figure_about(page, "PA: personal models"))
    assert shown["1"]["fedavg"] == "" and shown["1"]["fedgela"]
    results = [json.loads((comparison / f"fedavg/seed-{s}/result.json").read_text()) for s in (0, 1)]
    a, b = (r["PA"]["last"] for r in results)
    assert shown["2"]["fedavg"] == f"{(a + b) / 2:.2f} ± {abs(a - b) / 2**0.5:.2f}"


def test_angles_are_drawn_against_the_etf(page: Node) -> None:
    svg = figure_about(page, "clients' classifier vectors of all classes").find("svg")[0]
    assert f"simplex ETF, {etf_angle(4):.2f}°" in [text.text() for text in svg.find("text")]


def test_every_clients_PA(comparison: Path, page: Node) -> None:
    shown = numbers_of(figure_about(page, "PA of every client"))
    results = [json.loads((comparison / f"fedavg/seed-{s}/result.json").read_text()) for s in (0, 1)]
    held = [v for r in results for v in r["finetuned"]["last"]["by_client"] if v is not None]
    assert shown["fedavg"]["worst"] == f"{min(held):.2f}"
    assert shown["fedavg"]["mean"] == f"{sum(held) / len(held):.2f}"
    assert shown["fedavg"]["clients"] == str(len(held))
    assert set(shown) == {"fedavg", "fedrep", "fedgela"}


def test_each_clients_PA_is_of_one_seed_since_another_has_other_clients(comparison: Path) -> None:
    report = make_report([comparison / "fedavg", comparison / "fedgela/seed-1"])
    folded = [d for d in read(report.html).find("details") if "PA of each client, seed 0" in d.text()]
    (table,) = folded[0].find("table")
    assert [cell.text() for cell in table.find("thead")[0].find("th")] == ["client", "fedavg"]


def test_a_line_has_its_name_beside_it(comparison: Path, page: Node) -> None:
    def names(page: Node) -> set[str]:
        svg = figure_about(page, "PA: personal").find("svg")[0]
        return {text.text() for text in svg.find("text")} & {"fedavg", "fedrep", "fedgela"}

    assert names(page) == {"fedavg", "fedrep", "fedgela"}
    assert not names(read(make_report([comparison / "fedgela"]).html))  # where there is but one


def test_a_legend_tells_several_methods_apart_and_one_has_none(comparison: Path, page: Node) -> None:
    buttons = [button.text() for button in page.find("button") if "data-toggle" in button.attributes]
    assert buttons == ["fedavg", "fedrep", "fedgela"]
    assert not read(make_report([comparison / "fedgela"]).html).find("button")


def test_whose_accuracy_GA_is_and_over_which_seeds_is_told(page: Node, comparison: Path) -> None:
    assert figure_about(page, "GA: the global model on all test samples (fedrep: the mean of the clients'")
    assert "GA: the global model on all test samples (fedrep: the mean of the clients'" in page.text()
    assert figure_about(page, "GA by class at the last round, mean over seeds, %")
    one = read(make_report([comparison / "fedavg/seed-0"]).html)
    assert figure_about(one, "GA: the global model on all test samples, %")
    assert figure_about(one, "GA by class at the last round, %")


def test_confusion_has_the_global_models_accuracy_on_its_diagonal(comparison: Path, page: Node) -> None:
    for method in ("fedavg", "fedgela"):
        shown = numbers_of(figure_about(page, f"Confusion of {method}"))
        cells = [[int(v) if v != "." else 0 for v in list(row.values())[1:]] for row in shown.values()]
        right, total = sum(cells[i][i] for i in range(4)), sum(map(sum, cells))
        last = records(comparison / method / "seed-0")[-1]
        assert 100 * right / total == pytest.approx(last["GA"])
    assert not any("Confusion of fedrep" in title for title in figures(page))  # it has no global model


def test_who_holds_what_is_the_federations(comparison: Path, page: Node) -> None:
    from fedgela.resolve import resolve
    from fedgela.runfolder import RunFolder

    federation = resolve(RunFolder(comparison / "fedavg/seed-0").experiment())[1]
    shown = numbers_of(figure_about(page, "Training samples by class and client"))
    for k, row in enumerate(federation.train_counts.tolist()):
        assert list(shown[str(k)].values())[1:] == [str(n) if n else "." for n in row]


def test_features_of_the_global_model_and_of_a_client(page: Node) -> None:
    titles = list(figures(page))
    assert any(title.startswith("fedgela, the global model") for title in titles)
    assert any(re.match(r"fedgela, client \d's own model", title) for title in titles)
    assert any(re.match(r"fedrep, client \d's own model", title) for title in titles)
    # a client of two classes: Phi = 0 takes the others' directions away
    svg = figure_about(page, "fedgela, client").find("svg")[0]
    assert "2 classes have one" in svg.find("desc")[0].text()


def test_messages_are_what_travels(page: Node) -> None:
    shown = table_after(page, "Time, communication and memory")
    parameters = {name: int(row["parameters"].replace(",", "")) for name, row in shown.items()}
    kB = float(shown["fedavg"]["up, client and round"].removesuffix(" kB"))
    assert kB == pytest.approx((4 * parameters["fedavg"] + 8) / 1000, rel=5e-3)
    fixed = float(shown["fedgela"]["up, client and round"].removesuffix(" kB"))
    assert fixed == pytest.approx(kB - 4 * (8 * 4 + 4) / 1000, rel=5e-3)  # all but the head: d = 8, C = 4
    assert shown["fedavg"]["to FedAvg's"] == "1.00x"
    assert shown["fedavg"]["client keeps"] == "nothing" != shown["fedgela"]["client keeps"]


def test_a_round_is_timed_without_evaluation_where_all_runs_tell_it(made_run: Callable[..., Path]) -> None:
    for name, seconds in (("fedavg", 0.25), ("fedrep", 0.2)):
        made_run(name, [50.0], algorithm={"name": name}, tracked={"training_seconds": [seconds]})
    folder = made_run("fedgela", [50.0], tracked={"training_seconds": [0.5]}).parent
    html = make_report([folder]).html
    shown = table_after(read(html), "Time, communication and memory")
    assert [row["to FedAvg's"] for row in shown.values()] == ["1.00x", "0.80x", "2.00x"]
    assert "local training and aggregation without evaluation" in html
    made_run("old", [50.0], algorithm={"name": "moon"})
    html = make_report([folder]).html
    shown = table_after(read(html), "Time, communication and memory")
    assert {row["to FedAvg's"] for row in shown.values()} == {"1.00x"}  # half a second each, all in all
    assert "evaluation included, which not all of these runs tell apart" in html


def test_rounds_to_fedavgs_best(made_run: Callable[..., Path]) -> None:
    made_run("fedavg", [50.0, 70.0, 60.0, 60.0], algorithm={"name": "fedavg"})
    fast = made_run("fedgela", [71.0, 60.0, 60.0, 60.0])
    made_run("moon", [1.0, 2.0, 3.0, 4.0], algorithm={"name": "moon"})
    shown = table_after(read(make_report([fast.parent]).html), "Rounds to FedAvg's best GA")
    assert [(row["rounds"], row["speed-up"]) for row in shown.values()] == [
        ("2", "1.00x"),
        ("-", "-"),
        ("1", "2.00x"),
    ]
    # Table 9 of the paper, CIFAR10, beta = 0.1, full participation
    assert [(row["paper: rounds"], row["paper: speed-up"]) for row in shown.values()] == [
        ("100", "1x"),
        ("79", "1.27x"),
        ("67", "1.49x"),
    ]


def test_all_versions_of_the_software_are_told(made_run: Callable[..., Path]) -> None:
    for name, version in (("fedavg", "1"), ("fedrep", "2"), ("moon", "2")):
        path = made_run(name, [50.0], algorithm={"name": name}) / "result.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"versions": {"fedgela": version}}))
    assert "<dd>fedgela 1 or fedgela 2</dd>" in make_report([path.parent.parent]).html


def test_config_and_command_to_run_it_again(comparison: Path, report: Report, page: Node) -> None:
    shown = [pre.text() for pre in page.find("pre")]
    assert (comparison / "fedgela/seed-0/config.toml").read_text() in shown
    assert (
        "fedgela run fedgela.toml --out runs/fedgela-seed-0\n"
        "fedgela run fedgela.toml --seeds 1 --set partition_seed=1 --out runs/fedgela-seed-1"
    ) in shown


# -- what can be reported on -----------------------------------------------------------------------


def test_a_single_run_and_the_seeds_of_one(comparison: Path) -> None:
    one = make_report([comparison / "fedgela/seed-1"])
    row = table_after(read(one.html), "Results")["fedgela"]
    result = json.loads((comparison / "fedgela/seed-1/result.json").read_text())
    assert row["GA last"] == f"{result['GA']['last']:.2f}"  # no spread, and not the best of anything
    two = make_report([comparison / "fedgela/seed-1", comparison / "fedgela/seed-0"])
    assert len(two.runs) == 2
    assert "±" in table_after(read(two.html), "Results")["fedgela"]["GA last"]


def test_a_folder_of_seeds(npz: Path, tmp_path: Path) -> None:
    with PlainView(Console(quiet=True)) as view:
        summary = run_seeds(tiny(npz, rounds=1), [3, 4], tmp_path / "seeds", view)
    row = table_after(read(make_report([tmp_path / "seeds"]).html), "Results")["fedgela"]
    GA = summary["GA"]["last"]
    assert row["GA last"] == f"{GA['mean']:.2f} ± {GA['std']:.2f}"


def test_the_same_folder_twice_is_one(comparison: Path) -> None:
    assert len(make_report([comparison / "fedavg", comparison / "fedavg/seed-0"]).runs) == 2


def test_other_federations_are_sections_of_their_own(made_run: Callable[..., Path]) -> None:
    one = made_run("one", [50.0])
    made_run("two", [60.0], partition="iid")
    page = read(make_report([one.parent]).html)
    assert len(page.find("section")) == 2
    assert {h.text() for h in page.find("h2")} == {
        "cifar10, dirichlet:0.1, 10 clients, resnet18, 1 round",
        "cifar10, iid, 10 clients, resnet18, 1 round",
    }


def test_runs_of_other_lengths_are_not_ranked_together(made_run: Callable[..., Path]) -> None:
    one = made_run("one", [50.0])
    made_run("two", [50.0, 60.0, 70.0], algorithm={"name": "fedavg"})
    page = read(make_report([one.parent]).html)
    assert {h.text().rpartition(", ")[2] for h in page.find("h2")} == {"1 round", "3 rounds"}
    assert "(best)" not in page.text()


def test_runs_of_data_that_has_changed_are_not_ranked_together(made_run: Callable[..., Path]) -> None:
    one = made_run("one", [50.0])
    two = made_run("two", [60.0], algorithm={"name": "fedavg"})
    made_run("three", [55.0], finished=False, algorithm={"name": "fedprox"})
    for path, fingerprint in ((one, "a"), (two, "b")):
        result = json.loads((path / "result.json").read_text())
        (path / "result.json").write_text(json.dumps(result | {"data_fingerprint": fingerprint}))
    report = make_report([one.parent])
    assert len(read(report.html).find("h2")) == 2
    assert "(best)" not in read(report.html).text()
    assert any("not all runs of this title are of the same data" in note for note in report.notes)


@pytest.mark.parametrize("split", [{"validation": 0.2}, {"partition": "natural"}])
def test_where_every_seed_has_other_samples_they_are_one_entry_unless_the_data_changed(
    made_run: Callable[..., Path], split: dict[str, object]
) -> None:
    runs = {
        name: made_run(name, [50.0], seed=seed, partition_seed=seed, algorithm={"name": method}, **split)
        for name, seed, method in (("a", 0, "fedgela"), ("b", 1, "fedgela"), ("c", 0, "fedavg"))
    }

    def report(**fingerprints: str) -> Report:
        for name, fingerprint in fingerprints.items():
            path = runs[name] / "result.json"
            path.write_text(json.dumps(json.loads(path.read_text()) | {"data_fingerprint": fingerprint}))
        return make_report(list(runs.values()))

    assert len(report(a="held 0", b="held 1", c="held 0").settings) == 1
    changed = report(c="of another file")
    assert len(changed.settings) > 1
    assert any("not all runs of this title are of the same data" in note for note in changed.notes)


def test_one_method_twice_is_told_apart_by_what_differs(made_run: Callable[..., Path]) -> None:
    one = made_run("one", [50.0], algorithm={"name": "fedgela", "E_W": 3.0}, lr=0.1)
    made_run("two", [60.0], algorithm={"name": "fedgela", "E_W": 30.0}, lr=0.1)
    shown = table_after(read(make_report([one.parent]).html), "Results")
    assert list(shown) == ["fedgela (E_W 3.0)", "fedgela (E_W 30.0)"]
    assert "(best)" in shown["fedgela (E_W 30.0)"]["GA last"]


def test_the_papers_numbers_stand_beside(made_run: Callable[..., Path]) -> None:
    one = made_run("fedgela", [50.0, 72.0])
    made_run("fedavg", [60.0, 61.0], algorithm={"name": "fedavg"})
    html = make_report([one.parent]).html
    shown = table_after(read(html), "Results")
    from fedgela.paper import find_cell

    for method in ("fedgela", "fedavg"):
        cell = find_cell(f"main/cifar10/full-dir0.1/{method}")
        for metric in ("PA", "GA"):
            assert shown[method][f"paper's {metric}"] == cell.printed[metric].text
    assert "Table 2" in html


@pytest.mark.parametrize(
    "change",
    [
        {"partition": "dirichlet:0.3"},
        {"clients": 11},
        {"sample": 5},
        {"model": "simple-cnn"},
        {"dataset": "svhn", "partition": "dirichlet:0.2"},
        {"validation": 0.2},
        {"algorithm": {"name": "fedgela", "phi": "exp"}},
    ],
)
def test_where_the_paper_has_no_such_cell_it_is_not_cited(
    made_run: Callable[..., Path], change: dict[str, object]
) -> None:
    (setting,) = arrange(find_runs([made_run("other", [50.0], **change)], print), print)
    for metric in ("GA", "PA", "rounds"):
        assert paper_number(setting.entries[0], metric) is None


def test_collapse_and_class_means_are_drawn_where_they_were_tracked(made_run: Callable[..., Path]) -> None:
    tracked = {
        "nc1_server": [1.0, 0.5, 1 / 3],
        "nc4_server": [0.5, 0.25, 0.0],
        "class_mean_angle_all_server": [90.0, 91.0, 92.0],
    }
    page = read(make_report([made_run("run", [50.0, 60.0, 70.0], tracked=tracked)]).html)
    shown = numbers_of(figure_about(page, "NC1: variability"))
    assert [row["fedgela"] for row in shown.values()] == ["1.00", "0.50", "0.33"]
    svg = figure_about(page, "NC4").find("svg")[0]
    assert "collapse, 0" in [text.text() for text in svg.find("text")]
    assert figure_about(page, "server's class means of features")
    assert page.text().count("a sample of the training data with as many of every class") == 2


def test_lines_that_stay_at_their_level_are_told_and_not_drawn(made_run: Callable[..., Path]) -> None:
    at = etf_angle(10)
    level = {"angle_all_server": [at, at + 1e-5], "nc2_classifier_server": [2e-8, 0.0]}
    held = made_run("fedgela", [50.0, 60.0], tracked=level | {"nc4_server": [0.5, 0.0]})
    page = read(make_report([held]).html)
    titles = list(figures(page))
    assert not any("classifier" in title for title in titles) and any("NC4" in title for title in titles)
    assert f"A simplex ETF's {at:.2f}° in every round, and not drawn: the server's classifier" in page.text()
    assert "0 in every round, and not drawn: NC2: distance of the classifier" in page.text()

    trained = {"angle_all_server": [90.0, 91.0], "nc2_classifier_server": [0.5, 0.4]}
    other = made_run("fedavg", [50.0, 60.0], tracked=trained, algorithm={"name": "fedavg"})
    page = read(make_report([held, other]).html)
    for words in ("server's classifier vectors of all classes", "NC2: distance of the classifier"):
        assert (
            "fedgela" in numbers_of(figure_about(page, words))["1"]
        )  # beside a line that moves, it is drawn
    assert "not drawn" not in page.text()


def test_angles_that_are_the_same_for_classes_had_and_for_all_are_drawn_once(
    made_run: Callable[..., Path],
) -> None:
    angles = {"angle_existing_clients": [80.0], "angle_all_clients": [80.0], "angle_all_server": [70.0]}
    page = read(make_report([made_run("run", [50.0], tracked=angles)]).html)
    titles = [title for title in figures(page) if title.startswith("Mean angle")]
    assert titles == [
        f"Mean angle between the {whose} classifier vectors of all classes"
        for whose in ("clients'", "server's")
    ]


def test_a_tenth_of_a_point_does_not_look_like_a_leap(made_run: Callable[..., Path]) -> None:
    page = read(make_report([made_run("run", [50.0, 50.1])]).html)
    svg = figure_about(page, "GA: the global").find("svg")[0]
    told = [text.text() for text in svg.find("text")]
    ticks = [float(text) for text in told if re.fullmatch(r"[45]\d(\.\d)?", text)]
    assert max(ticks) - min(ticks) >= 3


def test_a_method_without_a_global_model_has_no_classifier_at_the_server(
    made_run: Callable[..., Path],
) -> None:
    angles = {"angle_all_server": [95.0], "angle_all_clients": [80.0]}
    made_run("fedavg", [50.0], tracked=angles, algorithm={"name": "fedavg"})
    old = made_run("fedrep", [50.0], tracked=angles, algorithm={"name": "fedrep"})
    page = read(make_report([old.parent]).html)
    for whose, methods in (("server's", {"fedavg"}), ("clients'", {"fedavg", "fedrep"})):
        (shown,) = numbers_of(figure_about(page, f"{whose} classifier")).values()
        assert shown.keys() - {"round"} == methods


def test_classes_that_are_never_measured_are_named(made_run: Callable[..., Path]) -> None:
    by_class = [[None if c == 7 else 50.0 for c in range(10)]]
    html = make_report([made_run("run", [50.0], tracked={"GA_by_class": by_class})]).html
    assert "<dt>never measured</dt><dd>7: there is no test sample of these classes</dd>" in html
    assert "never measured" not in make_report([made_run("other", [50.0])]).html


def test_classes_that_only_test_sets_have_are_named(tmp_path: Path) -> None:
    arrays = tiny_arrays()
    left = arrays["y_train"] != 2
    arrays |= {name: arrays[name][left] for name in ("x_train", "y_train")}
    np.savez(tmp_path / "gap.npz", **arrays, class_names=["ant", "bee", "cat", "dog"])
    run(tiny(tmp_path / "gap.npz", partition="iid", rounds=1), tmp_path / "run")
    report = make_report([tmp_path / "run"])
    assert report.notes == ["classes that are tested, but that nobody has training samples of: cat"]
    assert "<dt>never trained on</dt><dd>cat: only test sets have samples" in report.html


# -- bad input -------------------------------------------------------------------------------------


def test_an_unfinished_run_shows_what_it_has_and_says_so(made_run: Callable[..., Path]) -> None:
    made_run("fedavg", [40.0, 45.0, 41.0], algorithm={"name": "fedavg"})
    cut = made_run("fedgela", [50.0, 60.0], finished=False, rounds=3)
    html = make_report([cut.parent]).html
    assert "fedgela, seed 0: 2 of 3 rounds" in html and "2 runs, 1 finished" in html
    shown = table_after(read(html), "Results")
    assert shown["fedgela (unfinished)"]["GA last"] == "60.00"  # and no best, though it is the higher


def test_an_unfinished_run_that_diverged_is_marked(made_run: Callable[..., Path]) -> None:
    lost = made_run("fedgela", [50.0, 10.0], finished=False, tracked={"train_loss": [1.0, None]}, rounds=3)
    html = make_report([lost]).html
    assert "fedgela (unfinished) †" in table_after(read(html), "Results")
    assert "†: the training loss became infinite or NaN" in html


def test_a_run_without_a_round_yet(made_run: Callable[..., Path]) -> None:
    folder = made_run("begun", [50.0], finished=False)
    (folder / "metrics.jsonl").unlink()
    html = make_report([folder]).html
    assert "0 of 1 rounds" in html
    assert table_after(read(html), "Results")["fedgela (unfinished)"]["GA last"] == "-"


def test_a_damaged_line_is_named_and_the_rest_is_shown(made_run: Callable[..., Path]) -> None:
    folder = made_run("damaged", [50.0, 60.0, 70.0])
    path = folder / "metrics.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], lines[1][:20], lines[2]]) + "\n")
    report = make_report([folder])
    assert f"{path}, line 2: is no round's record; it is left out" in report.notes
    shown = numbers_of(figure_about(read(report.html), "GA: the"))
    assert {r: row["fedgela"] for r, row in shown.items()} == {"1": "50.00", "3": "70.00"}


@pytest.mark.parametrize("key", ["GA", "PA", "PA_of", "wall_seconds", "device"])
def test_a_result_with_something_missing_is_no_traceback(made_run: Callable[..., Path], key: str) -> None:
    folder = made_run("old", [50.0])
    result = json.loads((folder / "result.json").read_text())
    del result[key]
    (folder / "result.json").write_text(json.dumps(result))
    assert "50.00" in make_report([folder]).html


def test_a_damaged_result_is_noted(made_run: Callable[..., Path]) -> None:
    folder = made_run("damaged", [50.0])
    (folder / "result.json").write_text("{")
    report = make_report([folder])
    assert "result.json" in report.notes[0] and "unfinished" in report.notes[0]


def test_data_that_is_not_here_is_said_and_the_rest_is_shown(made_run: Callable[..., Path]) -> None:
    report = make_report([made_run("run", [50.0])])
    assert any("'cifar10' is not on this machine" in note for note in report.notes)
    assert "Results" in report.html and "Who holds what" not in report.html


def test_other_data_than_was_trained_on_is_not_drawn(comparison: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(comparison / "fedgela/seed-0", folder)
    result = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps(result | {"data_fingerprint": "0" * 16}))
    report = make_report([folder])
    assert any("not what the run was trained on" in note for note in report.notes)
    assert not any("Confusion" in picture.title for picture in report.pictures)


def test_an_averaged_global_model_is_said_to_be_one(tmp_path: Path) -> None:
    npz = tiny_npz(tmp_path)
    run(tiny(npz), tmp_path / "runs" / "plain")
    assert "the average over rounds" not in make_report([tmp_path / "runs"]).html
    run(tiny(npz, server_average=0.5, algorithm="fedavg"), tmp_path / "runs" / "averaged")
    told = "<dt>the global model</dt><dd>the average over rounds, with weight "
    html = make_report([tmp_path / "runs"]).html
    assert f"{told}0.0 or 0.5 for" in html or f"{told}0.5 or 0.0 for" in html


def test_what_aggregates_updates_is_told_where_it_is_not_the_mean(tmp_path: Path) -> None:
    npz = tiny_npz(tmp_path)
    run(tiny(npz), tmp_path / "runs" / "mean")
    assert "updates aggregated by" not in make_report([tmp_path / "runs"]).html
    run(tiny(npz, aggregation="clipped"), tmp_path / "runs" / "clipped")
    html = make_report([tmp_path / "runs"]).html
    told = "<dt>updates aggregated by</dt><dd>"
    assert f"{told}mean or clipped<" in html or f"{told}clipped or mean<" in html


def test_an_unfinished_run_knows_its_data_by_its_checkpoint(tmp_path: Path) -> None:
    npz = tiny_npz(tmp_path)
    run_cut(tiny(npz), tmp_path / "runs" / "old", at=2)
    assert make_report([tmp_path / "runs"]).notes == []

    tiny_npz(tmp_path, seed=1)
    report = make_report([tmp_path / "runs"])
    assert any("not what the run was trained on" in note for note in report.notes)
    assert "Who holds what" not in report.html

    run(tiny(npz, algorithm="fedavg"), tmp_path / "runs" / "new")
    report = make_report([tmp_path / "runs"])
    assert any("not all runs of this title are of the same data" in note for note in report.notes)
    assert len(report.settings) == 2


def test_a_damaged_model_is_noted(comparison: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(comparison / "fedgela/seed-0", folder)
    (path,) = (folder / "models").glob("global-last.*")
    path.write_bytes(path.read_bytes()[:-8])
    report = make_report([folder])
    assert any(path.name in note for note in report.notes)
    titles = [picture.title for picture in report.pictures]
    assert any("GA: the global" in t for t in titles) and not any("Confusion" in t for t in titles)


def test_of_copies_of_a_run_the_one_that_came_furthest_is_shown(made_run: Callable[..., Path]) -> None:
    begun = made_run("begun", [10.0], finished=False, rounds=3)
    longer = made_run("longer", [10.0, 20.0], finished=False, rounds=3)
    whole = made_run("whole", [10.0, 20.0, 30.0])
    damaged = made_run("damaged", [10.0, 20.0, 30.0])
    (damaged / "result.json").write_text("{}")
    for given, shown in (
        ([begun, longer], longer),
        ([begun, longer, whole, damaged], whole),
        ([damaged, whole], whole),
        ([whole, begun], whole),
        ([damaged, begun], damaged),
    ):
        report = make_report(given)
        assert [run.path for run in report.runs] == [shown]
        told = [note for note in report.notes if "is the same experiment as" in note]
        assert len(told) == len(given) - 1
        assert not any(note.startswith(f"{shown}: ") for note in told)


def test_a_broken_run_among_others_is_noted(made_run: Callable[..., Path]) -> None:
    folder = made_run("good", [50.0])
    bad = made_run("bad", [50.0])
    (bad / "config.toml").write_text("rounds = 'many'\n")
    report = make_report([folder.parent])
    assert len(report.runs) == 1 and any(str(bad) in note for note in report.notes)
    with pytest.raises(UserError, match="rounds"):
        make_report([bad])


def test_names_are_text_not_markup(made_run: Callable[..., Path]) -> None:
    folder = made_run("a<b>&c", [50.0])
    (folder / "metrics.jsonl").write_text("<script>\n")
    page = read(make_report([folder]).html)
    assert len(page.find("script")) == 1
    assert any("a<b>&c" in item.text() for item in page.find("li"))


def test_a_comparisons_failures_are_told(comparison: Path, tmp_path: Path) -> None:
    folder = tmp_path / "comparison"
    shutil.copytree(comparison / "fedavg", folder / "fedavg")
    (folder / "table.json").write_text(json.dumps([{"algorithm": "moon", "errors": {"0": "out of memory"}}]))
    assert "moon, seed 0: failed: out of memory" in make_report([folder]).notes


def test_tracking_makes_no_experiment_of_its_own(made_run: Callable[..., Path]) -> None:
    """One seed tracked and one not are still two seeds of one entry."""
    made_run("a/seed-0", [50.0], track=["angles"], tensorboard=True)
    made_run("a/seed-1", [60.0], seed=1, partition_seed=1)
    (setting,) = arrange(find_runs([made_run("b", [1.0], algorithm={"name": "fedavg"}).parent], print), print)
    assert [len(entry.runs) for entry in setting.entries] == [1, 2]


def test_models_are_asked_in_the_precision_they_were_trained_in(comparison: Path) -> None:
    runs = find_runs([comparison / "fedgela"], print)
    federation = Federations(print).of(runs[0])
    assert federation is not None
    for precision in ("bf16", "fp32"):
        net = empty_net(runs[0].experiment.with_(precision=precision), federation.data)
        assert net.in_bf16 == (precision == "bf16")


def test_a_fixed_split_is_one_entry_over_its_seeds_and_not_ranked_with_others(
    made_run: Callable[..., Path],
) -> None:
    for seed in (0, 1):  # with partition_seed = 0, seed 0 looks as if its split followed the seed
        made_run(f"a/seed-{seed}", [50.0], seed=seed, partition_seed=0)
    made_run("b/seed-0", [60.0], partition_seed=7)
    last = made_run("c/seed-0", [60.0], partition="iid", partition_seed=0)
    settings = arrange(find_runs([last.parent.parent], print), print)
    assert [(s.split, [len(e.runs) for e in s.entries]) for s in settings] == [
        (0, [2]),
        (7, [1]),
        ("the seed", [1]),
    ]
    assert "dirichlet:0.1 (partition_seed 7)" in settings[1].title


def test_clients_have_the_names_that_the_data_has_for_them(tmp_path: Path) -> None:
    arrays = tiny_arrays(train=84, test=48)
    owners = {f"client_{part}": arrays[f"y_{part}"] % 2 for part in ("train", "test")}
    np.savez(tmp_path / "d.npz", **arrays, **owners, client_names=["Nord", "Ost"])
    run(tiny(tmp_path / "d.npz", partition="natural", clients=None, rounds=1), tmp_path / "run")
    text = read(make_report([tmp_path / "run"]).html).text()
    assert "PA of each client, seed 0, %" in text
    assert text.count("Nord") >= 3 and text.count("Ost") >= 3  # also who holds what, as a map and as a table
    assert re.search(r"client \d \((Nord|Ost)\)'s own model", text)
