"""The ledger: lines are whole or not there, each once, and a damaged one is named."""

import multiprocessing
import subprocess
from pathlib import Path

import pytest

from fedgela.config import parse_experiment
from fedgela.errors import UserError
from fedgela.paper import experiment_of, find_cell
from fedgela.reproduce.counting import cells_of, lines_of
from fedgela.reproduce.ledger import Entry, append, read_ledger, remembered_variant
from fedgela.reproduce.settings import differences, hash_of, settings_of

CELL = "main/cifar10/full-dir0.1/fedgela"


def test_what_is_written_is_read_again(tmp_path: Path, make_entry) -> None:
    ledger = tmp_path / "new" / "ledger.jsonl"
    assert read_ledger(ledger) == []
    entries = [make_entry(CELL), make_entry(CELL, seed=1)]
    assert append(ledger, entries) == entries
    assert read_ledger(ledger) == entries
    assert len(ledger.read_text().splitlines()) == 2


def test_a_run_is_there_once(tmp_path: Path, make_entry) -> None:
    ledger = tmp_path / "ledger.jsonl"
    entry = make_entry(CELL)
    append(ledger, [entry, entry])
    assert append(ledger, [make_entry(CELL, PA=1.0)]) == []
    other = make_entry(CELL, line={"data": entry.data.model_copy(update={"fingerprint": "0" * 16})})
    assert append(ledger, [other]) == [other]  # on other data it is another result
    assert len(read_ledger(ledger)) == 2


def test_a_damaged_line_is_named_and_nothing_is_added(tmp_path: Path, make_entry) -> None:
    ledger = tmp_path / "ledger.jsonl"
    append(ledger, [make_entry(CELL), make_entry(CELL, seed=1)])
    whole = ledger.read_text()
    for damaged in (whole[:-30], whole.replace('"seed":1', '"seed":"one"'), whole + "{}\n"):
        ledger.write_text(damaged)
        line = 3 if damaged.endswith("{}\n") else 2
        with pytest.raises(UserError, match=rf"ledger\.jsonl, line {line}: damaged"):
            read_ledger(ledger)
        with pytest.raises(UserError, match=rf"line {line}"):
            append(ledger, [make_entry(CELL, seed=2)])
        assert ledger.read_text() == damaged


def test_a_last_line_without_its_end_stays_a_line(tmp_path: Path, make_entry) -> None:
    ledger = tmp_path / "ledger.jsonl"
    append(ledger, [make_entry(CELL)])
    ledger.write_text(ledger.read_text().rstrip("\n"))
    append(ledger, [make_entry(CELL, seed=1)])
    assert [entry.seed for entry in read_ledger(ledger)] == [0, 1]


def _append_many(path: Path, entries: list[Entry]) -> None:
    for entry in entries:
        append(path, [entry])


def test_two_processes_may_append(tmp_path: Path, make_entry) -> None:
    ledger = tmp_path / "ledger.jsonl"
    mine = [make_entry(CELL, seed=seed) for seed in range(20)]
    theirs = [make_entry(CELL, seed=seed) for seed in range(10, 30)]
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_append_many, args=(ledger, part)) for part in (mine, theirs)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert sorted(entry.seed for entry in read_ledger(ledger)) == list(range(30))


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


def test_a_note_on_data_is_remembered(make_entry) -> None:
    entry = make_entry(CELL)
    noted = make_entry(CELL, line={"data": entry.data.model_copy(update={"variant": "re-compressed"})})
    assert remembered_variant([noted], "f" * 16) == "re-compressed"
    assert remembered_variant([noted], "0" * 16) == "original"


# -- settings --------------------------------------------------------------------------------------


def test_where_a_run_is_computed_does_not_count() -> None:
    base = experiment_of(find_cell(CELL))
    elsewhere = base.with_(
        device="cpu", lanes=3, threads=2, data_dir="/somewhere", precision="fp32", checkpoint_every=5, seed=4
    )
    assert hash_of(elsewhere) == hash_of(base)


def test_what_resolve_fills_in_does_not_count() -> None:
    base = experiment_of(find_cell(CELL))
    assert hash_of(base.with_(min_samples=100, partition_seed=0)) == hash_of(base)
    assert hash_of(base.with_(augment=None)) == hash_of(base)
    assert hash_of(base.with_(partition_seed=5)) != hash_of(base)


def test_what_decides_the_result_counts() -> None:
    base = experiment_of(find_cell(CELL))
    changes = [{"rounds": 10}, {"lr": 0.02}, {"augment": True}, {"validation": 0.1}, {"dataset": "svhn"}]
    others = [base.with_(**change) for change in changes]
    table = base.model_dump()
    others.append(parse_experiment({**table, "algorithm": {"name": "fedgela", "phi": "power:0.5"}}))
    assert len({hash_of(e) for e in [base, *others]}) == 7
    found = differences(settings_of(base), settings_of(others[-1]))
    assert [(d.key, d.wanted, d.found) for d in found] == [("algorithm.phi", "power:1", "power:0.5")]


def test_the_commit_is_of_the_package_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedgela.reproduce import code_version

    package = tmp_path / "src/fedgela"
    (package / "reproduce").mkdir(parents=True)
    monkeypatch.setattr(code_version, "__file__", str(package / "reproduce/code_version.py"))
    monkeypatch.delenv("FEDGELA_COMMIT", raising=False)
    (package / "__init__.py").write_text("")
    assert code_version.commit.__wrapped__() is None  # there is no repository

    def git(*arguments: str) -> None:
        names = ["-c", "user.name=n", "-c", "user.email=e"]
        subprocess.run(["git", "-C", str(tmp_path), *names, *arguments], check=True, capture_output=True)

    git("init")
    (tmp_path / "ledger").write_text("")
    git("add", ".")
    assert code_version.commit.__wrapped__() is None  # nor a commit in it
    git("commit", "-m", "first")
    clean = code_version.commit.__wrapped__()
    assert clean is not None and len(clean) >= 7 and "-" not in clean
    (tmp_path / "ledger").write_text("a line")
    assert code_version.commit.__wrapped__() == clean
    (package / "__init__.py").write_text("changed")
    assert code_version.commit.__wrapped__() == f"{clean}-dirty"
    monkeypatch.setenv("FEDGELA_COMMIT", "told")
    assert code_version.commit.__wrapped__() == "told"
