"""`fedgela federation demo`: a server and three sites as processes of their own, on this machine."""

import contextlib
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from fedgela.config import parse_experiment
from fedgela.data import load_dataset
from fedgela.errors import UserError
from fedgela.evaluation import Record
from fedgela.flower import conducting
from fedgela.flower.folder import FederationFolder, init
from fedgela.flower.link import Link
from fedgela.flower.processes import free_port, start, stop
from fedgela.listener import Listener

HOLDINGS = ((0, 1), (2, 3), (4, 5))  # the digits of each site


def run_demo(
    out: Path, rounds: int, algorithm: str, listener: Listener, say: Callable[[str], None]
) -> tuple[Record, Path]:
    experiment = parse_experiment(
        {"rounds": rounds, "epochs": 5, "batch_size": 20, "lr": 0.02, "algorithm": algorithm, "device": "cpu"}
    )
    names = [str(digit) for digits in HOLDINGS for digit in digits]
    federation = init(out, [f"site-{k + 1}" for k in range(len(HOLDINGS))], "127.0.0.1", free_port(), names)
    data = out / "data"
    data.mkdir()
    for k, digits in enumerate(HOLDINGS):
        write_digits(data / f"site-{k + 1}.npz", digits)
    write_digits(data / "server.npz", tuple(range(len(names))))
    say(f"made the federation {out}: certificates, {len(HOLDINGS)} keys, two digits a site")
    with running(federation, {name: data / f"{name}.npz" for name in federation.sites}, say):
        folder = out / "runs" / "001"
        result = conducting.begin(
            federation,
            experiment,
            folder,
            listener,
            test_data=str(data / "server.npz"),
            min_sites=len(HOLDINGS),
            wait_seconds=300.0,  # all sites only start now, on this one machine
        )
    return result, folder


def write_digits(path: Path, digits: tuple[int, ...]) -> None:
    whole = load_dataset("digits")
    arrays: dict[str, np.ndarray] = {}
    for part in ("train", "test"):
        x, y = getattr(whole, f"x_{part}"), getattr(whole, f"y_{part}")
        mine = np.isin(y.numpy(), digits)
        arrays |= {f"x_{part}": x[mine, 0].numpy(), f"y_{part}": y[mine].numpy()}
    np.savez(path, **arrays)  # type: ignore[arg-type]


@contextlib.contextmanager
def running(
    federation: FederationFolder, data: dict[str, Path], say: Callable[[str], None]
) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """The server, and these sites as processes of their own; all are ended."""
    with contextlib.ExitStack() as stack:
        link = Link(federation)
        stack.callback(link.stop)
        say(f"the server is ready at {federation.address}")
        sites = {}
        for name, path in data.items():
            sites[name] = start_site(federation.path / name, path)
            stack.callback(stop, sites[name])
        for name, process in sites.items():
            if process.poll() is not None:
                raise UserError(f"{name} has ended: see {federation.path / name / 'site.log'}")
        yield sites


def start_site(folder: Path, data: Path) -> subprocess.Popen[bytes]:
    with (folder / "site.log").open("ab") as log:
        command = ["fedgela", "federation", "site", str(folder), "--data", str(data), "--device", "cpu"]
        return start(command, folder / "flwr", log)
