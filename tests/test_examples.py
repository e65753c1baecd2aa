"""The examples of the docs run, outside of the package."""

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from fedgela.config import plain_table
from fedgela.errors import UserError
from fedgela.methods import experiments_of
from helpers import start_command

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.parametrize(("page", "printed"), [("README.md", r"^\d+\.\d"), ("docs/python.md", r"96\.379")])
def test_the_blocks_of_python_of_a_page_are_one_program(page: str, printed: str, tmp_path: Path) -> None:
    text = (EXAMPLES.parent / page).read_text("utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert len(blocks) == text.count("```python") > 0
    lines = [
        "def main():",
        textwrap.indent("\n".join(blocks), "    "),
        "if __name__ == '__main__':",
        "    main()",
    ]
    program = tmp_path / "program.py"
    program.write_text("\n".join(lines))
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    assert re.search(printed, done.stdout)


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


def test_a_comparison_sets_options_of_an_own_method_by_its_classs_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    asked = ["own_methods:SmoothedFedAvg", "fedgela"]
    table = {"methods": {"SmoothedFedAvg": {"smoothing": 0.2, "lr": 0.5}}}
    own = experiments_of(table, asked, "config")["SmoothedFedAvg"]
    assert plain_table(own)["algorithm"] == {"name": "own_methods:SmoothedFedAvg", "smoothing": 0.2}
    assert own.lr == 0.5
    with pytest.raises(UserError, match=r"no method 'SmothedFedAvg' \(did you mean 'SmoothedFedAvg'\?\)"):
        experiments_of({"methods": {"SmothedFedAvg": {"smoothing": 0.2}}}, asked, "config")
