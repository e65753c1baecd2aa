"""The socket at which a site's process is asked: where it lies, and what is left of it."""

import signal
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from fedgela.flower.door import opened

WAITING = """
import sys, tempfile, time
from fedgela.flower.door import opened
tempfile.tempdir = sys.argv[1]
with opened() as (door, path):
    print(path, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files whose path is short, as those of real systems are."""
    with tempfile.TemporaryDirectory() as place:
        monkeypatch.setattr(tempfile, "tempdir", place)
        yield Path(place)


def test_it_answers_and_is_gone_afterwards(temporary: Path) -> None:
    with opened() as (door, path):
        assert path.is_relative_to(temporary.resolve())
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        with socket.socket(socket.AF_UNIX) as there:
            there.connect(str(path))
            door.accept()[0].close()
    assert not list(temporary.iterdir())


def test_what_a_killed_process_has_left_goes_when_another_starts_and_others_stay(temporary: Path) -> None:
    command = [sys.executable, "-c", WAITING, str(temporary)]
    with opened() as (_, mine), subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout
        left = Path(other.stdout.readline().strip())
        assert mine.exists()
        other.send_signal(signal.SIGKILL)
        other.wait()
        assert left.exists()
        with opened():
            assert not left.parent.exists()
            assert mine.exists()


def test_a_long_path_for_temporary_files_is_no_hindrance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("long" * 25)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with opened() as (_, path):
        assert path.exists()
