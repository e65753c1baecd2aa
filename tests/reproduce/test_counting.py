"""Which cells a line of the ledger counts for."""

from fedgela.paper import experiment_of, find_cell
from fedgela.reproduce.counting import cells_of, lines_of
from fedgela.reproduce.settings import hash_of

CELL = "main/cifar10/full-dir0.1/fedgela"


def test_a_cell_is_there_by_its_settings_and_seed(make_entry) -> None:
    entries = [make_entry(CELL), make_entry(CELL, seed=1, rounds=7)]
    hash = hash_of(experiment_of(find_cell(CELL)))
    assert lines_of(entries, CELL, hash, 0)
    assert not lines_of(entries, CELL, hash, 1)  # was cut short
    assert lines_of(entries, "ablation/cifar10/full-dir0.1/fedgela", hash, 0)  # one and the same run
    assert not lines_of(entries, CELL, hash, 0, precision="bf16")


def test_a_run_counts_for_the_one_that_begins_like_it_where_only_rounds_to_an_accuracy_are_asked(
    make_entry,
) -> None:
    whole = make_entry(CELL)
    longer = "communication/cifar10/full-dir0.1/fedgela"
    assert cells_of(whole) == (*whole.cells, longer)
    assert cells_of(make_entry(longer)) == (longer,)  # the first half of it is not a run of its own
    asked = hash_of(experiment_of(find_cell(longer)).with_(rounds=whole.rounds_run))
    assert lines_of([whole], longer, asked, 0)
