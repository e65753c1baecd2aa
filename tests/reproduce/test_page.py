"""The page says what the ledger holds, and the repository's page is that of its ledger."""

import re
from pathlib import Path

import pytest

from fedgela.paper import cells, common
from fedgela.reproduce.document import to_html, to_markdown
from fedgela.reproduce.ledger import Entry, read_ledger
from fedgela.reproduce.page import page

ROOT = Path(__file__).resolve().parents[2]
WHERE = "main/cifar10/full-dir0.1"


def shown(entries: list[Entry]) -> str:
    return to_markdown(page(entries))


def row(text: str, start: str) -> str:
    (line,) = [line for line in text.splitlines() if re.match(rf"\| {start}( <sup>[\d,]+</sup>)? \|", line)]
    return line


def section(text: str, number: str) -> str:
    return text.split(f"## {number} ", 1)[1].split("\n## ", 1)[0]


@pytest.mark.skipif(not (ROOT / "results").is_dir(), reason="outside of the repository")
def test_the_repositorys_page_is_what_its_ledger_gives() -> None:
    assert (ROOT / "docs/reproduction.md").read_text("utf-8") == shown(
        read_ledger(ROOT / "results/ledger.jsonl")
    ), "run 'fedgela reproduce --table'"


def test_nothing_tried_is_a_line() -> None:
    text = shown([])
    assert "Untried as a whole: Table 2 (`main`), Table 3" in text
    assert "| 577 | 0 | 0 |" in text
    assert "▲" not in text.split("## What was tried")[1]


def test_ours_stand_beside_the_papers(make_entry) -> None:
    entries = [
        make_entry(f"{WHERE}/fedgela", PA=PA, GA=GA, seed=seed) for seed, PA, GA in ((0, 94, 62), (1, 95, 64))
    ]
    table = section(shown(entries), "Table 2")
    line = row(table, "FedGELA")
    # the paper has PA 94.28 and GA 61.57
    assert "| 0, 1 | 94.28 | 94.50 ± 0.71 | ▲ +0.22 | 61.57 | 63.00 ± 1.41 | ▲ +1.43 | 93.50 ± 0.71 |" in line
    assert row(table, "FedAvg").startswith("| FedAvg | – | 92.66 | untried | – | 54.57 | untried |")
    assert "\nUntried: svhn full-iid, full-dir0.5" in table


def test_a_column_without_a_number_is_left_out(make_entry) -> None:
    where = "ablation/cifar10/full-dir0.1"
    text = shown([make_entry(f"{where}/fedge"), make_entry("ablation/fed-isic2019/natural/fedge")])
    heads = [line for line in section(text, "Table 4").splitlines() if line.startswith("| method")]
    assert heads[0] == "| method | seeds | PA ours, best | GA ours, best | PA last | GA last |"
    assert "| PA paper |" in heads[1]
    assert "| FedLA | – | untried | untried | – | – |" in text


def test_below_the_papers_is_marked(make_entry) -> None:
    table = section(shown([make_entry(f"{WHERE}/fedgela", PA=94.28, GA=61.566)]), "Table 2")
    assert "| 94.28 | 94.28 | ▲ +0.00 | 61.57 | 61.57 | ▲ +0.00 |" in row(table, "FedGELA")
    table = section(shown([make_entry(f"{WHERE}/fedgela", PA=94.2, GA=1.0)]), "Table 2")
    assert "▼ −0.08" in table
    assert "▼ −60.57" in table


def test_fewer_rounds_and_other_data_have_a_note(make_entry) -> None:
    short = make_entry(f"{WHERE}/fedavg", rounds=10)
    data = short.data.model_copy(update={"variant": "re-compressed images", "train": 9000, "test": 10000})
    text = shown([short.model_copy(update={"data": data})])
    assert "FedAvg <sup>1</sup>" in row(section(text, "Table 2"), "FedAvg")
    assert "1. 10 of 50 rounds; data: re-compressed images; 9000 + 10000 samples, not 50000 + 10000\n" in text
    assert "| 10 of 50 |" in text.split("How each was obtained")[1]


def test_what_is_as_in_the_paper_goes_before_a_run_cut_short(make_entry) -> None:
    entries = [make_entry(f"{WHERE}/fedavg", GA=10.0, rounds=10), make_entry(f"{WHERE}/fedavg", GA=55.0)]
    table = section(shown(entries), "Table 2")
    assert "55.00" in row(table, "FedAvg")  # one row: the short run is not shown any more
    assert "<sup>" not in table


