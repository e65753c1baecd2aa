"""A site's process: its connection, through the ends that Flower's SuperNode comes to, and its log."""

import errno
import subprocess
import sys
from collections.abc import Callable
from io import StringIO
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedgela[flower]'")

from fedgela.errors import UserError
from fedgela.flower import cli, site_process
from fedgela.flower.folder import SiteFolder, init
from fedgela.flower.processes import free_port
from fedgela.flower.site import Site
from fedgela.flower.site_process import LET_IN, NOT_LET_IN, PATIENCE_SECONDS, REGISTERING_SECONDS
from fedgela.flower.wire import decode
from flower.sites import write_data
from helpers import Cli

STOPPED = "Finished server process"  # of the last words of one that signed off


class Over(Exception):
    """The end of the test."""


class Nodes:
    """What becomes of one SuperNode after the other: whether it is let in, and its last words; each takes a
    few seconds."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        init(folder, ["north"], "127.0.0.1", free_port(), [])
        self.site = SiteFolder.read(folder / "north")
        self.log = folder / "north" / "supernode.log"
        self.log.touch()
        self.ends: list[tuple[bool, str]] = []
        self.said: list[str] = []
        clock = count(0.0, 4.0)
        monkeypatch.setattr(site_process, "_run_node", self.run)
        monkeypatch.setattr(site_process, "wait_for_server", lambda folder, log: None)
        times = SimpleNamespace(monotonic=lambda: next(clock), sleep=lambda seconds: None)
        monkeypatch.setattr(site_process, "time", times)

    def run(self, folder: SiteFolder, path: Path, tell: Callable[[], None]) -> tuple[bool, str]:
        if not self.ends:
            raise Over
        let_in, words = self.ends.pop(0)
        if let_in:
            with self.log.open("a") as log:
                log.write(f"{LET_IN} 17\n")
            tell()
        return let_in, words

    def connect(self) -> None:
        site_process._stay_connected(self.site, Path("door"), self.said.append)


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Nodes:
    return Nodes(tmp_path / "federation", monkeypatch)


class Full(StringIO):
    """A log on a full disk."""

    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_site_whose_log_cannot_be_written_goes_on(
    tmp_path: Path, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_data(tmp_path)
    answers: list[bytes] = []

    def serve(folder: SiteFolder, site: Site, log: Callable[[str], None]) -> None:
        log("connected")
        answers.append(site.answer(b"nonsense"))

    monkeypatch.setattr(site_process, "serve", serve)
    monkeypatch.setattr(cli, "_end_in_order", lambda: None)  # the tests' own process stays
    monkeypatch.setattr(sys, "stdout", Full())
    cli.site(nodes.site.path, data=str(tmp_path / "site-0.npz"), device="cpu")
    assert "the site's own log tells more" in decode(answers[0])[1]["error"]


def test_a_site_that_was_let_in_comes_in_again_whatever_ended_its_connection(nodes: Nodes) -> None:
    nodes.ends = [(True, STOPPED), (False, STOPPED), (True, "Client error '401 Unauthorized'")]
    with pytest.raises(Over):
        nodes.connect()
    ended = f"north: the connection has ended ({nodes.log} tells why); connecting again"
    assert nodes.said == ["north: connected", ended, ended, "north: connected", ended]


def test_what_ends_before_it_was_ever_let_in_ends_the_site(nodes: Nodes) -> None:
    nodes.ends = [(False, STOPPED)]
    with pytest.raises(UserError, match=f"SuperNode ended: {STOPPED}"):
        nodes.connect()


@pytest.mark.parametrize(("known", "patience"), [(False, REGISTERING_SECONDS), (True, PATIENCE_SECONDS)])
def test_a_key_that_is_refused_is_tried_as_long_as_its_site_may_be_taken_for_alive(
    nodes: Nodes, known: bool, patience: float
) -> None:
    """Counted from the first refusal, however long the server was away before."""
    if known:
        nodes.log.write_text(f"{LET_IN} 17\n")
    refusals = [(False, NOT_LET_IN)] * 100
    nodes.ends = list(refusals)
    with pytest.raises(UserError, match="does not let this site in"):
        nodes.connect()
    assert 4.0 * (len(refusals) - len(nodes.ends)) >= patience
    assert len(nodes.said) == 1 and "not let in yet" in nodes.said[0]


def test_a_refusal_after_a_connection_is_a_new_one(nodes: Nodes) -> None:
    refusals = [(False, NOT_LET_IN)] * 15
    nodes.ends = [(True, STOPPED), *refusals, (True, STOPPED), *refusals]
    with pytest.raises(Over):
        nodes.connect()
    assert sum("not let in yet" in line for line in nodes.said) == 2


TRAINS = """
import signal, sys, threading, time
import torch
from fedgela import cli
from fedgela.flower import site_process

def train():
    net, x = torch.nn.Linear(256, 256), torch.randn(256, 256)
    while True:
        net(x).sum().backward()

def serve(*_):
    threading.Thread(target=train, daemon=True).start()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    time.sleep(0.5)
    signal.raise_signal(signal.{sign})

site_process.open_site, site_process.serve = lambda *_: None, serve
sys.argv = ["fedgela", "federation", "site", sys.argv[1], "--data", sys.argv[1]]
cli.main()
"""


@pytest.mark.parametrize(("sign", "code"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_a_site_that_is_stopped_while_it_trains_ends_in_order(nodes: Nodes, sign: str, code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TRAINS.format(sign=sign), str(nodes.site.path)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (code, "")


GIVES_UP = """
import threading, time
import flwr.supernode.cli
from fedgela.flower import supernode

def gives_up():
    threading.Thread(target=time.sleep, args=(600,)).start()
    {how}

flwr.supernode.cli.flower_supernode = gives_up
supernode.main()
"""


@pytest.mark.parametrize("how", ["return", "raise RuntimeError('lost')"])
def test_a_supernode_that_has_given_up_ends_whatever_threads_it_leaves(how: str) -> None:
    """So that the site hears of it, and comes in again."""
    done = subprocess.run(
        [sys.executable, "-c", GIVES_UP.format(how=how)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1 and ("lost" in done.stderr) == ("lost" in how)


@pytest.mark.filterwarnings("ignore:.*they are left out")
def test_images_that_cannot_be_read_are_left_out_by_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Cli
) -> None:
    image = pytest.importorskip("PIL.Image", reason="images are read with Pillow: pip install 'fedgela[hub]'")
    init(tmp_path / "federation", ["north"], "127.0.0.1", free_port(), [])
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(6):
            image.new("L", (8, 8), 40 * i).save(tmp_path / "photos" / name / f"{i}.png")
    (tmp_path / "photos" / "cat" / "broken.png").write_text("no image")
    sites: list[Site] = []
    monkeypatch.setattr(site_process, "serve", lambda folder, site, log: sites.append(site))
    asked = ["federation", "site", tmp_path / "federation" / "north", "--data", tmp_path / "photos"]
    code, _, told = command(*asked)
    assert code == 2
    assert "1 of 13 images cannot be read: cat/broken.png" in told and "--skip-unreadable" in told
    assert command(*asked, "--skip-unreadable")[0] == 0
    (site,) = sites
    assert len(site.data.y_train) + len(site.data.y_test) == 12
