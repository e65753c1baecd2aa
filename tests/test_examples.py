"""The examples of the docs run, outside of the package."""

import subprocess
import sys
from pathlib import Path

from helpers import start_command

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_own_model_and_method(tmp_path: Path) -> None:
    script = [sys.executable, str(EXAMPLES / "own_model_and_method.py"), str(tmp_path)]
    done = subprocess.run(script, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    assert [line.split(" GA ")[0].strip() for line in done.stdout.splitlines()] == [
        "FedAvg, smoothed",
        "FedGELA",
    ]
    config = (tmp_path / "FedAvg, smoothed" / "config.toml").read_text()
    assert 'model = "own_nets:TinyNet"' in config
    assert 'name = "own_methods:SmoothedFedAvg"\nsmoothing = 0.05' in config


def test_the_same_from_the_command_line_and_resumed(tmp_path: Path) -> None:
    assert str(EXAMPLES) not in sys.path and "" not in sys.path  # as the installed command has it
    assert not {"own_nets", "own_methods"} & set(sys.modules)

    def fedgela(*arguments: str) -> None:
        log = tmp_path / "log"
        done = start_command(*arguments, cwd=EXAMPLES, log=log)
        done.join()
        assert done.exitcode == 0, log.read_text()

    settings = ["--model", "own_nets:TinyNet", "--algorithm", "own_methods:SmoothedFedAvg", "--rounds", "1"]
    more = ["--set", "finetune_epochs=0", "--epochs", "1", "--out", str(tmp_path / "run")]
    fedgela("run", *settings, *more)
    (tmp_path / "run" / "result.json").unlink()  # as if it had been killed before its end
    fedgela("resume", str(tmp_path / "run"))
    assert (tmp_path / "run" / "result.json").exists()
