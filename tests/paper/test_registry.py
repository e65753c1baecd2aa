"""The registry holds all of the paper's tables, and every cell is an experiment of this project."""

from collections import Counter

import pytest

from fedgela.algorithms import ALGORITHMS
from fedgela.config import Experiment
from fedgela.data.catalogue import CATALOGUE
from fedgela.errors import UserError
from fedgela.paper import (
    TABLES,
    Cell,
    Summary,
    cells,
    common,
    distinct,
    experiment_of,
    find_cell,
    summaries,
    table,
)
from fedgela.paper.files import Table, parse

SIX = ("full-iid", "full-dir0.5", "full-dir0.1", "part-iid", "part-dir0.5", "part-dir0.2")


def one(id: str) -> Experiment:
    return experiment_of(find_cell(id))


@pytest.mark.parametrize("name", TABLES)
def test_every_cell_is_an_experiment(name: str) -> None:
    for cell in cells(name):
        experiment = experiment_of(cell)
        assert experiment.dataset == cell.dataset
        assert cell.dataset in CATALOGUE
        assert experiment.model is not None
        assert experiment.clients is not None
        assert experiment.sample is not None
        assert experiment.projection is not None
        assert experiment.algorithm.name in ALGORITHMS
        assert experiment.algorithm.name == cell.method.partition("-")[0] or cell.method == "data"


def test_ids_are_unique_over_cells_and_summaries() -> None:
    ids = Counter([cell.id for cell in cells()] + [summary.id for summary in summaries()])
    assert not [id for id, times in ids.items() if times > 1]


def test_the_main_table_is_complete() -> None:
    listed = cells("main")
    assert len(listed) == 3 * 6 * 11
    assert all(set(cell.printed) == {"PA", "GA"} for cell in listed)
    assert tuple(dict.fromkeys(cell.setting for cell in listed)) == SIX
    assert set(common().baselines) | {"fedgela"} == {cell.method for cell in listed}


def test_numbers_stand_as_printed() -> None:
    cell = find_cell("main/cifar10/full-iid/fedavg")
    assert (cell.printed["PA"].text, cell.printed["GA"].text) == ("73.17", "72.8")
    ISIC = find_cell("isic/fed-isic2019/natural/fedrod").printed["GA"]
    assert (ISIC.text, ISIC.value) == ("74.98 ± 0.21", 74.98)
    rounds = find_cell("communication/cifar10/full-dir0.1/fedbabu").printed["rounds"]
    assert (rounds.text, rounds.value) == ("-", None)


def test_figures_have_settings_only() -> None:
    for name in TABLES:
        is_figure = table(name).number.startswith("Figure")
        assert is_figure != bool(table(name).printed)
        assert not (is_figure and any(cell.printed for cell in cells(name)))


@pytest.mark.parametrize("dataset", ["svhn", "cifar10", "cifar100"])
@pytest.mark.parametrize("setting", SIX)
def test_rounds_clients_and_projection_of_the_main_table(dataset: str, setting: str) -> None:
    experiment = one(f"main/{dataset}/{setting}/fedgela")
    full = setting.startswith("full-")
    assert experiment.rounds == (50 if full else 100) * (2 if dataset == "cifar100" else 1)
    assert (experiment.clients, experiment.sample) == (10 if full else 50, 10)
    assert experiment.projection == (512 if dataset == "cifar100" else 84)
    assert experiment.model == "resnet18"
    assert experiment.partition == setting.partition("-")[2].replace("dir", "dirichlet:")


def test_settings_of_the_other_tables() -> None:
    assert one("communication/cifar10/part-dir0.2/moon").rounds == 200
    assert one("communication/cifar10/full-iid/moon").rounds == 100
    pcdd = one("pcdd/svhn/p50c2/fedrod")
    assert (pcdd.partition, pcdd.clients, pcdd.sample, pcdd.rounds) == ("classes:2", 50, 10, 100)
    backbone = one("backbones/svhn/simple-cnn-part-dir0.5/fedrs")
    assert (backbone.model, backbone.partition, backbone.rounds) == ("simple-cnn", "dirichlet:0.5", 100)
    ISIC = one("isic/fed-isic2019/natural/fedavg")
    assert (ISIC.model, ISIC.clients, ISIC.sample, ISIC.partition) == ("efficientnet-b0", 20, 10, "natural")
    shakespeare = one("realworld/shakespeare/natural/fedavg")
    assert (shakespeare.model, shakespeare.clients, shakespeare.rounds) == ("lstm", 50, 20)


