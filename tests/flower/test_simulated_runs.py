"""A run whose clients Flower simulates, in a folder like any other run's."""

from pathlib import Path

import pytest

from fedgela.evaluation import Record
from fedgela.listener import Listener
from fedgela.runs import resume, run
from helpers import outcome_of, tiny

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedgela[flower]'")
pytest.importorskip("ray", reason="Ray is not installed: pip install 'fedgela[flower]'")


class Stopped(Exception):
    pass


class Stopping(Listener):
    def __init__(self, round: int) -> None:
        self.at = round

    def round(self, record: Record) -> None:
        if record["round"] == self.at:
            raise Stopped


@pytest.mark.federation
def test_a_run_in_a_folder_is_resumed_as_if_it_had_never_been_interrupted(npz: Path, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    experiment = tiny(npz, clients=4, sample=2, rounds=3, engine="flower-simulation", checkpoint_every=1)
    run(experiment, whole)
    with pytest.raises(Stopped):
        run(experiment, parts, Stopping(round=2))
    assert not (parts / "result.json").exists()
    resume(parts)
    assert outcome_of(whole) == outcome_of(parts)
