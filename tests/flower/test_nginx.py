"""A real nginx in front of the server: a site takes part through it, and commands are refused."""

import dataclasses
import http.client
import os
import shutil
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedgela[flower]'")

from fedgela.errors import UserError
from fedgela.flower import conducting, nginx
from fedgela.flower.control import CONNECTION, flwr
from fedgela.flower.demo import running
from fedgela.flower.folder import FederationFolder, SiteFolder, init
from fedgela.flower.greeting import PATH
from fedgela.flower.keys import make_key
from fedgela.flower.processes import free_port, is_listening
from fedgela.listener import Listener
from flower.sites import CLASSES, write_data
from helpers import tiny

NGINX = shutil.which("nginx", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"]))
pytestmark = pytest.mark.skipif(NGINX is None, reason="nginx is not installed: apt-get install nginx-light")


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[FederationFolder]:
    """With nginx running in front of where its server will be."""
    assert NGINX is not None
    made = init(
        tmp_path / "a federation", ["site-0"], "127.0.0.1", free_port(), list(CLASSES), proxy_port=free_port()
    )
    process = subprocess.Popen(
        [NGINX, "-c", str(made.server / nginx.CONFIGURATION)], stderr=subprocess.PIPE, text=True
    )
    try:
        end = time.monotonic() + 20
        while not is_listening("127.0.0.1", proxy_port(made)):
            assert process.poll() is None and process.stderr, process.stderr and process.stderr.read()
            assert time.monotonic() < end, "nginx does not listen"
            time.sleep(0.1)
        yield made
    finally:
        process.terminate()
        process.wait(10)


def proxy_port(federation: FederationFolder) -> int:
    return int(SiteFolder.read(federation.path / "site-0").server.rpartition(":")[2])


def asked_at_the_proxy(federation: FederationFolder) -> list[tuple[str, int]]:
    """Paths and the answers' status."""
    lines = (federation.server / nginx.FOLDER / "access.log").read_text().splitlines()
    return [(line.split('"')[1].split()[1], int(line.split('"')[2].split()[0])) for line in lines]


def status_at_the_proxy(federation: FederationFolder, path: str) -> int:
    trusted = ssl.create_default_context(cafile=str(federation.server / "ca.crt"))
    connection = http.client.HTTPSConnection("127.0.0.1", proxy_port(federation), context=trusted, timeout=20)
    connection.request("POST", path, body=b"")
    return connection.getresponse().status


def test_a_site_takes_part_through_nginx_and_commands_are_refused(
    tmp_path: Path, federation: FederationFolder
) -> None:
    whole = write_data(tmp_path)
    experiment = tiny(whole, partition="natural", clients=3, rounds=1, algorithm="fedgela")
    with running(federation, {"site-0": tmp_path / "site-0.npz"}, lambda text: None):
        run = tmp_path / "run"
        result = conducting.begin(federation, experiment, run, Listener(), min_sites=1, wait_seconds=60.0)
        assert result["PA"]["last"] is not None
        passed = asked_at_the_proxy(federation)
        assert {path.rpartition("/")[0] for path, _ in passed} == {"/v1/fleet"}
        assert {status for path, status in passed if path != PATH} == {200}
        # the calls of an idle site, of which there is no end, leave nothing on the disk
        assert "/v1/fleet/pull-object" in {path for path, _ in passed}
        assert "/v1/fleet/pull-messages" not in {path for path, _ in passed}

        # the same commands that the server's own machine may give, by somebody who has the CA's certificate
        outside = dataclasses.replace(federation, port=proxy_port(federation))
        make_key(tmp_path / "stranger", tmp_path / "stranger.pub")
        for command in (
            ("supernode", "register", str(tmp_path / "stranger.pub"), CONNECTION),
            ("run", str(federation.server / "app"), CONNECTION, "--run-config", 'folder="/nowhere"'),
            ("supernode", "list", CONNECTION),
        ):
            try:
                assert not flwr(outside, *command).get("success")
            except UserError as error:
                assert "failed" in str(error)
        refused = asked_at_the_proxy(federation)[len(passed) :]
        commands = {(path, status) for path, status in refused if not path.startswith("/v1/fleet/")}
        assert {path.split("/")[2] for path, _ in commands} == {"control"}
        assert {status for _, status in commands} == {403}
        for path in (
            "/v1/control/list-runs",
            "/v1/fleet/../control/list-runs",
            "/v1/fleet/%2e%2e/control/x",
            "/",
        ):
            assert status_at_the_proxy(federation, path) == 403
        nodes = flwr(federation, "supernode", "list", CONNECTION)["nodes"]
        assert isinstance(nodes, list) and len(nodes) == 1
