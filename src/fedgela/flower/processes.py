"""Flower's own programs as child processes, which never outlive their parent."""

import contextlib
import ctypes
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from fedgela.errors import UserError
from fedgela.flower import QUIET

SECONDS_TO_END = 10  # that a process has after each signal
LAST_WORDS = 4  # lines of a log
INSTALLED = "apps"  # in the folder of a Flower process: the packages of runs
_PR_SET_PDEATHSIG = 1


def environment(home: Path) -> dict[str, str]:
    """Of every Flower process: its files in `home`, its own programs first on the path."""
    scripts = sysconfig.get_path("scripts")
    path = os.pathsep.join([scripts, os.environ.get("PATH", "")])
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    own = {"FLWR_HOME": str(home.resolve()), "PATH": path, "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2"}
    return {**os.environ, **QUIET, **own}


def program(name: str) -> str:
    found = shutil.which(name, path=sysconfig.get_path("scripts")) or shutil.which(name)
    if found is None:
        raise UserError(f"there is no program {name}: pip install 'fedgela[flower]'")
    return found


def die_with_parent(sign: signal.Signals = signal.SIGTERM) -> None:
    """On Linux the kernel ends a child whose parent is gone, even by kill -9."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, sign)


def start(command: Sequence[str], home: Path, log: IO[bytes]) -> subprocess.Popen[bytes]:
    # a run's package that was unpacked by half, at a kill or on a full disk, is whole for Flower ever after
    shutil.rmtree(home / INSTALLED, ignore_errors=True)
    return subprocess.Popen(
        [program(command[0]), *command[1:]],
        env=environment(home),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        preexec_fn=die_with_parent,
        umask=0o077,  # sites' updates pass through its files
        start_new_session=True,
    )


def stop(process: subprocess.Popen[bytes]) -> None:
    """The process and what it has started."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, sign)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(SECONDS_TO_END)
            if sign == signal.SIGTERM:
                time.sleep(0.2)
    process.wait()


def has_dead_child(pid: int) -> bool:
    """Whether a process has not noticed the end of one that it started, as far as Linux tells."""
    with contextlib.suppress(OSError):
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in children.read_text().split():
                state = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]
                if state == "Z":
                    return True
    return False


def is_listening(host: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1.0):
        return True
    return False


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def check_free(host: str, port: int) -> None:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as wanted:
        wanted.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            wanted.bind((host, port))
        except OSError as error:
            raise UserError(
                f"port {port} of {host} cannot be used ({error.strerror}): is another server running? "
                "A federation's port is set when it is made: fedgela federation init --port"
            ) from None


def last_words(log: Path, since: int = 0) -> str:
    """What a Flower program said at its end, for a message: its error where it names one."""
    try:
        text = re.sub(r"\x1b\[[0-9;]*m", "", log.read_bytes()[since:].decode(errors="replace"))
    except OSError:
        return ""
    told = [line.strip() for line in text.splitlines() if line.strip()]
    for place in range(len(told) - 1, -1, -1):
        if "Exit Code" in told[place]:
            return " ".join(told[place : place + LAST_WORDS])
    return " | ".join(told[-LAST_WORDS:])
