"""What the page says first: who leads, by how much, on how many seeds."""

import re
from collections.abc import Callable
from pathlib import Path

from html_reading import read

from fedgela.report import make_report

Make = Callable[..., Path]


def said(*folders: Path) -> list[str]:
    """The lines of the box above the table of results."""
    divs = read(make_report(list(folders)).html).find("div")
    boxes = [div for div in divs if div.attributes.get("class") == "advice short"]
    return [re.sub(r"\s+", " ", line.text()) for box in boxes for line in box.find("p")]


def method(make: Make, name: str, *last: float) -> None:
    """Runs of a method, one a seed, by their GA at the end."""
    for seed, GA in enumerate(last):
        make(f"{name}/seed-{seed}", [10.0, GA], algorithm={"name": name}, seed=seed, partition_seed=seed)


def test_who_leads_by_how_much_and_on_how_many_seeds(made_run: Make, tmp_path: Path) -> None:
    method(made_run, "fedavg", 50.0, 52.0)
    method(made_run, "fedge", 60.0, 64.0)
    method(made_run, "fedgela", 63.0, 63.0)
    GA, PA = said(tmp_path)
    assert GA == (
        "GA (generic accuracy: the global model on all test samples)"
        "fedgela leads with 63.00 ± 0.00 %: 1.00 ± 2.83 points ahead of fedge (on 1 of 2 seeds) and "
        "12.00 ± 1.41 points ahead of fedavg (on both seeds)."
    )
    assert PA.startswith("PA (personal accuracy: ") and "fedgela leads with 68.00 ± 0.00 %: " in PA


def test_of_one_seed_it_says_so(made_run: Make, tmp_path: Path) -> None:
    method(made_run, "fedavg", 50.0)
    method(made_run, "fedgela", 48.0)
    GA, _, warning = said(tmp_path)
    assert GA.endswith("fedavg leads with 50.00 %: 2.00 points ahead of fedgela.")
    assert warning == "One seed: on others the order may differ."


def test_those_that_are_level_lead_together(made_run: Make, tmp_path: Path) -> None:
    method(made_run, "fedavg", 50.0)
    method(made_run, "fedgela", 50.0)
    assert said(tmp_path)[0].endswith("fedavg and fedgela are level, with 50.00 %.")


def test_bounds_and_runs_that_go_on_lead_nothing(made_run: Make, tmp_path: Path) -> None:
    method(made_run, "centralised", 90.0)
    method(made_run, "fedavg", 50.0)
    made_run("fedgela", [60.0], finished=False, rounds=2)
    GA = said(tmp_path)[0]
    assert GA.endswith("fedavg 50.00 %; fedgela 60.00 % so far, 1 of 2 rounds")
