"""A federation of real processes on this machine: the same result, kill -9, and who is let in."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
from safetensors.torch import load_file

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedgela[flower]'")

from fedgela.flower.keys import make_key
from fedgela.flower.link import Link
from fedgela.flower.processes import free_port, has_dead_child, program, start
from fedgela.flower.server_app import TERMS
from flower.real import RealFederation, assert_close, real_federation, until

HOLDINGS = ((0, 1, 2), (1, 2, 3))
ALL = ("--min-sites", len(HOLDINGS), "--wait-seconds", 150)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealFederation]:
    """Started once: its server and two sites stay for all tests here."""
    with real_federation(tmp_path_factory.mktemp("federation"), HOLDINGS) as made:
        made.server()
        for site in [made.site(name) for name in made.names]:
            site.wait_for(": connected")
        yield made


def test_a_run_goes_on_after_kill_9_of_the_superlink_and_equals_a_local_run(
    federation: RealFederation,
) -> None:
    run = federation.run("killed", federation.experiment(algorithm="fedgela", rounds=2), *ALL)
    run.wait_for_round(1)
    server = federation.commands[0]
    (superlink,) = server.children()
    os.kill(superlink, signal.SIGKILL)
    assert "SuperLink has ended" in server.ended(1)
    assert "--resume" in run.command.ended(2)
    federation.server()
    federation.resume(run)
    run.command.ended(0, 240)
    assert not any("faults" in record for record in run.records)
    run.assert_equals_a_local_run()


@pytest.mark.federation
def test_a_method_with_personal_heads_equals_a_local_run(federation: RealFederation) -> None:
    experiment = federation.experiment(algorithm="fedrep", rounds=2)
    run = federation.run("personal", experiment, *ALL)
    until((run.path / TERMS).exists, 60, lambda: run.command.said)
    another = federation.run("meanwhile", experiment, *ALL)
    federation.assert_complaints({f"'fedgela watch {run.path}' shows it": another.command})
    assert not another.path.exists()
    said = run.command.ended(0, 240)
    assert said.index("round 2/2") < said.index("measuring the final models")
    kept = run.assert_equals_a_local_run()
    key = json.loads((run.path / TERMS).read_text())["terms"]["run"]
    for client, name in enumerate(federation.names):
        (last,) = (federation.made.path / name / "state" / key).glob("round-000002.*.safetensors")
        assert_close(load_file(last), kept.models[client])


def test_a_package_that_flower_has_unpacked_by_half_is_unpacked_anew(tmp_path: Path) -> None:
    """Flower takes one that is there for whole, in all later runs too."""
    by_half = tmp_path / "home" / "apps" / "fedgela.fedgela-app.1.0.0.12345678"
    by_half.mkdir(parents=True)
    with (tmp_path / "log").open("wb") as log:
        start([sys.executable, "-c", ""], tmp_path / "home", log).wait(60)
    assert not by_half.exists()


STARTS = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {!r}]); time.sleep(600)"


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel tells of children on Linux only")
def test_a_superlink_whose_part_that_starts_runs_has_ended_is_not_waited_for(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        whole, half = (
            stack.enter_context(subprocess.Popen([sys.executable, "-c", STARTS.format(does)]))
            for does in ("import time; time.sleep(60)", "")
        )
        for process in (whole, half):
            stack.callback(process.kill)
        until(lambda: has_dead_child(half.pid), 60, lambda: "the end of the child")
        assert not has_dead_child(whole.pid)
        said: list[str] = []
        Link.wait(SimpleNamespace(process=half, log=tmp_path), said.append)
        assert "starts no runs any more" in said[0]
        whole.kill()
        Link.wait(SimpleNamespace(process=whole, log=tmp_path), said.append)
        assert "has ended (exit code -9)" in said[1]


# -- who is let in ---------------------------------------------------------------------------------


@pytest.fixture
def plaintext_server() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_strangers_are_refused_and_told_so_in_one_line(
    federation: RealFederation, plaintext_server: str
) -> None:
    activated = federation.log.count("Activated node_id")
    address = f"127.0.0.1:{federation.made.port}"
    # there is no plaintext mode here, but Flower's own program has one
    insecure = (program("flower-supernode"), "--insecure", "--superlink", address, "--port", free_port())
    without_tls = federation.add(*insecure)
    other = federation.make("other", federation.made.port)
    unknown = federation.copied("unknown-key")
    (unknown / "key").unlink()
    make_key(unknown / "key", unknown / "key.pub")
    to_plaintext = federation.copied("to-plaintext", server=plaintext_server)
    federation.assert_complaints(
        {
            f"{address} is not this federation's server": federation.site("site-0", other.path / "site-0"),
            f"{address} does not let this site in": federation.site("site-0", unknown),
            f"{plaintext_server} does not speak TLS": federation.site("site-0", to_plaintext),
        }
    )
    without_tls.wait_for("Connection attempt failed")
    assert federation.log.count("Activated node_id") == activated