def test_a_run_longer_than_the_papers_hides_nothing(make_entry) -> None:
    entries = [make_entry(f"{WHERE}/fedavg", GA=55.0), make_entry(f"{WHERE}/fedavg", GA=57.0, rounds=60)]
    table = section(shown(entries), "Table 2")
    assert [line.split("|")[7].strip() for line in table.splitlines() if line.startswith("| FedAvg")] == [
        "55.00",
        "57.00",
    ]


def test_a_run_in_another_precision_is_not_hidden_by_a_longer_one(make_entry) -> None:
    short = make_entry(f"{WHERE}/fedavg", GA=10.0, rounds=10, line={"precision": "bf16"})
    table = section(shown([short, make_entry(f"{WHERE}/fedavg", GA=55.0)]), "Table 2")
    assert len([line for line in table.splitlines() if line.startswith("| FedAvg")]) == 2


def test_angles_of_runs_that_another_table_shows_are_shown(make_entry) -> None:
    ids = (f"{WHERE}/fedavg", "motivation/cifar10/full-dir0.1/fedavg")
    angles = {
        f"angle_{which}_{where}": 90.0 for which in ("existing", "missing") for where in ("clients", "server")
    }
    entry = make_entry(ids[0], line={"cells": ids, "angles": angles})
    line = row(section(shown([entry]), "Figure 2"), "cifar10, full-dir0.1")
    assert "| FedAvg |" in line and line.count("90.00") == 4


def test_what_is_untried_beside_runs_of_other_tables_is_told(make_entry) -> None:
    ids = (f"{WHERE}/fedgela", "ew/cifar10/full-dir0.1/fedgela-ew10")
    text = section(shown([make_entry(ids[0], line={"cells": ids})]), "Figure 4")
    assert "\nRuns that stand in the tables above: cifar10 full-dir0.1 (fedgela-ew10)." in text
    assert "cifar10 full-dir0.1 (fedavg, fedgela-ew1, " in text.split("Untried:")[1]


def test_another_variant_of_a_method_is_another_row(make_entry) -> None:
    other = {"name": "fedgela", "phi": "power:0.5"}
    entries = [make_entry(f"{WHERE}/fedgela"), make_entry(f"{WHERE}/fedgela", GA=70.0, algorithm=other)]
    text = shown(entries)
    table = section(text, "Table 2")
    assert len([line for line in table.splitlines() if line.startswith("| FedGELA")]) == 2
    assert "1. algorithm.phi = power:0.5, by default power:1" in text
    assert "| resnet18 | phi = power:0.5 | 0 |" in text.split("How each was obtained")[1]


def test_a_table_of_models_does_not_show_one_models_run_as_anothers(make_entry) -> None:
    run = make_entry("main/svhn/full-iid/fedgela", model="simple-cnn")
    assert "backbones/svhn/resnet18-full-iid/fedgela" in run.cells
    text = shown([run])
    assert "simple-cnn" in text and "FedGELA" in section(text, "Table 2")
    assert "## Table 10" not in text


def test_best_baseline_and_margins(make_entry) -> None:
    where = "pcdd/cifar10/p10c2"
    methods = [*common().baselines, "fedgela"]
    entries = [make_entry(f"{where}/{m}", PA=80 + i, GA=40 + i) for i, m in enumerate(methods)]
    text = shown(entries)
    best = row(section(text, "Table 5"), "Best baseline, cifar10 p10c2")
    assert "| 10 of 10 | 94.07 | 89.00 | ▼ −5.07 | 52.02 | 49.00 | ▼ −3.02 |" in best
    margins = text.split("## Margins")[1]
    assert "| +3.76 | ▲ +10.00 | +10.00 | +12.34 | ▼ +10.00 | +10.00 |" in row(
        margins, "cifar10 p10c2, over FedAvg"
    )
    assert "| +1.77 | ▼ +1.00 | +1.00 | +7.58 |" in row(margins, "cifar10 p10c2, over best baseline")
    incomplete = shown(entries[1:])
    assert "incomplete" in row(section(incomplete, "Table 5"), "Best baseline, cifar10 p10c2")


def test_margins_of_means_over_settings(make_entry) -> None:
    where = "backbones/svhn/simple-cnn-"
    settings = ["full-iid", "full-dir0.5", "full-dir0.1", "part-iid", "part-dir0.5", "part-dir0.2"]
    gains = {"fedavg": [0] * 6, "fedgela": [6, 5, 4, 3, 2, 1]}
    entries = [
        make_entry(f"{where}{setting}/{method}", PA=90 + gain, GA=80 - gain)
        for method, by_setting in gains.items()
        for setting, gain in zip(settings, by_setting, strict=True)
    ]
    line = "svhn simple-cnn, mean of 6 settings, over FedAvg"
    assert "| +2.85 | ▲ +3.50 | +3.50 | +3.04 | ▼ −3.50 |" in row(shown(entries).split("## Margins")[1], line)
    # a method's other settings do not count for its mean, and are not noted there
    other = make_entry(f"{where}full-iid/fedgela", GA=99.0, algorithm={"name": "fedgela", "phi": "even"})
    assert row(shown([*entries, other]), line) == row(shown(entries), line)
    assert line not in shown(entries[1:])  # one setting is missing
    assert "over best baseline" not in shown(entries)


