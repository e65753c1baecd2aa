"""A run whose clients Flower simulates, in a folder like any other run's."""

import shutil
from pathlib import Path

import pytest

from fedgela.runs import Listener, resume, run
from helpers import outcome_of, tiny

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedgela[flower]'")
pytest.importorskip("ray", reason="Ray is not installed: pip install 'fedgela[flower]'")


class Copying(Listener):
    """Keeps the folder as it is after a round, when the run might be killed."""

    def __init__(self, folder: Path, kept: Path, round: int) -> None:
        self.folder, self.kept, self.at = folder, kept, round

    def saved(self, round: int) -> None:
        if round == self.at:
            shutil.copytree(self.folder, self.kept)


@pytest.mark.federation
def test_a_run_in_a_folder_is_resumed_as_if_it_had_never_been_interrupted(npz: Path, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    experiment = tiny(npz, clients=4, sample=2, rounds=3, engine="flower-simulation", checkpoint_every=1)
    run(experiment, whole, Copying(whole, parts, round=2))
    assert not (parts / "result.json").exists()
    resume(parts)
    assert outcome_of(whole) == outcome_of(parts)
