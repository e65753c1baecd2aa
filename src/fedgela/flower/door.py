"""The socket at which a site's own process takes the messages that Flower's short-lived processes bring."""

import contextlib
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

PREFIX, NAME = "fedgela-", "site"
LONGEST = 100  # of a socket's path: systems differ from 104 on
KNOCK_SECONDS = 1.0


@contextlib.contextmanager
def opened() -> Iterator[tuple[socket.socket, Path]]:
    """A socket that listens, and its path, in a new folder that nobody else can enter. What killed processes
    have left is removed first."""
    parent = _parent()
    _sweep(parent)
    with (
        tempfile.TemporaryDirectory(prefix=PREFIX, dir=parent) as place,
        socket.socket(socket.AF_UNIX) as door,
    ):
        path = Path(place) / NAME
        door.bind(str(path) + "~")
        door.listen()
        path.with_name(NAME + "~").rename(path)  # from when it is there, somebody answers
        yield door, path


def _parent() -> Path:
    """For temporary files, as long as the path of a socket may be so long."""
    usual = Path(tempfile.gettempdir()).resolve()
    return usual if len(bytes(usual / f"{PREFIX}12345678" / f"{NAME}~")) <= LONGEST else Path("/tmp")


def _sweep(parent: Path) -> None:
    for path in parent.glob(f"{PREFIX}*/{NAME}"):
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as there:
            there.settimeout(KNOCK_SECONDS)
            try:
                there.connect(str(path))
            except ConnectionRefusedError:  # nobody listens any more; others' doors refuse in another way
                shutil.rmtree(path.parent)