def test_margins_tell_how_many_seeds_both_sides_have(make_entry) -> None:
    mine = [make_entry(f"{WHERE}/fedgela", seed=seed) for seed in range(3)]
    theirs = [make_entry(f"{WHERE}/fedavg", seed=seed) for seed in (1, 2, 5)]
    margins = shown([*mine, *theirs]).split("## Margins")[1]
    assert row(margins, "cifar10 full-dir0.1, over FedAvg").split("|")[2].strip() == "2"


def test_a_swinging_GA_is_shown_as_its_mean_over_the_last_tenth_too(make_entry) -> None:
    curves = {"fedavg": [50.0] * 18 + [20.0, 30.0], "fedgela": [10.0] * 18 + [40.0, None]}
    entries = [make_entry(f"{WHERE}/{m}", GA=60.0, line={"GA_by_round": tuple(c)}) for m, c in curves.items()]
    text = shown(entries)
    table = section(text, "Table 2")
    assert row(table, "FedAvg").endswith("| 59.00 | 25.00 |")
    assert row(table, "FedGELA").endswith("| 59.00 | 40.00 |")
    assert row(text.split("## Margins")[1], "cifar10 full-dir0.1, over FedAvg").endswith("| +0.00 | +15.00 |")


def test_rounds_to_fedavgs_best(make_entry) -> None:
    where = "communication/cifar10/full-dir0.1"
    curves = {"fedavg": [10.0, 30.0, 40.0, 40.0], "fedgela": [20.0, 45.0, 45.0, 45.0], "fedrep": [1.0] * 4}
    entries = [make_entry(f"{where}/{m}", line={"GA_by_round": tuple(c)}) for m, c in curves.items()]
    table = section(shown(entries), "Table 9")
    assert "| 0 | 100 | 3 | 1x | 1.00x |" in row(table, "FedAvg")
    assert "| 0 | 67 | 2 | 1.49x | 1.50x |" in row(table, "FedGELA")
    assert "| 0 | - | - | - | - |" in row(table, "FedRep")


def test_rounds_to_fedavgs_best_are_told_of_shorter_runs_too_without_a_mark(make_entry) -> None:
    curves = {"fedavg": [10.0, 30.0, 40.0, 40.0], "fedgela": [20.0, 45.0, 45.0, 45.0]}
    entries = [make_entry(f"{WHERE}/{m}", line={"GA_by_round": tuple(c)}) for m, c in curves.items()]
    text = shown(entries)
    assert row(section(text, "Table 9"), "FedGELA").endswith("| 0 | 67 | 2 | 1.49x | 1.50x |")
    assert "50 of 100 rounds" in text.split("## Notes")[1]
    assert "| all | different runs | 577 | 2 | 2 |" in text  # the longer runs have not been made


def test_a_longer_run_takes_the_place_of_its_beginning(make_entry) -> None:
    short, long = f"{WHERE}/fedavg", "communication/cifar10/full-dir0.1/fedavg"
    entries = [
        make_entry(id, line={"GA_by_round": (10.0,) * n + (40.0,)}) for id, n in ((short, 2), (long, 6))
    ]
    assert shown(entries).count("| 0 | 100 | 7 | 1x | 1.00x |") == 1
    assert "| 0 | 100 | 3 |" not in shown(entries)


def test_a_line_that_this_version_cannot_read_says_so(make_entry) -> None:
    entry = make_entry(f"{WHERE}/fedavg")
    old = entry.model_copy(update={"config": {**entry.config, "forgotten": 1}})
    assert "settings of another version" in shown([old])


def test_runs_are_shown_once(make_entry) -> None:
    text = shown([make_entry(f"{WHERE}/fedavg")])
    assert "\nRuns that stand in the tables above: cifar10 full-dir0.1 (fedavg)." in section(text, "Table 8")
    assert len(cells("std")) == 209


