"""Tiny data in the shape of each of the paper's data sets, and a ledger's lines made up to measure."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedgela.config import plain_table
from fedgela.paper import experiment_of, find_cell, same_run
from fedgela.reproduce.ledger import BestAndLast, Code, Data, Entry
from fedgela.reproduce.settings import hash_of
from fedgela.reproduce.smoke import write_tiny_data

MakeEntry = Callable[..., Entry]


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny-data")
    write_tiny_data(folder)
    return folder


@pytest.fixture
def make_entry() -> MakeEntry:
    """make_entry(cell id, PA, GA, seed, changes of the config..., fields of the line in `line`)."""

    def make(
        id: str,
        PA: float = 90.0,
        GA: float = 50.0,
        seed: int = 0,
        line: dict[str, Any] | None = None,
        **changes: Any,
    ) -> Entry:
        cell = find_cell(id)
        experiment = experiment_of(cell).with_(seed=seed, **changes)
        rounds = experiment.rounds
        fields: dict[str, Any] = {
            "cells": tuple(other.id for other in same_run(cell) if other.measures != "angles"),
            "seed": seed,
            "config_hash": hash_of(experiment),
            "config": plain_table(experiment),
            "code": Code(version="1.2.3"),
            "data": Data(name=cell.dataset, fingerprint="f" * 16),
            "device": "a machine",
            "precision": "fp32",
            "rounds_paper": cell.config["rounds"],
            "rounds_run": rounds,
            "PA": BestAndLast(best=PA, last=PA - 1, best_round=1, last_round=rounds),
            "GA": BestAndLast(best=GA, last=GA - 1, best_round=1, last_round=rounds),
            "wall_seconds": 360.0,
            "images_per_second": 70000.0,
            "date": "2026-01-01",
        }
        return Entry(**fields | (line or {}))

    return make
