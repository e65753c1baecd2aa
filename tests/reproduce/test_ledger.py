"""The ledger: lines are whole or not there, each once, and a damaged one is named."""

import multiprocessing
from pathlib import Path

import pytest

from fedgela.errors import UserError
from fedgela.reproduce.ledger import Entry, append, read_ledger, with_variant

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


def test_a_line_with_a_damaged_byte_is_named_too(tmp_path: Path, make_entry) -> None:
    ledger = tmp_path / "ledger.jsonl"
    append(ledger, [make_entry(CELL), make_entry(CELL, seed=1)])
    first, second = ledger.read_bytes().splitlines(keepends=True)
    damaged = first + second.replace(b"a machine", b"a m\xffchine")
    ledger.write_bytes(damaged)
    with pytest.raises(UserError, match=r"ledger\.jsonl, line 2: damaged"):
        read_ledger(ledger)
    with pytest.raises(UserError, match="line 2"):
        append(ledger, [make_entry(CELL, seed=2)])
    assert ledger.read_bytes() == damaged


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


def test_a_note_on_data_is_remembered(make_entry) -> None:
    entry = make_entry(CELL)
    noted = with_variant(entry, "re-compressed", [])
    assert with_variant(entry, None, [entry, noted]) == noted
    assert with_variant(entry, "cropped", [noted]).data.variant == "cropped"
    other = make_entry(CELL, line={"data": entry.data.model_copy(update={"fingerprint": "0" * 16})})
    assert with_variant(other, None, [noted]).data.variant == "original"
