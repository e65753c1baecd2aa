"""`fedgela federation server`: Flower's SuperLink with TLS, node authentication and a database; the sites'
keys are registered."""

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import tomli_w

from fedgela.errors import UserError
from fedgela.files import write_atomically, write_json
from fedgela.flower.folder import FederationFolder
from fedgela.flower.keys import check_certificate
from fedgela.flower.processes import check_free, environment, is_listening, last_words, program, start, stop

SECONDS_TO_START = 60.0
CONNECTION = "fedgela"  # the name by which Flower's commands know the server
NODES = "nodes.json"


class Link:
    """A running SuperLink."""

    def __init__(self, folder: FederationFolder, bind: str = "127.0.0.1") -> None:
        server = folder.server
        check_certificate(server / "server.crt")
        check_free(bind, folder.port)
        self.log = server / "superlink.log"
        command = ["flower-superlink", "--host", bind, "--port", str(folder.port)]
        command += ["--ssl-ca-certfile", str(server / "ca.crt")]
        command += ["--ssl-certfile", str(server / "server.crt"), "--ssl-keyfile", str(server / "server.key")]
        command += ["--enable-supernode-auth", "--disable-runtime-dependency-installation"]
        command += ["--database", str((server / "flower.db").resolve())]
        with self.log.open("ab") as log:
            self.process = start(command, server / "flwr", log)
        try:
            self._wait(folder)
            register(folder)
        except BaseException:
            self.stop()
            raise

    def _wait(self, folder: FederationFolder) -> None:
        end = time.monotonic() + SECONDS_TO_START
        while not is_listening("127.0.0.1", folder.port):
            if self.process.poll() is not None or time.monotonic() > end:
                raise UserError(f"Flower's SuperLink did not start: {last_words(self.log)}")
            time.sleep(0.1)

    def wait(self, note: Callable[[str], None]) -> None:
        code = self.process.wait()
        note(f"Flower's SuperLink has ended (exit code {code}); its log is {self.log}")

    def stop(self) -> None:
        stop(self.process)


def flwr(folder: FederationFolder, *arguments: str, seconds: float = 60.0) -> dict[str, object]:
    """One of Flower's commands on the server, its answer as JSON."""
    home = folder.server / "flwr"
    connection = {
        "address": folder.address,
        "root-certificates": str((folder.server / "ca.crt").resolve()),
    }
    env = environment(home)
    write_atomically(home / "config.toml", tomli_w.dumps({"superlink": {CONNECTION: connection}}))
    try:
        done = subprocess.run(
            [program("flwr"), *arguments, "--format", "json"],
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UserError(f"Flower's command 'flwr {arguments[0]}' did not end within {seconds:g} s") from None
    try:
        answer: dict[str, object] = json.loads(done.stdout)
    except ValueError:
        text = " ".join((done.stdout + done.stderr).split())
        raise UserError(f"Flower's command 'flwr {arguments[0]}' failed: {text[-300:]}") from None
    return answer


def register(folder: FederationFolder) -> dict[int, int]:
    """Which site a node is, {node: site}, by its key; keys that Flower does not know yet are told to it."""
    known = registered(folder)
    for site, name in enumerate(folder.sites):
        if site in known.values():
            continue
        key = folder.server / "keys" / f"{name}.pub"
        answer = flwr(folder, "supernode", "register", str(key.resolve()), CONNECTION, "--name", name)
        if not answer.get("success"):
            raise UserError(f"{key}: Flower did not take this key: {answer.get('error-message')}")
        known[int(str(answer["node-id"]))] = site
        _write_nodes(folder.server / NODES, known)
    return known


def _write_nodes(path: Path, nodes: dict[int, int]) -> None:
    write_json(path, {str(node): site for node, site in nodes.items()})


def registered(folder: FederationFolder) -> dict[int, int]:
    try:
        nodes = json.loads((folder.server / NODES).read_text())
    except FileNotFoundError:
        return {}
    return {int(node): int(site) for node, site in nodes.items()}
