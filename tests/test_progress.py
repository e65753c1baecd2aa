"""What a user sees of a round, whatever the round has."""

import re
from io import StringIO

import pytest
from rich.console import Console

from fedgela.config import Experiment
from fedgela.evaluation import Record, diverged
from fedgela.progress import BarView, PlainView

WHOLE: Record = {"round": 1, "train_loss": 1.5, "GA": 50.0, "local_accuracy": 75.0}
NOBODY_ANSWERED: Record = {"round": 1, "GA": None}  # of a federation's first round
LOST: Record = {"round": 2, "train_loss": None, "GA": 10.0, "PA": 20.0}


def shown(record: Record, terminal: bool) -> str:
    console = Console(file=StringIO(), force_terminal=terminal, width=120)
    with (BarView if terminal else PlainView)(console) as view:
        view.started(Experiment(rounds=3), 0)
        view.round(record)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("terminal", [False, True])
def test_every_round_can_be_shown(terminal: bool) -> None:
    assert "loss 1.5000  GA 50.00  local 75.00" in shown(WHOLE, terminal)
    assert "loss -  GA -  local -" in shown(NOBODY_ANSWERED, terminal)
    assert "loss -  GA 10.00  PA 20.00" in shown(LOST, terminal)


def test_at_80_columns_no_figure_is_cut() -> None:
    console = Console(file=StringIO(), force_terminal=True, width=80)
    with BarView(console, runs=33) as view:
        view.label = "centralised seed 10"
        view.started(Experiment(rounds=100), 0)
        view.round(WHOLE | {"round": 20, "local_accuracy": 100.0})
    assert isinstance(console.file, StringIO)
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", console.file.getvalue())
    assert " 20/100 loss 1.5000  GA 50.00  local 100.00 left " in text


def test_a_round_in_which_nobody_trained_has_not_diverged() -> None:
    assert not diverged(WHOLE) and not diverged(NOBODY_ANSWERED) and diverged(LOST)
