"""`fedgela federation site`: the site's own process, and Flower's SuperNode as its child."""

import contextlib
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch

from fedgela.data import load_dataset
from fedgela.data.dataset import Dataset
from fedgela.errors import UserError
from fedgela.flower.addresses import host_and_port
from fedgela.flower.class_list import agreed
from fedgela.flower.door import opened
from fedgela.flower.folder import SiteFolder
from fedgela.flower.keys import check_certificate, check_site_key
from fedgela.flower.pipe import receive, send
from fedgela.flower.processes import free_port, last_words, start, stop
from fedgela.flower.site import Site
from fedgela.runfolder import RunFolder

# words of Flower's SuperNode
LET_IN, NOT_LET_IN = "SuperNode ID:", "Failed to activate SuperNode"
# the server takes a site that was killed for alive until two of its heartbeats, of 30 s, are missing
PATIENCE_SECONDS = 90.0
REGISTERING_SECONDS = 10.0  # a server that has just been started listens before it knows the keys
RETRY_SECONDS = 5.0
GREETING_SECONDS = 10.0
POLL_SECONDS = 0.3


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
    check_site_key(folder.key)
    dataset = known = load_dataset(data, data_dir, image_size=image_size)
    if folder.classes:
        try:
            known = agreed(dataset, folder.classes)
        except UserError as error:
            raise UserError(f"{data}: {error}") from None
    log(f"{folder.name}: {len(dataset.y_train)} training and {len(dataset.y_test)} test samples")
    log(f"{folder.name}: trains {by_class(known)}")
    for note in dataset.notes:
        log(f"{folder.name}: {note}")
    if share_classes:
        log(f"{folder.name}: shares its class counts, and its figures by class, with the server")
    folder.state.mkdir(mode=0o700, exist_ok=True)
    return Site(folder.federation, dataset, folder.state, device, log, share_classes, folder.classes)


def by_class(data: Dataset) -> str:
    """How many training samples of which class there are, for the site's own eyes."""
    counts = torch.bincount(data.y_train, minlength=data.classes).tolist()
    held = zip(data.printable_classes, counts, strict=True)
    return ", ".join(f"{count} of {name}" for name, count in held if count)


def serve(folder: SiteFolder, site: Site, log: Callable[[str], None]) -> None:
    """Answer until the SuperNode ends for good."""
    with (
        RunFolder(folder.path).locked(),  # two processes of one site would take each other's messages
        opened() as (door, path),
    ):
        threading.Thread(target=_answer, args=(door, site), daemon=True).start()
        log(f"{folder.name}: connecting to {folder.server}")
        end, told_to_wait = time.monotonic() + PATIENCE_SECONDS, False
        wait_for_server(folder, log)
        registered_by = time.monotonic() + REGISTERING_SECONDS
        while True:
            wait_for_server(folder, log)
            began = time.monotonic()
            told = _run_node(folder, path, lambda: log(f"{folder.name}: connected"))
            if NOT_LET_IN not in told:
                raise UserError(f"Flower's SuperNode ended: {told}")
            if time.monotonic() - began > PATIENCE_SECONDS:
                end, told_to_wait = time.monotonic() + PATIENCE_SECONDS, False  # it had been let in before
            # a site that was never let in has no process that the server could still take for alive
            if time.monotonic() > (end if _was_let_in(folder) else registered_by):
                raise UserError(
                    f"{folder.server} does not let this site in: its key ({folder.key}) is not registered "
                    "there, or is in use by another process; was the federation made anew, or the folder "
                    "copied?"
                )
            if not told_to_wait:
                log(f"{folder.name}: not let in yet (the server starts, or takes a killed process for alive)")
                told_to_wait = True
            time.sleep(RETRY_SECONDS)


def wait_for_server(folder: SiteFolder, log: Callable[[str], None]) -> None:
    """Until the federation's own server answers, over TLS. What Flower's SuperNode says of a server that does
    not, or that is another's, is for its log."""
    told = False
    while True:
        try:
            _greet(folder)
        except ssl.SSLCertVerificationError as error:
            raise UserError(
                f"{folder.server} is not this federation's server: {folder.ca} does not vouch for its "
                f"certificate ({error.verify_message}); is the folder of another federation, or was the "
                "federation made anew?"
            ) from None
        except OSError as error:
            # a tunnel or proxy whose server is away closes the connection; all else is a plaintext server
            if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
                raise UserError(
                    f"{folder.server} does not speak TLS, so it is no federation's server; nothing was sent"
                ) from None
            if not told:
                log(f"{folder.name}: no server answers ({error.strerror or error}); trying until one does")
                told = True
            time.sleep(RETRY_SECONDS)
        else:
            return


def _greet(folder: SiteFolder) -> None:
    host, port = host_and_port(folder.server)
    trusted = ssl.create_default_context(cafile=str(folder.ca))
    with socket.create_connection((host, port), GREETING_SECONDS) as plain:
        trusted.wrap_socket(plain, server_hostname=host).close()


def _was_let_in(folder: SiteFolder, since: int = 0) -> bool:
    return LET_IN.encode() in _log_of(folder).read_bytes()[since:]


def _log_of(folder: SiteFolder) -> Path:
    return folder.path / "supernode.log"


def _run_node(folder: SiteFolder, path: Path, let_in: Callable[[], None]) -> str:
    """Flower's SuperNode from its start to its end; what it said at the end."""
    logfile = _log_of(folder)
    command = [sys.executable, "-m", "fedgela.flower.supernode", "--superlink", folder.server]
    command += ["--root-certificates", str(folder.ca.resolve())]
    command += ["--auth-supernode-private-key", str(folder.key.resolve())]
    command += ["--port", str(free_port()), "--node-config", f'socket="{path}"']
    with logfile.open("ab") as output:
        since = output.tell()
        node = start(command, folder.path / "flwr", output)
    try:
        while node.poll() is None and not _was_let_in(folder, since):
            time.sleep(POLL_SECONDS)
        if node.poll() is None:
            let_in()
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
