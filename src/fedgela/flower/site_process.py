"""`fedgela federation site`: the site's own process, and Flower's SuperNode as its child."""

import contextlib
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from fedgela.data import load_dataset
from fedgela.errors import UserError
from fedgela.flower.folder import SiteFolder
from fedgela.flower.keys import check_certificate
from fedgela.flower.pipe import receive, send
from fedgela.flower.processes import free_port, last_words, start, stop
from fedgela.flower.site import Site, agreed

NOT_LET_IN = "Failed to activate SuperNode"
# the server takes a site that was killed for alive until two of its heartbeats, of 30 s, are missing
PATIENCE_SECONDS = 90.0
RETRY_SECONDS = 5.0


def open_site(
    folder: SiteFolder,
    data: str,
    data_dir: str | None,
    device: str,
    image_size: int | None,
    share_classes: bool,
    log: Callable[[str], None],
) -> Site:
    """The site with its data read, and its classes compared with the federation's."""
    check_certificate(folder.ca)
    dataset = load_dataset(data, data_dir, image_size=image_size)
    if folder.classes:
        try:
            agreed(dataset, folder.classes)
        except UserError as error:
            raise UserError(f"{data}: {error}") from None
    log(f"{folder.name}: {len(dataset.y_train)} training and {len(dataset.y_test)} test samples")
    if share_classes:
        log(f"{folder.name}: shares its class counts, and its figures by class, with the server")
    return Site(folder.federation, dataset, folder.state, device, log, share_classes)


def serve(folder: SiteFolder, site: Site, log: Callable[[str], None]) -> None:
    """Answer until the SuperNode ends for good."""
    with tempfile.TemporaryDirectory(prefix="fedgela-") as place, socket.socket(socket.AF_UNIX) as door:
        # a folder of one's own, which nobody else can enter
        path = Path(place) / "site"
        door.bind(str(path))
        door.listen()
        threading.Thread(target=_answer, args=(door, site), daemon=True).start()
        end = time.monotonic() + PATIENCE_SECONDS
        while True:
            log(f"{folder.name}: connecting to {folder.server}")
            began = time.monotonic()
            told = _run_node(folder, path)
            if NOT_LET_IN not in told:
                raise UserError(f"Flower's SuperNode ended: {told}")
            if time.monotonic() - began > PATIENCE_SECONDS:
                end = time.monotonic() + PATIENCE_SECONDS  # it had been let in before
            if time.monotonic() > end:
                raise UserError(
                    f"{folder.server} does not let this site in: its key ({folder.key}) is not registered "
                    "there; is the folder of another federation, or was the federation made anew?"
                )
            log(f"{folder.name}: not let in (an unknown key, or a process of this site that was just killed)")
            time.sleep(RETRY_SECONDS)


def _run_node(folder: SiteFolder, path: Path) -> str:
    """Flower's SuperNode from its start to its end; what it said at the end."""
    logfile = folder.path / "supernode.log"
    command = [sys.executable, "-m", "fedgela.flower.supernode", "--superlink", folder.server]
    command += ["--root-certificates", str(folder.ca.resolve())]
    command += ["--auth-supernode-private-key", str(folder.key.resolve())]
    command += ["--port", str(free_port()), "--node-config", f'socket="{path}"']
    with logfile.open("ab") as output:
        since = output.tell()
        node = start(command, folder.path / "flwr", output)
    try:
        node.wait()
    finally:
        stop(node)
    return last_words(logfile, since)


def _answer(door: socket.socket, site: Site) -> None:
    """One question after the other: a site trains one model at a time."""
    while True:
        try:
            there, _ = door.accept()
        except OSError:
            return  # closed
        with there, contextlib.suppress(OSError):  # Flower may have ended the asking process
            send(there, site.answer(receive(there)))
