"""`fedgela federation site`: the site's own process, and Flower's SuperNode as its child."""

import contextlib
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch

from fedgela.data import load_dataset
from fedgela.data.dataset import Dataset
from fedgela.data.unreadable import Unreadable
from fedgela.errors import UserError
from fedgela.flower.class_list import agreed
from fedgela.flower.door import opened
from fedgela.flower.folder import SiteFolder
from fedgela.flower.greeting import RETRY_SECONDS, wait_for_server
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
POLL_SECONDS = 0.3


def open_site(
    folder: SiteFolder,
    data: str,
    data_dir: str | None,
    image_size: int | None,
    unreadable: Unreadable,
    device: str,
    share_classes: bool,
    masked_only: bool,
    log: Callable[[str], None],
) -> Site:
    """The site with its data read, and its classes compared with the federation's."""
    check_certificate(folder.ca)
    check_site_key(folder.key)
    dataset = known = load_dataset(data, data_dir, image_size=image_size, unreadable=unreadable)
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
    if masked_only:
        log(f"{folder.name}: takes part only in runs with secure aggregation")
    return Site(
        folder.federation, dataset, folder.state, device, log, share_classes, folder.classes, masked_only
    )


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
        _stay_connected(folder, path, log)


def _stay_connected(folder: SiteFolder, path: Path, log: Callable[[str], None]) -> None:
    """Until the server does not let this site in. What ends Flower's SuperNode once it was let in, such as a
    server that has lost its database, or a clock that was set, need not end the site."""
    connected, refused_since = False, None
    while True:
        wait_for_server(folder, log)
        let_in, said = _run_node(folder, path, lambda: log(f"{folder.name}: connected"))
        if NOT_LET_IN in said and not let_in:
            if refused_since is None:
                log(f"{folder.name}: not let in yet (the server starts, or takes a killed process for alive)")
                refused_since = time.monotonic()
            # a site that was never let in has no process that the server could still take for alive
            patience = PATIENCE_SECONDS if _was_let_in(folder) else REGISTERING_SECONDS
            if time.monotonic() - refused_since > patience:
                raise UserError(
                    f"{folder.server} does not let this site in: its key ({folder.key}) is not registered "
                    "there, or is in use by another process; was the site removed, the federation made "
                    "anew, or the folder copied?"
                )
        elif let_in or connected:
            connected, refused_since = True, None
            log(f"{folder.name}: the connection has ended ({_log_of(folder)} tells why); connecting again")
        else:
            raise UserError(f"Flower's SuperNode ended: {said}")
        time.sleep(RETRY_SECONDS)


def _was_let_in(folder: SiteFolder, since: int = 0) -> bool:
    return LET_IN.encode() in _log_of(folder).read_bytes()[since:]


def _log_of(folder: SiteFolder) -> Path:
    return folder.path / "supernode.log"


def _run_node(folder: SiteFolder, path: Path, tell: Callable[[], None]) -> tuple[bool, str]:
    """Flower's SuperNode from its start to its end: whether it was let in, which is told at once, and what it
    said at the end."""
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
        if let_in := _was_let_in(folder, since):
            tell()
        node.wait()
    finally:
        stop(node)
    return let_in, last_words(logfile, since)


def _answer(door: socket.socket, site: Site) -> None:
    """One question after the other: a site trains one model at a time."""
    while True:
        try:
            there, _ = door.accept()
        except OSError:
            return  # closed
        with there, contextlib.suppress(OSError):  # Flower may have ended the asking process
            send(there, site.answer(receive(there)))