def test_html_has_colours_and_no_markup_of_the_ledgers(make_entry) -> None:
    entry = make_entry(f"{WHERE}/fedgela", PA=99.0, GA=1.0)
    data = entry.data.model_copy(update={"variant": "<b>bold</b> & more"})
    html = to_html(page([entry.model_copy(update={"data": data})]), "title")
    # a number and its mark are never parted at the end of a line
    assert '<td class="reached">▲\u00a0+4.72</td>' in html
    assert '<td class="below">▼\u00a0−60.57</td>' in html
    assert "&lt;b&gt;bold&lt;/b&gt; &amp; more" in html


def test_a_link_of_the_html_leads_to_one_place(make_entry) -> None:
    entries = [make_entry(f"{WHERE}/fedavg"), make_entry("ablation/cifar10/full-dir0.1/fedge", rounds=3)]
    html = to_html(page(entries), "title")
    places, links = re.findall(r' id="([^"]*)"', html), re.findall(r'href="#([^"]*)"', html)
    assert len(places) == len(set(places))
    assert {"notes", "table-2-main", "table-4-ablation"} <= set(links) <= set(places)


def test_another_model_is_another_task(make_entry) -> None:
    text = shown([make_entry(f"{WHERE}/fedgela", PA=99, GA=20, model="simple-cnn")])
    line = row(section(text, "Table 2"), "FedGELA")
    assert line.count("another task") == 2 and "▲" not in line and "▼" not in line


def test_only_runs_of_one_task_are_held_against_each_other(make_entry) -> None:
    where = "pcdd/cifar10/p10c2"
    methods = [*common().baselines, "fedgela"]
    small = [
        make_entry(f"{where}/{m}", PA=80 + i, GA=40 + i, model="simple-cnn") for i, m in enumerate(methods)
    ]
    text = shown([*small, make_entry(f"{where}/fedavg", PA=95, GA=60), make_entry(f"{where}/fedgela", GA=61)])
    assert "| 10 of 10 | 94.07 | 89.00 | another task |" in row(
        section(text, "Table 5"), "Best baseline, cifar10 p10c2"
    )
    margins = text.split("## Margins")[1].split("##")[0]
    over_fedavg = [line for line in margins.splitlines() if "over FedAvg" in line]
    assert [line.split("|")[7].strip() for line in over_fedavg] == ["▼ +1.00", "+10.00"]  # GA: each its own
    assert margins.count("over best baseline") == 1  # of the small network, which all ten have


def test_a_methods_own_settings_leave_the_task_as_it_is(make_entry) -> None:
    mine = make_entry(f"{WHERE}/fedgela", GA=61, algorithm={"name": "fedgela", "phi": "power:0.5"})
    text = shown([make_entry(f"{WHERE}/fedavg", GA=60), mine])
    assert "+1.00" in row(text.split("## Margins")[1], "cifar10 full-dir0.1, over FedAvg")


def test_the_best_baseline_is_that_of_the_best_of_its_settings(make_entry) -> None:
    where = "pcdd/cifar10/p10c2"
    entries = [make_entry(f"{where}/{m}", GA=40) for m in common().baselines]
    tuned = make_entry(f"{where}/fedgen", GA=48, algorithm={"name": "fedgen", "alpha": 10.0, "beta": 10.0})
    text = shown([*entries, tuned, make_entry(f"{where}/fedgela", GA=50)])
    margins = text.split("## Margins")[1]
    assert row(margins, "cifar10 p10c2, over best baseline").split("|")[7].strip() == "▼ +2.00"
    assert row(margins, "cifar10 p10c2, over FedAvg").split("|")[7].strip() == "▼ +10.00"
    assert "| 48.00 |" in row(section(text, "Table 5"), "Best baseline, cifar10 p10c2")


def test_runs_on_other_data_or_in_another_precision_are_not_held_against_each_other(make_entry) -> None:
    mine = make_entry(f"{WHERE}/fedgela", GA=61)
    data = mine.data.model_copy(update={"fingerprint": "e" * 16})
    for other in ({"precision": "bf16"}, {"data": data}):
        theirs = make_entry(f"{WHERE}/fedavg", GA=60, line=other)
        margins = shown([mine, theirs]).partition("## Margins")[2]
        assert "+1.00" not in margins.split("## Table")[0]
        # nor do they make one mean
        two = [make_entry(f"{WHERE}/fedavg", GA=50), make_entry(f"{WHERE}/fedavg", GA=60, seed=1, line=other)]
        assert "55.00" not in section(shown(two), "Table 2")


def test_lines_that_cannot_be_read_are_not_held_against_each_other(make_entry) -> None:
    def old(entry):
        return entry.model_copy(update={"config": {**entry.config, "forgotten": 1}})

    text = shown([old(make_entry(f"{WHERE}/fedgela", GA=61)), old(make_entry(f"{WHERE}/fedavg", rounds=5))])
    assert "## Margins" not in text
