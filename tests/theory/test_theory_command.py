"""`fedgela theory` from end to end, with sizes that take a moment."""

import json
import re
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from theory_setting import SMALL

from fedgela.theory import checks
from helpers import Cli

FIGURES = ("adapted_structure", "global_convergence", "local_convergence", "minority_collapse", "spread")


@pytest.fixture
def command(command: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """`fedgela theory` of small problems."""
    peeled = checks.PeeledSetting(
        C=4, d=5, per_class=2, counts=(20, 5, 2, 1), majority=2, ratios=(1, 10), E_Ws=(2.0, 5.0)
    )
    small = checks.Settings(peeled, SMALL)
    monkeypatch.setattr(checks, "Settings", lambda: small)
    return partial(command, "theory")


def test_everything_into_a_folder(command: Cli, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "new" / "out"
    threads = torch.get_num_threads()
    code, text, _ = command("--out", out)
    assert code == 0 and torch.get_num_threads() == threads
    names = [f"{name}.{form}" for name in FIGURES for form in ("png", "svg")]
    assert sorted(path.name for path in out.iterdir()) == sorted([*names, "theory.json", "theory.txt"])
    assert text.startswith((out / "theory.txt").read_text())
    for name in FIGURES:
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (out / f"{name}.svg").read_text()
    for line in ("Lemma 1: balanced, W learnt", "Theorem 1, FedGELA", "Theorem 4, FedGE", "B by its terms"):
        assert line in text
    assert max(len(line) for line in text.splitlines() if not line.startswith("written")) <= 120
    found = json.loads((out / "theory.json").read_text())
    assert found["lemmas"]["rows"][0]["structure"]["W_cosine_error"] < 1e-3
    gela = found["convergence"]["methods"]["FedGELA"]
    assert len(gela["theorem_1"]["gap"]) == SMALL.rounds + 1
    B = gela["theorem_1"]["B"]
    assert B["total"] == pytest.approx(sum(v for name, v in B.items() if name != "total"))
    assert len(found["convergence"]["findings"]) == text.count("[shown]") + text.count("[not shown here]")


def test_only_one_part(command: Cli) -> None:
    code, lemmas, _ = command("--only", "lemmas")
    assert code == 0 and "Minority collapse" in lemmas and "Theorem" not in lemmas
    code, structure, _ = command("--only", "structure")
    assert code == 0 and "Adapted structure" in structure and "Lemma" not in structure


def test_the_seed_turns_the_etf_and_changes_no_angle(command: Cli) -> None:
    one, two = (command("--only", "structure", "--seed", seed)[1] for seed in (1, 2))
    assert re.sub("residual .*", "", one) == re.sub("residual .*", "", two)


def test_mistakes_end_in_a_line_and_write_nothing(command: Cli, tmp_path: Path) -> None:
    assert command("--only", "lemma")[::2] == (
        2,
        "fedgela: --only: lemmas, structure or convergence, not 'lemma'\n",
    )
    a_file = tmp_path / "file"
    a_file.write_text("mine")
    code, text, error = command("--out", a_file)
    assert (code, text) == (2, "") and "is a file, not a folder" in error
    assert a_file.read_text() == "mine"
    code, text, error = command("--out", "/proc/nowhere")  # where not even root can write
    assert (code, text) == (2, "") and "cannot be written to" in error and len(error.splitlines()) == 1


def test_without_matplotlib_out_says_what_to_install(
    command: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, text, error = command("--only", "lemmas", "--out", tmp_path / "out")
    assert (code, text) == (2, "") and "pip install 'fedgela[report]'" in error
    assert not (tmp_path / "out").exists()
    assert command("--only", "lemmas")[0] == 0
