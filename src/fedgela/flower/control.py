"""Flower's control interface as the server's own machine uses it: commands, and which node is which site."""

import contextlib
import json
import subprocess
from collections.abc import Iterator

import httpx
import tomli_w
from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest, UnregisterNodeRequest
from flwr.proto.node_pb2 import NodeInfo
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


def synchronise(folder: FederationFolder) -> None:
    """Have Flower know the keys of the sites and no others, all through one connection: a process of Flower's
    for each would take minutes, and sites that wait for the server would have given up."""
    keys = {public_key(folder.public_key(name)): name for name in folder.sites}
    with _asking(folder) as server:
        known = {node.public_key: node.node_id for node in _nodes(server)}
        for key in known.keys() - keys.keys():
            server.UnregisterNode(UnregisterNodeRequest(node_id=known[key]))
        for key, name in keys.items():
            if key not in known:
                server.RegisterNode(RegisterNodeRequest(public_key=key, name=name))


def registered(folder: FederationFolder) -> dict[int, str]:
    """Which site a node is, {node: name}, by its key. Flower's own list alone tells: a copy of it would go
    wrong with the first kill between the two. Its command for the list leaves the keys out."""
    names = {public_key(folder.public_key(name)): name for name in folder.sites}
    with _asking(folder) as server:
        return {node.node_id: names[node.public_key] for node in _nodes(server) if node.public_key in names}


def _nodes(server: ControlHttpClient) -> list[NodeInfo]:
    """Those that are let in: Flower keeps the others on its list."""
    nodes = server.ListNodes(ListNodesRequest()).nodes_info
    return [node for node in nodes if not node.HasField("unregistered_at")]


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
