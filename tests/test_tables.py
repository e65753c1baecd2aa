import csv
import io
import json
import statistics
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fedgela.over_seeds import spread
from fedgela.tables import Comparison, Row, summary_of_seeds


def result(PA: float, GA: float) -> dict[str, Any]:
    """A run's result, as far as a table reads it: best 5 above last."""
    return {"PA": {"best": PA + 5, "last": PA}, "GA": {"best": GA + 5, "last": GA}}


def row(method: str, *pairs: tuple[float, float], **errors: str) -> Row:
    """A method's results on the seeds 0, 1, ..."""
    return Row(
        method, {seed: result(*pair) for seed, pair in enumerate(pairs)}, dict(enumerate(errors.values(), 7))
    )


@pytest.fixture
def comparison() -> Comparison:
    return Comparison(
        [
            row("fedavg", (50, 40), (54, 44), (52, 45)),
            row("fedgela", (61, 42), (62, 48), (66, 45)),
            row("fedge", (55, 30), (55, 30), (55, 30)),
            row("local", (90, 90), (90, 90), (90, 90)),
        ]
    )


def markdown_cells(comparison: Comparison) -> dict[str, list[str]]:
    lines = [line for line in comparison.to_markdown().splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {line[0]: line[1:] for line in cells}


# -- over seeds ----------------------------------------------------------------------------------------


def test_spread_is_mean_and_sample_standard_deviation() -> None:
    assert spread([1.0, 2.0, 6.0]) == {"mean": pytest.approx(3), "std": pytest.approx(7**0.5)}  # ddof = 1


def test_one_seed_has_no_standard_deviation() -> None:
    assert spread([4.0]) == {"mean": 4.0, "std": None}


def test_summary_of_seeds() -> None:
    runs = {3: result(60, 40), 1: result(64, 50)}
    summary = summary_of_seeds(runs)
    assert summary["seeds"] == [1, 3]
    assert summary["unit"] == "percent"
    assert summary["PA"]["last"] == {"mean": 62, "std": pytest.approx(8**0.5)}
    assert summary["GA"]["best"] == {"mean": 50, "std": pytest.approx(50**0.5)}
    assert summary["runs"] == [runs[1], runs[3]]  # in the order of the seeds


# -- JSON ----------------------------------------------------------------------------------------------


def test_json_has_mean_and_std_of_both_accuracies_at_best_and_last(comparison: Comparison) -> None:
    listed = comparison.to_json()
    assert [entry["algorithm"] for entry in listed] == ["fedavg", "fedgela", "fedge", "local"]
    fedgela = listed[1]
    assert fedgela["seeds"] == [0, 1, 2]
    assert fedgela["PA"] == {
        "best": {"mean": pytest.approx(68), "std": pytest.approx(statistics.stdev([61, 62, 66]))},
        "last": {"mean": pytest.approx(63), "std": pytest.approx(statistics.stdev([61, 62, 66]))},
    }
    assert fedgela["GA"]["last"] == {"mean": 45, "std": 3}
    assert "errors" not in fedgela


def test_differences_are_paired_by_seed(comparison: Comparison) -> None:
    difference = comparison.to_json()[1]["difference_to_fedavg"]
    assert difference["GA"]["last"] == {"mean": 2, "std": 2}  # of 42-40, 48-44, 45-45
    assert difference["PA"]["best"] == {"mean": 11, "std": pytest.approx(statistics.stdev([11, 8, 14]))}
    assert "difference_to_fedavg" not in comparison.to_json()[0]


def test_only_seeds_of_both_methods_are_paired() -> None:
    mine, other = row("fedgela", (60, 40)), row("fedavg", (50, 40))
    mine.results[1] = result(99, 99)
    other.results[2] = result(1, 1)
    assert mine.difference(other, "PA", "last") == {"mean": 10, "std": None}
    assert mine.difference(Row("fedavg"), "PA", "last") == {"mean": None, "std": None}


def test_without_fedavg_there_are_no_differences() -> None:
    comparison = Comparison([row("fedgela", (60, 40)), row("fedge", (55, 30))])
    assert all("difference_to_fedavg" not in entry for entry in comparison.to_json())
    assert "Δ" not in comparison.to_markdown()
    assert "Δ" not in comparison.to_text()


# -- ranks ---------------------------------------------------------------------------------------------


def test_best_is_bold_and_second_underlined(comparison: Comparison) -> None:
    cells = markdown_cells(comparison)
    assert cells["Method"] == ["PA best", "PA last", "GA best", "GA last", "Δ PA last", "Δ GA last"]
    assert cells["fedgela"][:2] == ["**68.00 ± 2.65**", "**63.00 ± 2.65**"]
    assert cells["fedge"][:2] == ["<u>60.00 ± 0.00</u>", "<u>55.00 ± 0.00</u>"]
    assert cells["fedavg"][:2] == ["57.00 ± 2.00", "52.00 ± 2.00"]
    assert cells["fedavg"][3] == "<u>43.00 ± 2.65</u>"
    assert cells["fedavg"][4:] == ["", ""]
    assert cells["fedgela"][4:] == ["+11.00 ± 3.00", "+2.00 ± 2.00"]


def test_bounds_are_not_ranked(comparison: Comparison) -> None:
    assert markdown_cells(comparison)["local"][0] == "95.00 ± 0.00"
    assert "not ranked, as bounds: local" in comparison.legend()
    assert "bounds" not in Comparison(comparison.rows[:3]).legend()


def test_what_is_printed_alike_is_ranked_alike() -> None:
    comparison = Comparison(
        [row("a", (50.001, 1)), row("b", (50.004, 2)), row("c", (49, 3)), row("d", (48, 4))]
    )
    cells = markdown_cells(comparison)
    assert [cells[name][1] for name in "abcd"] == ["**50.00**", "**50.00**", "<u>49.00</u>", "48.00"]
    assert [cells[name][3] for name in "abcd"] == ["1.00", "2.00", "<u>3.00</u>", "**4.00**"]


def test_text_marks_ranks_without_styles(comparison: Comparison) -> None:
    text = comparison.to_text()
    assert "63.00 ± 2.65*" in text
    assert "55.00 ± 0.00_" in text
    assert "* best, _ second best" in text
    assert "mean ± standard deviation over seeds" in text
    assert "chosen on the data it is measured on" in text  # what best means is never left out


# -- divergence ----------------------------------------------------------------------------------------


def test_a_diverged_method_is_marked_in_every_file_and_the_mark_is_explained() -> None:
    lost = row("fedgela", (50, 40), (10, 10), (50, 40), (10, 10))
    for seed, round in ((3, 1), (1, 7)):
        lost.results[seed]["diverged_round"] = round
    comparison = Comparison([row("fedavg", (50, 40)), lost])
    sound, diverged = csv.DictReader(io.StringIO(comparison.to_csv()))
    assert (sound["diverged"], diverged["diverged"]) == ("", "seed 1 in round 7; seed 3 in round 1")
    assert comparison.to_json()[1]["diverged_seeds"] == [1, 3]
    for text in (comparison.to_markdown(), comparison.to_text()):
        assert "fedgela †" in text and "fedavg †" not in text
        assert "†: the training loss became infinite or NaN\n" in text


def test_the_mark_is_not_explained_where_there_is_none(comparison: Comparison) -> None:
    for text in (comparison.to_markdown(), comparison.to_text(), comparison.to_csv()):
        assert "†" not in text


def test_in_markdown_the_mark_is_explained_apart_from_the_table_and_the_errors() -> None:
    lost = row("fedgela", (50, 40), why="out of memory")
    lost.results[0]["diverged_round"] = 1
    below = Comparison([lost]).to_markdown().split("\n\n")[1:]
    assert below[0].endswith("; †: the training loss became infinite or NaN")
    assert "chosen on the data it is measured on" in below[0]
    assert below[1:] == [
        "- fedgela: seed 7 failed: out of memory\n",
    ]


# -- failures and single seeds -------------------------------------------------------------------------


def test_a_method_that_failed_keeps_its_row_and_its_error() -> None:
    comparison = Comparison([row("fedavg", (50, 40)), row("fedgela", why="out of memory")])
    entry = comparison.to_json()[1]
    assert entry["seeds"] == []
    assert entry["PA"]["last"] == {"mean": None, "std": None}
    assert entry["errors"] == {"7": "out of memory"}
    assert markdown_cells(comparison)["fedgela"] == ["-"] * 6
    for text in (comparison.to_markdown(), comparison.to_text()):
        assert "fedgela: seed 7 failed: out of memory" in text
    assert "out of memory" in comparison.to_csv()
    assert markdown_cells(comparison)["fedavg"][0] == "**55.00**"  # the others' results stand


def test_a_seed_that_failed_leaves_the_others() -> None:
    partly = row("fedgela", (60, 40), (62, 42), why="diverged")
    entry = Comparison([partly]).to_json()[0]
    assert entry["seeds"] == [0, 1]
    assert entry["PA"]["last"]["mean"] == 61
    assert entry["errors"] == {"7": "diverged"}


def test_one_seed_is_shown_without_a_spread() -> None:
    comparison = Comparison([row("fedavg", (50, 40)), row("fedgela", (60, 38))])
    assert comparison.to_json()[1]["PA"]["last"] == {"mean": 60, "std": None}
    cells = markdown_cells(comparison)
    assert cells["fedgela"] == ["**65.00**", "**60.00**", "<u>43.00</u>", "<u>38.00</u>", "+10.00", "-2.00"]
    assert "standard deviation" not in comparison.legend()


# -- files ---------------------------------------------------------------------------------------------


def test_csv_has_a_line_a_method(comparison: Comparison) -> None:
    lines = list(csv.DictReader(io.StringIO(comparison.to_csv())))
    assert [line["algorithm"] for line in lines] == ["fedavg", "fedgela", "fedge", "local"]
    assert lines[1]["seeds"] == "0 1 2"
    assert float(lines[1]["GA_last_mean"]) == 45
    assert float(lines[1]["GA_last_std"]) == 3
    assert float(lines[1]["GA_last_minus_fedavg_mean"]) == 2
    assert None not in lines[0] and None not in lines[0].values()  # as many cells as names


def test_saved_files_are_what_the_table_says(comparison: Comparison, tmp_path: Path) -> None:
    comparison.save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "table.csv", "table.json", "table.md", "table.txt",
    ]  # fmt: skip
    assert json.loads((tmp_path / "table.json").read_text()) == comparison.to_json()
    assert (tmp_path / "table.md").read_text() == comparison.to_markdown()


