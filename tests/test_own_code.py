"""What a user's own source gave is not shown, nor gone on with, as another source's."""

import io
import sys
from pathlib import Path

import pytest
from rich.console import Console

import fedgela
from fedgela.compare import compare
from fedgela.config import Experiment
from fedgela.errors import UserError
from fedgela.imports import is_installed
from fedgela.own_code import own_code
from fedgela.progress import PlainView
from fedgela.runfolder import RunFolder
from fedgela.runs import resume, run
from fedgela.seeds import resume_seeds, run_seeds
from helpers import Notes, run_cut, tiny

SOURCES = {
    "edited_methods": """
from dataclasses import dataclass
from fedgela.algorithms import FedAvg

@dataclass(frozen=True)
class Doubled(FedAvg):
    def loss(self, net, x, y, client):
        return 2 * super().loss(net, x, y, client)
""",
    "derived_methods": """
from dataclasses import dataclass
from edited_methods import Doubled

@dataclass(frozen=True)
class Derived(Doubled):
    pass
""",
    "edited_nets": """
from torch import nn

class Flat(nn.Module):
    def __init__(self, spec):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 5))

    def forward(self, x):
        return self.layers(x)
""",
}
OWN = {"algorithm": "edited_methods:Doubled", "model": "edited_nets:Flat"}


@pytest.fixture(autouse=True)
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, source in SOURCES.items():
        (tmp_path / f"{module}.py").write_text(source)
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])


def edit(module: str) -> None:
    with Path(f"{module}.py").open("a") as file:
        file.write("\nFACTOR = 3\n")


@pytest.mark.parametrize("module", ["edited_methods", "edited_nets"])
def test_a_run_does_not_go_on_with_another_source(npz: Path, module: str) -> None:
    folder = Path("run")
    run_cut(tiny(npz, rounds=2, **OWN), folder, 1)
    before = (folder / "metrics.jsonl").read_text()
    edit(module)
    told = rf"^run: the source of {module} is not what it was when the run began; .* delete run/own_code.json"
    with pytest.raises(UserError, match=told):
        resume(folder)
    assert (folder / "metrics.jsonl").read_text() == before
    (folder / "own_code.json").unlink()  # as of an older version's run, or where somebody knows better
    assert resume(folder)["rounds"] == 2


def test_a_federations_run_does_not_go_on_with_another_source(npz: Path) -> None:
    server_app = pytest.importorskip("fedgela.flower.server_app", reason="needs fedgela[flower]")
    run_cut(tiny(npz, rounds=2, **OWN), Path("run"), 1)
    edit("edited_methods")
    with pytest.raises(UserError, match=r"^run: the source of edited_methods is not what it was"):
        server_app.conduct(RunFolder(Path("run")), grid=None)  # nobody is asked


def test_a_finished_run_is_not_taken_for_one_of_another_source(npz: Path, tmp_path: Path) -> None:
    def asked(algorithm: str) -> dict[str, Experiment]:
        return {algorithm.rpartition(":")[2]: tiny(npz, rounds=1, algorithm=algorithm)}

    own, other = asked("edited_methods:Doubled"), asked("fedavg")
    with PlainView(Console(quiet=True)) as view:
        compare(own, [0], tmp_path / "out", view)
        assert len(compare(own | other, [0], tmp_path / "out", view).rows) == 2  # nothing has changed
        edit("edited_methods")
        with pytest.raises(UserError, match="source of edited_methods is not what it was"):
            compare(own, [0], tmp_path / "out", view)
        table = compare(other, [0], tmp_path / "out", view)
    assert [row.method for row in table.rows] == ["fedavg"]


def test_the_result_of_a_run_with_another_source_can_be_looked_at(npz: Path, tmp_path: Path) -> None:
    result = run(tiny(npz, rounds=1, **OWN), tmp_path / "run")
    edit("edited_nets")
    notes = Notes()
    assert resume(tmp_path / "run", notes) == result
    assert notes.notes == [
        "this run is finished",
        "the source of edited_nets has been changed since it began",
    ]


def test_the_results_of_seeds_with_another_source_can_be_looked_at(npz: Path, tmp_path: Path) -> None:
    said = io.StringIO()
    with PlainView(Console(file=said)) as view:
        result = run_seeds(tiny(npz, rounds=1, **OWN), [0, 1], tmp_path / "seeds", view)
        edit("edited_nets")
        assert resume_seeds(tmp_path / "seeds", view) == result
        for seed in (0, 1):
            note = f"seed {seed}  note: the source of edited_nets has been changed since it began\n"
            assert note in said.getvalue()
        (tmp_path / "seeds/seed-1/result.json").unlink()  # one is to go on
        with pytest.raises(UserError, match="source of edited_nets is not what it was"):
            resume_seeds(tmp_path / "seeds", view)


def test_the_source_of_what_a_method_derives_from_is_kept_too(npz: Path) -> None:
    experiment = tiny(npz, algorithm="derived_methods:Derived")
    began = own_code(experiment)
    assert list(began) == ["derived_methods", "edited_methods"]
    edit("edited_methods")
    now = own_code(experiment)
    assert [name for name in began if now[name] != began[name]] == ["edited_methods"]


def test_a_folder_beside_the_package_is_the_users_own() -> None:
    package = Path(fedgela.__file__).parent
    assert is_installed(str(package / "server.py"))
    assert is_installed("<frozen importlib._bootstrap>")
    assert not is_installed(f"{package}_methods/mine.py")


def test_a_run_without_own_code_keeps_none(npz: Path, tmp_path: Path) -> None:
    run(tiny(npz, rounds=1), tmp_path / "run")
    assert not (tmp_path / "run/own_code.json").exists()


def test_a_damaged_note_of_own_code_is_named(npz: Path, tmp_path: Path) -> None:
    run_cut(tiny(npz, rounds=2, **OWN), tmp_path / "run", 1)
    (tmp_path / "run/own_code.json").write_text("{")
    with pytest.raises(UserError, match=r"own_code.json: cannot be read .*; delete it, and the run goes on"):
        resume(tmp_path / "run")