def test_variants_of_fedgela() -> None:
    assert one("phi/svhn/full-iid/fedgela-exp").algorithm == ALGORITHMS["fedgela"](phi="paper-exp")  # type: ignore[call-arg]
    assert one("ew/svhn/full-dir0.1/fedgela-scale1e3").algorithm == ALGORITHMS["fedgela"](E_W=1e6)  # type: ignore[call-arg]


def test_cells_are_filtered() -> None:
    chosen = cells("main", dataset="cifar10", setting="full-dir0.1", methods=["fedavg", "fedgela"])
    assert [cell.id for cell in chosen] == [
        "main/cifar10/full-dir0.1/fedavg",
        "main/cifar10/full-dir0.1/fedgela",
    ]
    assert {cell.dataset for cell in cells(dataset="fed_isic2019")} == {"fed-isic2019"}
    assert cells() == tuple(cell for name in TABLES for cell in cells(name))


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"table": "mian"}, "the paper has no table 'mian' (did you mean 'main'?)"),
        ({"table": "main", "dataset": "cifar"}, "main has no data set 'cifar' (did you mean 'cifar"),
        (
            {"table": "main", "dataset": "svhn", "setting": "full-dir0.2"},
            "main, svhn has no setting 'full-dir0.2' (did you mean 'part-dir0.2'?)",
        ),
        ({"table": "phi", "methods": ["fedgela", "moon"]}, "phi has no method 'moon'"),
    ],
)
def test_unknown_names_are_the_users_mistake(choice: dict[str, str], message: str) -> None:
    with pytest.raises(UserError) as error:
        cells(**choice)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_unknown_cell() -> None:
    with pytest.raises(UserError, match="did you mean 'main/svhn/full-iid/fedgela'"):
        find_cell("main/svhn/full-iid/fedgelo")


def test_repeated_runs_are_run_once() -> None:
    same = [
        find_cell("main/svhn/full-iid/fedavg"),
        find_cell("std/svhn/full-iid/fedavg"),
        find_cell("backbones/svhn/resnet18-full-iid/fedavg"),
    ]
    assert distinct(same) == (same[0],)
    longer = find_cell("communication/cifar10/full-iid/fedavg")
    assert len(distinct([find_cell("main/cifar10/full-iid/fedavg"), longer])) == 2
    trained = find_cell("main/cifar10/full-dir0.1/fedavg")
    assert distinct([trained, find_cell("motivation/cifar10/full-dir0.1/fedavg")]) == (trained,)
    assert len(distinct([trained, find_cell("burden/cifar10/full-dir0.1/fedavg")])) == 2


def test_a_summary_is_the_mean_over_settings_of_the_best_baseline() -> None:
    summary = next(found for found in summaries("std") if found.id == "std/cifar10/all/best-baseline")
    assert len(summary.groups) == 6
    assert all({cell.method for cell in group} == set(common().baselines) for group in summary.groups)
    values = {cell.id: 50.0 for cell in summary.cells} | {"std/cifar10/full-iid/moon": 62.0}
    assert summary.combine(values) == pytest.approx(52.0)
    assert summary.combine({"std/cifar10/full-iid/moon": 62.0}) is None


def test_every_printed_number_belongs_to_a_cell_or_a_summary() -> None:
    for name in TABLES:
        owners: list[Cell | Summary] = [*cells(name), *summaries(name)]
        given = sum(len(owner.printed) for owner in owners)
        rows = [
            row
            for metrics in table(name).printed.values()
            for rows in metrics.values()
            for row in rows.values()
        ]
        assert given == sum(len(row) for row in rows)


MINIMAL = """
number = "Table 0"
label = "tab:none"
title = "A table"
measures = "accuracy"
metrics = ["PA"]
methods = ["fedavg"]
datasets = { svhn = ["full-iid", "part-iid"] }
"""


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("colour = 1", "colour"),
        ('[printed.svhn.PA]\nfedavg = ["1.0"]', "has not one number a column"),
        ('[printed.svhn.PA]\nfedavgg = ["1.0", "2.0"]', "did you mean 'fedavg'"),
        ('[printed.svhn.PAA]\nfedavg = ["1.0", "2.0"]', "there is no 'PAA'"),
        ('[columns.svhn]\nfull = ["full-iidd"]', "did you mean 'full-iid'"),
    ],
)
def test_a_mistake_in_a_file_is_named(more: str, message: str) -> None:
    parse(Table, MINIMAL, "none")
    with pytest.raises(ValueError, match=message):
        parse(Table, MINIMAL + more, "none")
