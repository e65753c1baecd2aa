"""Flower's control interface as the server's own machine uses it: commands, and which node is which site."""

import json
import subprocess

import httpx
import tomli_w
from flwr.proto.control_pb2 import ListNodesRequest
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
    """Tell Flower the keys that it does not know yet."""
    known = registered(folder).values()
    for site, name in enumerate(folder.sites):
        if site in known:
            continue
        key = folder.public_key(name)
        answer = flwr(folder, "supernode", "register", str(key.resolve()), CONNECTION, "--name", name)
        if not answer.get("success"):
            raise UserError(f"{key}: Flower did not take this key: {answer.get('error-message')}")


def registered(folder: FederationFolder) -> dict[int, int]:
    """Which site a node is, {node: site}, by its key. Flower's own list alone tells: a copy of it would go
    wrong with the first kill between the two. Its command for the list leaves the keys out."""
    sites = {public_key(folder.public_key(name)): site for site, name in enumerate(folder.sites)}
    authority = (folder.server / "ca.crt").read_bytes()
    client = ControlHttpClient.from_server_address(folder.address, False, authority, [])
    try:
        nodes = client.ListNodes(ListNodesRequest()).nodes_info
    except httpx.HTTPError as error:
        raise UserError(f"Flower's list of sites cannot be had from {folder.address}: {error}") from None
    finally:
        client.close()
    return {node.node_id: sites[node.public_key] for node in nodes if node.public_key in sites}
