"""A run whose clients Flower simulates, in a folder like any other run's."""

from pathlib import Path

import pytest

from fedgela.runs import resume, run
from helpers import outcome_of, tiny

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedgela[flower]'")
pytest.importorskip("ray", reason="Ray is not installed: pip install 'fedgela[flower]'")


def test_a_run_in_a_folder_is_resumed_as_if_it_had_never_been_interrupted(npz: Path, tmp_path: Path) -> None:
    experiment = tiny(npz, clients=4, sample=2, rounds=3, engine="flower-simulation")
    run(experiment, tmp_path / "whole")
    run(experiment.with_(rounds=2), tmp_path / "parts")
    (tmp_path / "parts" / "result.json").unlink()
    config = tmp_path / "parts" / "config.toml"
    config.write_text(config.read_text().replace("rounds = 2", "rounds = 3"))
    resume(tmp_path / "parts")
    whole, parts = outcome_of(tmp_path / "whole"), outcome_of(tmp_path / "parts")
    assert whole == parts
