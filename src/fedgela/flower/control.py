"""Flower's control interface as the server's own machine uses it: commands, and which node is which site."""

import contextlib
import json
import subprocess
from collections.abc import Iterator

import httpx
import tomli_w
from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest
from flwr.supercore.control import ControlHttpClient

from fedgela.errors import UserError
from fedgela.files import write_atomically
from fedgela.flower.folder import FederationFolder
from fedgela.flower.keys import public_key
from fedgela.flower.processes import environment, program

CONNECTION = "fedgela"  # the name by which Flower's commands know the server
SECONDS = 60  # that a command may take


def flwr(folder: FederationFolder, *arguments: str) -> dict[str, object]:
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
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UserError(f"Flower's command 'flwr {arguments[0]}' did not end within {SECONDS} s") from None
    try:
        answer: dict[str, object] = json.loads(done.stdout)
    except ValueError:
        text = " ".join((done.stdout + done.stderr).split())
        raise UserError(f"Flower's command 'flwr {arguments[0]}' failed: {text[-300:]}") from None
    return answer


def register(folder: FederationFolder) -> None:
    """Tell Flower the keys that it does not know yet, all through one connection: a process of Flower's for
    each would take minutes, and sites that wait for the server would have given up."""
    known = registered(folder).values()
    with _asking(folder) as server:
        for site, name in enumerate(folder.sites):
            if site not in known:
                key = public_key(folder.public_key(name))
                server.RegisterNode(RegisterNodeRequest(public_key=key, name=name))


def registered(folder: FederationFolder) -> dict[int, int]:
    """Which site a node is, {node: site}, by its key. Flower's own list alone tells: a copy of it would go
    wrong with the first kill between the two. Its command for the list leaves the keys out."""
    sites = {public_key(folder.public_key(name)): site for site, name in enumerate(folder.sites)}
    with _asking(folder) as server:
        nodes = server.ListNodes(ListNodesRequest()).nodes_info
    return {node.node_id: sites[node.public_key] for node in nodes if node.public_key in sites}


@contextlib.contextmanager
def _asking(folder: FederationFolder) -> Iterator[ControlHttpClient]:
    """Flower's server, without its command line."""
    authority = (folder.server / "ca.crt").read_bytes()
    client = ControlHttpClient.from_server_address(folder.address, False, authority, [])
    try:
        yield client
    except httpx.HTTPError as error:
        raise UserError(f"Flower's list of sites cannot be had from {folder.address}: {error}") from None
    finally:
        client.close()
