"""Which cells a line of the ledger counts for."""

from fedgela.paper import experiment_of, find_cell
from fedgela.reproduce.counting import cells_of
from fedgela.reproduce.tasks import Task

CELL = "main/cifar10/full-dir0.1/fedgela"


def asked(id: str, **changes: object) -> Task:
    cell = find_cell(id)
    return Task(cell, experiment_of(cell).with_(**changes))


def test_a_cell_is_there_by_its_settings_and_seed(make_entry) -> None:
    entries = [make_entry(CELL), make_entry(CELL, seed=1, rounds=7)]
    assert asked(CELL).done(entries)
    assert not asked(CELL, seed=1).done(entries)  # was cut short
    assert asked("ablation/cifar10/full-dir0.1/fedgela").done(entries)  # one and the same run
    assert asked(CELL, precision="fp32").done(entries)
    assert not asked(CELL, precision="bf16").done(entries)


def test_a_run_counts_for_the_one_that_begins_like_it_where_only_rounds_to_an_accuracy_are_asked(
    make_entry,
) -> None:
    whole = make_entry(CELL)
    longer = "communication/cifar10/full-dir0.1/fedgela"
    assert cells_of(whole) == (*whole.cells, longer)
    assert cells_of(make_entry(longer)) == (longer,)  # the first half of it is not a run of its own
    assert asked(longer, rounds=whole.rounds_run).done([whole])
