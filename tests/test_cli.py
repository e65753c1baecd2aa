"""The command line: a mistake is a line or two and exit code 2, a run is plain lines or a bar."""

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch
import typer

import fedgela
from fedgela import cli
from fedgela.seeds import run_seeds
from helpers import Cli, listing, tiny, tiny_arrays, tiny_table


@pytest.fixture
def command(command: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """The command line in an empty folder, without any data."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDGELA_DATA", str(tmp_path / "data"))
    return command


@pytest.fixture
def config(npz: Path, tmp_path: Path) -> Path:
    return write_config(npz, tmp_path / "tiny.toml")


def write_config(npz: Path, path: Path, **changes: Any) -> Path:
    path.write_text(tomli_w.dumps(tiny_table(npz, **changes)))
    return path


def test_an_interruption_before_a_run_has_begun_does_not_promise_to_go_on(
    command: Cli, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fedgela.runs.resolve", interrupted)
    code, _, err = command("run", config, "--out", tmp_path / "run")
    assert (code, err) == (130, "fedgela: interrupted; nothing was written yet\n")
    monkeypatch.undo()
    monkeypatch.setattr("fedgela.server.Server.step", interrupted)
    code, _, err = command("run", config, "--out", tmp_path / "run")
    assert (code, err) == (130, f"fedgela: interrupted; 'fedgela resume {tmp_path / 'run'}' goes on\n")


def test_no_command_writes_where_it_reads(command: Cli, npz: Path, config: Path, tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    (photos / "cat").mkdir(parents=True)
    (tmp_path / "cifar10.npz").touch()
    held = listing(tmp_path)
    for arguments, told in (
        (["run", "--dataset", photos, "--out", photos / "run"], "--out: {} lies in"),
        (["compare", "--dataset", photos, "--algorithms", "fedavg", "--out", photos], "--out: {} is read"),
        (["tune", "--dataset", photos, "--algorithms", "fedavg", "--out", photos / "t"], "--out: {} lies in"),
        (["inspect", photos, "--out", photos / "cat"], "--out: {} lies in"),
        (["burden", config, "--out", config], "--out: {} is read"),
        (["burden", config, "--out", npz], "--out: {} is read"),
        (["bench", "--data-dir", tmp_path, "--out", tmp_path / "cifar10.npz"], "--out: {} is read"),
    ):
        code, _, err = command(*arguments)
        assert code == 2 and err.startswith(f"fedgela: {told.format(arguments[-1])}"), err
        assert err.count("\n") == 1
    assert listing(tmp_path) == held


def test_a_method_is_named_once(command: Cli, config: Path, tmp_path: Path) -> None:
    code, _, err = command(
        "compare", config, "--algorithms", "fedavg,fedgela,fedavg", "--out", tmp_path / "all"
    )
    assert code == 2 and "two methods are called 'fedavg'" in err


def test_no_name_is_no_method(command: Cli, config: Path, tmp_path: Path) -> None:
    code, _, err = command("compare", config, "--algorithms", " ", "--out", tmp_path / "all")
    assert (code, err) == (2, "fedgela: --algorithms: there is no method's name\n")


# -- mistakes --------------------------------------------------------------------------------------

# arguments after 'run --out out', and what the complaint must say
MISTAKES = {
    "unknown measure": (["--track", "angels"], r"'angels' cannot be tracked \(did you mean 'angles'\?\)"),
    "unknown key": (["--set", "ronds=3"], r"no key 'ronds' \(did you mean 'rounds'\?\)"),
    "unknown key of the method": (
        ["--set", "algorithm.E_V=3"],
        r"no key 'algorithm\.E_V' \(did you mean 'algorithm\.E_W'\?\)",
    ),
    "key without its table": (["--set", "E_W=3"], r"no key 'E_W' \(did you mean 'algorithm\.E_W'\?\)"),
    "wrong type": (["--set", 'rounds="many"'], r"rounds: should be a valid integer, not 'many'"),
    "a truth for a number": (["--set", "epochs=true"], r"epochs: should be a valid integer, not True"),
    "too many classes": (["--partition", "classes:11"], r"classes:11: the data has only 10 classes"),
    "no such partition": (["--partition", "dirichlt:0.1"], r"partition: a partition is 'dirichlet:BETA'"),
    "more sampled than there are": (
        ["--clients", "5", "--sample", "6"],
        r"sample: 6 clients a round are more than all 5",
    ),
    "more sampled than by default": (["--sample", "11"], r"sample: 11 clients a round are more than all 10"),
    "negative learning rate": (["--lr", "-1"], r"lr: should be greater than 0, not -1\.0"),
    "no config file": (["nowhere.toml"], r"there is no config file nowhere\.toml"),
    "config is a folder": (["."], r"\.: is no config in TOML; data is given by --dataset \."),
    "config is an archive": (
        ["a/b.npz"],
        r"b\.npz: is no config in TOML; data is given by --dataset a/b\.npz",
    ),
    "config is a table": (["a.parquet"], r"is no config in TOML; data is given by --dataset a\.parquet"),
    "config is a data set's name": (["digits"], r"is no config in TOML; data is given by --dataset digits"),
    "nothing near": (["--set", "foo=3"], r"no key 'foo'$"),
    "another method's key": (
        ["--set", "algorithm.mu=3"],
        r"no key 'algorithm\.mu' of fedgela, only of fedprox, moon; fedgela has etf, adapt, E_W, ",
    ),
    "no data set": (["--dataset", "dgits"], r"'dgits' is no data set's name.*did you mean 'digits'"),
    "no data file": (["--dataset", "a.npz"], r"there is no file a\.npz"),
    "unknown method": (["--algorithm", "fedgla"], r"no method 'fedgla' \(did you mean 'fedgela'\?\)"),
    "unknown model": (["--model", "resnet19"], r"no model 'resnet19' \(did you mean 'resnet18'\?\)"),
    "model too large": (["--model", "simple-cnn"], r"at least 16x16, not image of shape 1x8x8"),
    "seeds in words": (["--seeds", "one"], r"--seeds: 'one' is no list of numbers"),
    "seeds twice": (["--seeds", "1,1"], r"--seeds: '1,1' must be different"),
    "negative seed": (["--seeds", "-1"], r"--seeds: '-1' must be different numbers from 0 on"),
    "no device": (["--device", "gpu"], r"'gpu' is no device to train on; try auto, cpu"),
    "set without a value": (["--set", "rounds"], r"--set 'rounds': write key=value"),
    "set below a value": (["--set", "rounds=3", "--set", "rounds.x=1"], r"'rounds' is a value, not a table"),
    "E_W and its alias": (
        ["--set", "algorithm.E_W=4", "--set", "algorithm.logit_scale=2"],
        r"give E_W or logit_scale",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_ends_in_a_line_or_two_and_exit_code_2(command: Cli, mistake: str) -> None:
    arguments, complaint = MISTAKES[mistake]
    code, out, err = command("run", "--out", "out", *arguments)
    assert code == 2
    assert re.search(complaint, err), err
    assert len(err.splitlines()) <= 2
    assert all(line.startswith("fedgela: ") for line in err.splitlines())
    assert out == ""
    assert not Path("out").exists()  # nothing half-written


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_said_so(command: Cli) -> None:
    code, _, err = command("run", "--out", "out", "--device", "cuda")
    assert code == 2
    assert "device: 'cuda' cannot be used here" in err
    assert len(err.splitlines()) == 1


def test_tables_of_methods_are_not_for_a_single_run(command: Cli, npz: Path, tmp_path: Path) -> None:
    path = tmp_path / "several.toml"
    path.write_text(f'dataset = "{npz}"\n[methods.fedavg]\nlr = 0.1\n')
    code, _, err = command("run", str(path), "--out", str(tmp_path / "out"))
    assert code == 2
    assert "there is no key 'methods'; tables of methods are for compare and tune" in err


@pytest.mark.parametrize("content", [b"rounds = ", b"\xff\xfe", b"{json: 1}"])
def test_a_config_that_is_no_toml_is_named(command: Cli, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad.toml").write_bytes(content)
    code, _, err = command("run", "bad.toml", "--out", "out")
    assert code == 2
    assert err.startswith("fedgela: bad.toml: ")
    assert len(err.splitlines()) == 1


def test_a_mistake_in_a_config_names_the_file(command: Cli, npz: Path, tmp_path: Path) -> None:
    write_config(npz, tmp_path / "a.toml", momentum=1.5)
    code, _, err = command("run", "a.toml", "--out", "out")
    assert (code, err) == (2, "fedgela: a.toml: momentum: should be less than 1, not 1.5\n")


def test_many_mistakes_are_still_two_lines(command: Cli) -> None:
    settings = [x for key in ("a", "b", "c", "d") for x in ("--set", f"{key}=1")]
    code, _, err = command("run", "--out", "out", *settings)
    assert code == 2
    assert len(err.splitlines()) == 2
    assert "(and 2 more)" in err


def test_an_existing_run_is_refused_and_untouched(command: Cli, config: Path) -> None:
    assert command("run", config, "--out", "out")[0] == 0
    before = listing(Path("out"))
    for seeds in ([], ["--seeds", "0,1"]):
        code, _, err = command("run", config, "--out", "out", *seeds)
        assert code == 2
        assert "already holds a run; continue it with 'fedgela resume out'" in err
    assert listing(Path("out")) == before


def test_resume_without_a_run_is_refused(command: Cli) -> None:
    code, _, err = command("resume", "nowhere")
    assert (code, err) == (2, "fedgela: nowhere: there is no run in this folder (no config.toml)\n")


def test_an_out_that_is_a_file_is_refused(command: Cli, config: Path, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    for arguments in (["run"], ["run", "--seeds", "0,1"], ["compare", "--algorithms", "fedavg"]):
        code, _, err = command(*arguments, config, "--out", "out")
        assert code == 2
        assert len(err.splitlines()) == 1
    assert (tmp_path / "out").read_text() == "mine"


def test_an_unknown_method_in_a_comparison_is_refused(command: Cli) -> None:
    code, _, err = command("compare", "--out", "out", "--algorithms", "fedavg,fedgla")
    assert code == 2
    assert "no method 'fedgla' (did you mean 'fedgela'?)" in err


def test_a_bug_shows_its_traceback(command: Cli, config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedgela.server import Server

    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(Server, "step", broken)
    monkeypatch.setattr(sys, "argv", ["fedgela", "run", str(config), "--out", "out"])
    with pytest.raises(ZeroDivisionError):
        cli.main()


# -- what is printed -------------------------------------------------------------------------------


def test_the_version(command: Cli) -> None:
    code, out, _ = command("--version")
    assert (code, out) == (0, f"fedgela {fedgela.__version__}\n")


def test_every_command_option_and_argument_tells_what_it_is() -> None:
    waiting = [("fedgela", typer.main.get_command(cli.app))]
    while waiting:
        name, command = waiting.pop()
        assert command.help, name
        for given in command.params:
            assert getattr(given, "help", None), f"{name}: {given.name}"
        waiting += [(f"{name} {own}", below) for own, below in getattr(command, "commands", {}).items()]


def test_the_command_by_its_module() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "fedgela", "inspect", "nowhere.npz"], capture_output=True, text=True
    )
    assert (ended.returncode, ended.stdout) == (2, "") and "nowhere.npz" in ended.stderr


def test_a_run_prints_a_line_a_round_and_its_result(command: Cli, config: Path) -> None:
    code, out, err = command("run", config, "--out", "out", "--rounds", "2")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert re.fullmatch(r"round 1/2  loss \d\.\d{4}  GA [\d.]+  PA [\d.]+  left \d+s", lines[0])
    assert lines[1].startswith("round 2/2")
    assert lines[2] == "measuring the final models"
    result = json.loads(Path("out/result.json").read_text())
    assert lines[3].startswith(f"GA  best {result['GA']['best']:.2f} (round ")
    # the mean over classes too, where it is another one
    assert lines[4].startswith(f"GA_balanced  best {result['GA_balanced']['best']:.2f} (round ")
    assert lines[5].startswith(f"PA  best {result['PA']['best']:.2f} (round ")
    assert lines[6].startswith(f"PA_balanced  best {result['PA_balanced']['best']:.2f} (round ")
    assert lines[7:] == ["written to out"]
    assert "\x1b" not in out  # no terminal, no colours


def test_a_run_that_diverged_says_so_at_its_end(command: Cli, config: Path) -> None:
    table = "†: the training loss became infinite or NaN"
    diverging = ("run", config, "--lr", "1e20", "--algorithm", "fedavg", "--rounds", 2)
    _, out, _ = command(*diverging, "--out", "one")
    assert re.search(rf"^GA †  best .*\n(.*\n)*{table} \(round 1\)\nwritten to one$", out, re.MULTILINE)
    assert f"{table} (round 1)" in command("resume", "one")[1]
    _, out, _ = command(*diverging, "--out", "two", "--seeds", "3,4")
    assert f"{table} (seed 3 in round 1, seed 4 in round 1)" in out
    assert "†" not in command("run", config, "--out", "sound", "--rounds", 1)[1]


def test_fedavg_shows_no_pa_before_fine_tuning(command: Cli, config: Path) -> None:
    _, out, _ = command("run", config, "--out", "out", "--algorithm", "fedavg", "--rounds", "1")
    first = out.splitlines()[0]
    assert re.search(r"GA [\d.]+  local [\d.]+", first)
    assert "PA" not in first


def test_flags_win_over_the_config_and_set_over_flags(command: Cli, config: Path) -> None:
    command("run", config, "--out", "out", "--rounds", "1", "--lr", "0.2", "--set", "lr=0.3")
    text = Path("out/config.toml").read_text()
    assert "rounds = 1\n" in text
    assert "lr = 0.3\n" in text
    assert "E_W = 25.0" in text  # the config's own


def test_another_method_does_not_inherit_a_methods_settings(command: Cli, config: Path) -> None:
    command("run", config, "--out", "out", "--rounds", "1", "--algorithm", "fedge")
    assert "E_W = 10.0" in Path("out/config.toml").read_text()  # the default, not the config's 25


def test_several_seeds_print_mean_and_spread(command: Cli, config: Path) -> None:
    code, out, _ = command("run", config, "--out", "out", "--rounds", "1", "--seeds", "0,1")
    assert code == 0
    assert out.startswith("seed 0  round 1/1")
    assert re.search(r"^GA  best [\d.]+ ± [\d.]+  last [\d.]+ ± [\d.]+  over 2 seeds$", out, re.M)
    assert command("resume", "out")[0] == 0


def test_a_single_seed_from_python_is_resumed_and_has_no_spread(command: Cli, npz: Path) -> None:
    run_seeds(tiny(npz, rounds=1), [4], "out")
    code, out, _ = command("resume", "out")
    assert code == 0
    assert re.search(r"^GA  best [\d.]+  last [\d.]+  over 1 seed$", out, re.M)


def test_resume_of_a_finished_run_prints_its_result(command: Cli, config: Path) -> None:
    _, first, _ = command("run", config, "--out", "out", "--rounds", "1")
    code, again, _ = command("resume", "out")
    assert code == 0
    assert again.splitlines() == ["note: this run is finished", *first.splitlines()[-5:]]


def test_names_with_control_characters_stay_in_their_line(command: Cli, tmp_path: Path) -> None:
    arrays = tiny_arrays()
    seen = arrays["y_train"] != 0
    arrays |= {name: arrays[name][seen] for name in ("x_train", "y_train")}
    names = ["flu\nor cold", "red\x1b[31m", "tab\tbed", "none"]
    np.savez(tmp_path / "names.npz", **arrays, class_names=names)
    config = write_config(tmp_path / "names.npz", tmp_path / "names.toml", partition="iid", rounds=1)
    shown = [ascii(name)[1:-1] for name in names]

    code, out, _ = command("inspect", config)
    assert code == 0
    assert re.search(rf"^client +{re.escape(shown[0])[:11]}", out, re.M) and "\x1b" not in out
    code, out, _ = command("run", config, "--out", "out")
    assert code == 0
    assert out.startswith(
        f"note: classes that are tested, but that nobody has training samples of: {shown[0]}\n"
    )
    code, out, _ = command("predict", "out", "names.npz")
    assert code == 0 and "\x1b" not in out
    rows = [line.split("  ") for line in out.splitlines()[2:22]]
    assert [row[0] for row in rows] == [str(i) for i in range(20)]
    assert {row[-1].strip() for row in rows if row[-1].strip()} <= set(shown)


def test_a_comparison_prints_its_table(command: Cli, config: Path) -> None:
    code, out, _ = command(
        "compare", config, "--out", "out", "--rounds", "1", "--algorithms", "fedavg,fedgela"
    )
    assert code == 0
    assert Path("out/table.txt").read_text() in out


def test_a_comparison_with_a_failure_ends_with_1(command: Cli, config: Path) -> None:
    arguments = ["compare", config, "--out", "out", "--rounds", "1", "--set", "projection=2"]
    code, out, err = command(*arguments, "--algorithms", "fedavg,fedgela")
    assert code == 1
    assert "fedgela: seed 0 failed: a simplex ETF of 4 classes" in out
    assert "Traceback" not in out + err


# -- in a process of its own -----------------------------------------------------------------------


def test_a_terminal_shows_a_bar(config: Path, tmp_path: Path) -> None:
    master, slave = pty.openpty()
    arguments = ["run", str(config), "--out", str(tmp_path / "out")]
    process = subprocess.Popen(
        [sys.executable, "-m", "fedgela.cli", *arguments],
        stdout=slave,
        stderr=slave,
        stdin=slave,
        env=os.environ | {"TERM": "xterm-256color", "COLUMNS": "140"},
    )
    os.close(slave)
    shown = b""
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:  # Linux: the other end is closed
            break
        if not part:
            break
        shown += part
    os.close(master)
    assert process.wait() == 0
    text = shown.decode()
    assert "\x1b[" in text
    assert "━" in text
    assert "3/3" in text
    assert "round 3/3" not in text


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_say_how_to_go_on(npz: Path, tmp_path: Path, sign: signal.Signals) -> None:
    """Both go to every process of a group, by a terminal and by Slurm: to workers as well."""
    workers = {"engine": "lanes", "lanes": 2, "width": 1}
    config = write_config(npz, tmp_path / "long.toml", rounds=100_000, **workers)
    process = subprocess.Popen(
        [sys.executable, "-m", "fedgela.cli", "run", str(config), "--out", str(tmp_path / "out")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # a shell's background jobs, and all that they start, are deaf to it
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    try:
        while not (tmp_path / "out/metrics.jsonl").exists():
            assert process.poll() is None
            time.sleep(0.01)
        # as a user would: again, where Python lost the first one inside a destructor
        for _ in range(10):
            os.killpg(process.pid, sign)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=3)
                break
        _, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode in (128 + sign, -sign)  # the latter where it was told twice
    assert f"fedgela: interrupted; 'fedgela resume {tmp_path / 'out'}' goes on" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "--out", ""], "--out: name a folder; this is empty"),
        (["run", "--out", "r", "--set", "algorithm.lrr=1"], "no key 'algorithm.lrr' (did you mean 'lr'?)"),
        (["run", "--out", "r", "--set", "learning_rate=1"], "no key 'learning_rate' (did you mean 'lr'?)"),
        (["run", "--out", "r", "--algorithm", "fedgen", "--set", "algorithm.decay=2"], "algorithm.decay"),
        (["run", "--out", "r", "--algorithm", "fedgen", "--set", "algorithm.hidden=10000000"], "hidden"),
        (
            ["run", "--out", "r", "--set", 'algorithm={name = "fedrep", head_epochs = 0, body_epochs = 0}'],
            "both 0: nothing would be trained",
        ),
        (["compare", "--out", "r", "--algorithms", "fedavg,"], "'fedavg,' has a comma too many"),
        (
            ["compare", "--out", "r", "--algorithms", "fedavg", "--set", "methods.fedgella.E_W=2"],
            "[methods.fedgella]: there is no method 'fedgella' (did you mean 'fedgela'?)",
        ),
    ],
)
def test_slips_are_told_with_what_was_meant(
    command: Cli, tmp_path: Path, arguments: list[str], said: str
) -> None:
    code, _, err = command(*arguments)
    assert code == 2
    assert said in err
    assert not list(tmp_path.iterdir())


def test_a_comparison_can_be_added_to(command: Cli, config: Path, tmp_path: Path) -> None:
    def compared(*arguments: object) -> list[str]:
        code, _, err = command("compare", config, "--out", tmp_path / "both", "--rounds", 1, *arguments)
        assert code == 0, err
        return [row["algorithm"] for row in json.loads((tmp_path / "both/table.json").read_text())]

    assert compared("--algorithms", "fedavg") == ["fedavg"]
    assert compared("--algorithms", "fedge") == ["fedavg", "fedge"]
    assert compared("--algorithms", "fedrs", "--seeds", 3) == ["fedrs"]  # on this seed there is nothing yet
    code, out, _ = command(
        "compare", config, "--out", tmp_path / "both", "--rounds", 1, "--algorithms", "fedla", "--clients", 3
    )
    assert code == 0
    assert "and is left out of the table" in out
