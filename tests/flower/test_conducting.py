"""`fedgela federation run` before it reaches the sites: its options, its folder, and one run at a time."""

import json
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedgela[flower]'")

from fedgela import cli
from fedgela.config import parse_experiment, read_toml
from fedgela.errors import UserError
from fedgela.flower import cli as commands
from fedgela.flower import conducting, server_app
from fedgela.flower.folder import FederationFolder, init
from fedgela.flower.terms import AGREED, ASKED, ERROR, NOTES, STARTED, TERMS, Terms
from fedgela.listener import Listener
from fedgela.runfolder import CONFIG, METRICS, RESULT, RunFolder
from fedgela.runs import already_holds_a_run
from fedgela.runs import resume as resume_locally

Said = Callable[..., str]


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[FederationFolder]:
    """Whose port answers, though nobody is behind it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield init(tmp_path / "fed", ["north", "east"], "127.0.0.1", server.getsockname()[1], ["cat", "dog"])


@pytest.fixture
def said(
    federation: FederationFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Said:
    """What `fedgela federation run` complains of with these options, in one line."""

    def command(*options: object) -> str:
        arguments = ["fedgela", "federation", "run", federation.path, *options]
        monkeypatch.setattr(sys, "argv", [str(part) for part in arguments])
        with pytest.raises(SystemExit, match="2"):
            cli.main()
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 1, lines
        return lines[0]

    return command


@pytest.fixture
def run(federation: FederationFolder) -> Path:
    """That was begun, and broke off before its first round."""
    path = federation.runs / "003"
    path.mkdir()
    terms = Terms(federation.id, "a run", federation.sites, federation.classes)
    asked = {"folder": str(federation.path), "terms": vars(terms), "test_data": None, "nodes": {}}
    (path / TERMS).write_text(json.dumps(asked))
    return path


@pytest.fixture
def terms_of_what_goes_on(monkeypatch: pytest.MonkeyPatch) -> list[Terms]:
    """Of runs that would now be handed to Flower."""
    handed: list[Terms] = []

    def go(federation: object, folder: RunFolder, terms: Terms, *others: object) -> dict[str, object]:
        handed.append(terms)
        return {}

    monkeypatch.setattr(conducting, "_go", go)
    return handed


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--min-sites", "3"),
        ("--round-seconds", "-1"),
        ("--round-seconds", "nan"),
        ("--wait-seconds", "-1"),
        ("--wait-seconds", "inf"),
        ("--wire", "fp8"),
        ("--dp-noise", "nan"),
        ("--dp-clip", "0"),
        ("--dp-delta", "1"),
        ("--test-data", "photos/test.npz"),
    ],
)
def test_a_wrong_option_leaves_no_folder(
    federation: FederationFolder, said: Said, option: str, value: str
) -> None:
    told = said(option, value)
    assert told.startswith(f"fedgela: {option}: ")
    assert not list(federation.runs.iterdir())


def test_new_runs_are_numbered_after_the_largest(federation: FederationFolder) -> None:
    for name in ("002", "010", "with a name"):
        (federation.runs / name).mkdir()
    assert commands._next(federation.runs) == federation.runs / "011"
    assert commands._next(federation.runs / "none yet").name == "001"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--secure-aggregation", "--set", "algorithm=fedproto"), "FedProto shares more than weights"),
        (("--set", "aggregation=median"), "median needs at least 3 clients a round"),
    ],
)
def test_what_no_sites_can_do_leaves_no_folder(
    federation: FederationFolder, said: Said, options: tuple[str, ...], told: str
) -> None:
    assert told in said(*options)
    assert not list(federation.runs.iterdir())


def ends(run: Path, error: Exception, monkeypatch: pytest.MonkeyPatch) -> str:
    """What is said of a run whose ServerApp ends so."""

    def conduct(*_: object) -> None:
        raise error

    monkeypatch.setattr(server_app, "conduct", conduct)
    monkeypatch.setattr(server_app, "die_with_parent", lambda sign: None)
    with pytest.raises(type(error)):
        server_app.main(None, SimpleNamespace(run_config={"folder": str(run)}))
    return (run / ERROR).read_text()


def test_a_run_that_is_refused_before_its_first_round_is_none(
    run: Path, terms_of_what_goes_on: list[Terms], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = run.parent
    shutil.copytree(run, runs / "004")
    asked = Terms.of(json.loads((run / TERMS).read_text())["terms"])
    ends(runs / "004", asked.too_few(0, {}), monkeypatch)
    assert commands._last(runs) == runs / "004"  # once its sites are there
    assert ends(runs / "004", UserError("refused"), monkeypatch) == "refused"
    assert commands._last(runs) == run
    RunFolder(run).write_config(parse_experiment({}))  # it has begun
    ends(run, UserError("refused"), monkeypatch)
    assert commands._last(runs) == run
    conducting.begin(FederationFolder.read(runs.parent), parse_experiment({}), runs / "004", Listener())
    assert len(terms_of_what_goes_on) == 1  # its folder is free


def test_what_the_server_is_to_load_is_found_from_any_folder(
    federation: FederationFolder,
    tmp_path: Path,
    terms_of_what_goes_on: list[Terms],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bert").mkdir()
    (tmp_path / "body.safetensors").touch()
    asked = parse_experiment({"weights": "body.safetensors", "model": "hf:bert", "dataset": "none.npz"})
    conducting.begin(federation, asked, tmp_path / "run", Listener())
    held = read_toml(tmp_path / "run" / ASKED)
    assert held["weights"] == str(tmp_path / "body.safetensors")
    assert held["model"] == f"hf:{tmp_path / 'bert'}"


# -- going on --------------------------------------------------------------------------------------


def test_a_run_goes_on_with_other_patience(
    federation: FederationFolder, run: Path, terms_of_what_goes_on: list[Terms]
) -> None:
    conducting.resume(federation, run, Listener(), min_sites=2, round_seconds=100.0, wait_seconds=5.0)
    conducting.resume(federation, run, Listener())
    changed, unchanged = terms_of_what_goes_on
    assert (changed.min_sites, changed.round_seconds, changed.wait_seconds) == (2, 100.0, 5.0)
    assert (unchanged.min_sites, unchanged.round_seconds, unchanged.wire) == (1, 600.0, "fp32")


def test_only_options_of_the_command_line_change_a_run(
    federation: FederationFolder,
    run: Path,
    terms_of_what_goes_on: list[Terms],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = json.loads((run / TERMS).read_text())
    asked["terms"] |= {"round_seconds": 30.0, "wire": "bf16"}
    (run / TERMS).write_text(json.dumps(asked))
    monkeypatch.setattr("fedgela.flower.cli.print_result", lambda *_: None)
    options = ["--resume", "--min-sites", "2"]
    monkeypatch.setattr(sys, "argv", ["fedgela", "federation", "run", str(federation.path), *options])
    with pytest.raises(SystemExit, match="0"):
        cli.main()
    (terms,) = terms_of_what_goes_on
    assert (terms.min_sites, terms.round_seconds, terms.wire) == (2, 30.0, "bf16")


def test_what_decides_a_runs_result_cannot_change(run: Path, said: Said, tmp_path: Path) -> None:
    for options, named in (
        (("--wire", "bf16"), "--wire"),
        (("--dp-noise", 1, "--dp-clip", 2), "--dp-clip, --dp-noise"),
        (("--test-data", tmp_path), "--test-data"),
        (("--set", "rounds=3"), "--set"),
        ((tmp_path / "config.toml",), "CONFIG.toml"),
    ):
        told = said(*options, "--resume", "--out", run)
        assert f"{named}: cannot change while a run goes on; --min-sites, --round-seconds" in told


def test_a_run_with_damaged_files_does_not_go_on(run: Path, said: Said) -> None:
    resume = ("--resume", "--out", run)
    whole = (run / TERMS).read_text()
    for damaged in (
        "",
        "[]",
        "{}",
        whole[:-20],
        whole.replace('"north"', "7"),
        whole.replace("600.0", '"x"'),
    ):
        if damaged == whole.replace('"north"', "7"):
            continue  # a name's kind does no harm
        (run / TERMS).write_text(damaged)
        assert f"{TERMS}: is damaged" in said(*resume)
    (run / TERMS).write_text(whole)
    (run / CONFIG).write_text("")  # the run has begun
    assert f"{AGREED}: is missing" in said(*resume)
    for damaged in ("", "[]", '{"sample": 1}'):
        (run / AGREED).write_text(damaged)
        assert f"{AGREED}: is damaged" in said(*resume)


def test_who_finds_a_federations_run_is_told_how_it_goes_on(
    federation: FederationFolder, run: Path, said: Said
) -> None:
    command = f"fedgela federation run {federation.path} --resume --out {run}"
    assert command in said("--out", run)
    assert command in str(already_holds_a_run(run))
    with pytest.raises(UserError, match="is a run of a federation") as refused:
        resume_locally(run)
    assert command in str(refused.value)


# -- one run at a time -----------------------------------------------------------------------------


def test_no_run_begins_while_another_is_alive(
    federation: FederationFolder, run: Path, said: Said, terms_of_what_goes_on: list[Terms]
) -> None:
    conducting.resume(federation, run, Listener())
    with RunFolder(run).locked():  # as its ServerApp does
        assert f"'fedgela watch {run}' shows it" in said()
        assert f"'fedgela watch {run}' shows it" in said("--resume", "--out", run)
    with RunFolder(federation.runs).locked():  # as the command that conducts it does
        assert f"'fedgela watch {run}' shows it" in said()
    conducting.begin(federation, parse_experiment({}), federation.runs / "004", Listener())
    assert len(terms_of_what_goes_on) == 2


def test_a_run_that_does_not_start_is_not_left_to_start_later(
    federation: FederationFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, ...]] = []

    def flwr(federation: FederationFolder, *arguments: str) -> dict[str, object]:
        asked.append(arguments)
        return {"success": True, "run-id": 7}

    monkeypatch.setattr(conducting, "flwr", flwr)
    monkeypatch.setattr(conducting, "registered", lambda federation: {})
    monkeypatch.setattr(conducting, "SECONDS_TO_START", -1.0)
    with pytest.raises(UserError, match=r"did not start within .* start it again"):
        conducting.begin(federation, parse_experiment({}), federation.runs / "001", Listener())
    assert [arguments[0] for arguments in asked] == ["run", "stop"] and asked[1][1] == "7"


def test_a_run_that_loses_its_server_says_how_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = httpx.ConnectTimeout("_ssl.c:989: The handshake operation timed out")
    said = ends(tmp_path, lost, monkeypatch)
    assert "handshake operation timed out" in said and "--resume' goes on" in said and "a bug" not in said


# -- what is shown ---------------------------------------------------------------------------------


def test_what_is_trained_is_told_first_and_rounds_before_notes(
    federation: FederationFolder, run: Path
) -> None:
    class Told(Listener):
        def __init__(self) -> None:
            self.lines: list[object] = []

        def round(self, record: dict[str, object]) -> None:
            self.lines.append(record["round"])

        def note(self, text: str) -> None:
            self.lines.append(text)

    told = Told()
    RunFolder(run).write_config(parse_experiment({"model": "resnet18"}))
    (run / STARTED).write_text('{"done": 0, "metrics_bytes": 0}')
    (run / METRICS).write_text('{"round": 1}\n{"round": 2}\n')
    (run / NOTES).write_text("measuring the final models\n")
    (run / RESULT).write_text('{"GA": {}}')
    conducting._watch(federation, RunFolder(run), told, conducting.Followed(run / NOTES), run / "log")
    trained = "method FedGELA, model resnet18, rounds 50, local epochs 10"
    assert told.lines == [trained, 1, 2, "measuring the final models"]