def test_what_a_row_is_called_does_not_decide_what_it_is() -> None:
    base, bound, other = row("base", (50, 40)), row("upper", (99, 98)), row("fedgela", (60, 50))
    base.results[0]["algorithm"], bound.results[0]["algorithm"] = "fedavg", "centralised"
    comparison = Comparison([base, bound, other])
    assert comparison.to_json()[2]["difference_to_fedavg"]["GA"]["last"]["mean"] is not None
    assert "**" not in comparison.to_markdown().splitlines()[3]  # a bound is not ranked


def test_ranks_are_of_the_seeds_that_all_have() -> None:
    table = Comparison([row("fedavg", (50, 50), (90, 90)), row("fedgela", (60, 60))])
    assert table.ranks["GA", "last"] == {"fedavg": 1, "fedgela": 0}
    assert "of the seeds that all methods have" in table.legend()
    assert not Comparison([row("fedavg", (50, 50)), Row("fedgela", {1: result(60, 60)})]).ranks["GA", "last"]


def test_an_error_with_brackets_is_shown_as_it_is() -> None:
    failed = row("fedavg", (50, 50), seed="config.toml: [methods.fedavg] and [/tmp/x] are wrong")
    console = Console(width=200, file=io.StringIO())
    console.print(Comparison([failed]).to_rich())
    assert "[methods.fedavg] and [/tmp/x] are wrong" in console.file.getvalue()
