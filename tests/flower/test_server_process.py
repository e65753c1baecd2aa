"""The server's process: killed while it starts, without its database, and at another address than usual."""

import json
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedgela[flower]'")

from flwr.proto.control_pb2 import RegisterNodeRequest, RegisterNodeResponse
from flwr.supercore.control import ControlHttpClient

from fedgela.flower.link import Link
from fedgela.flower.processes import is_listening
from flower.real import RealFederation, real_federation, until
from flower.sites import HOLDINGS

pytestmark = pytest.mark.federation

OTHER_ADDRESS = "127.0.0.2"  # of this machine; what is tried at 127.0.0.1 only fails here


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealFederation]:
    with real_federation(tmp_path_factory.mktemp("federation"), HOLDINGS, OTHER_ADDRESS) as made:
        yield made


@pytest.fixture(autouse=True)
def nothing_stays(federation: RealFederation) -> Iterator[None]:
    yield
    federation.close()


def database(federation: RealFederation) -> Path:
    return federation.made.server / "flower.db"


def lose_database(federation: RealFederation) -> None:
    for file in federation.made.server.glob("flower.db*"):
        file.unlink()


def asked(federation: RealFederation, question: str) -> list[str]:
    """Of Flower's database, as far as it is made."""
    try:
        with sqlite3.connect(f"{database(federation).as_uri()}?mode=ro", uri=True) as flower:
            return sorted(name for (name,) in flower.execute(question))
    except sqlite3.OperationalError:
        return []


def nodes(federation: RealFederation) -> list[str]:
    """Names of those that Flower knows."""
    return asked(federation, "SELECT name FROM node")


def test_a_server_that_is_killed_while_its_database_is_made_starts_again(federation: RealFederation) -> None:
    lose_database(federation)
    server = federation.command("server", federation.made.path, "--bind", federation.host)
    until(lambda: asked(federation, "SELECT name FROM sqlite_master"), 60, lambda: f"tables: {server.said}")
    server.cut_power()
    assert not nodes(federation), "it was killed too late for this test"
    federation.server()
    assert nodes(federation) == federation.names


def test_a_server_that_ends_between_two_registrations_registers_the_others_when_it_starts(
    federation: RealFederation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All through one connection: sites that wait for the server would not wait for a process each."""
    lose_database(federation)
    register = ControlHttpClient.RegisterNode
    keys: list[str] = []

    def ends_at_the_second(server: ControlHttpClient, request: RegisterNodeRequest) -> RegisterNodeResponse:
        keys.append(request.name)
        if len(keys) == 2:
            raise KeyboardInterrupt
        return register(server, request)

    monkeypatch.setattr(ControlHttpClient, "RegisterNode", ends_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        Link(federation.made, federation.host)
    assert nodes(federation) == federation.names[:1]
    federation.server()
    assert nodes(federation) == federation.names


def of_another_make(path: Path) -> None:
    with sqlite3.connect(path) as flower:
        flower.execute("CREATE TABLE nothing_of_flowers (id INTEGER)")


def no_database(path: Path) -> None:
    path.write_bytes(b"damaged" * 1000)


@pytest.mark.parametrize("spoilt", [None, of_another_make, no_database])
def test_sites_are_registered_anew_where_flowers_database_is_lost(
    federation: RealFederation, spoilt: Callable[[Path], object] | None
) -> None:
    lose_database(federation)
    if spoilt:
        spoilt(database(federation))
    server = federation.server()
    assert ("could not use its database" in server.said) == bool(spoilt)
    assert nodes(federation) == federation.names


def test_a_run_at_another_address_than_127_0_0_1(federation: RealFederation) -> None:
    federation.server()
    assert not is_listening("127.0.0.1", federation.made.port)
    federation.site("site-0").wait_for("connected")
    experiment = federation.experiment(algorithm="fedgela", rounds=1)
    run = federation.run("elsewhere", experiment, "--wait-seconds", 1)
    run.command.ended(0)
    assert len(run.records) == 1


def test_sites_come_and_go_while_the_server_runs(federation: RealFederation) -> None:
    """Who is added takes part in the next run, who is removed is not let in any more; a run that goes on
    keeps to the sites that it began with."""
    federation.server()
    first, second = (federation.site(name) for name in federation.names[:2])
    for site in (first, second):
        site.wait_for("connected")
    options = ("--wait-seconds", 1, "--min-sites", 2)
    run = federation.run("before", federation.experiment(algorithm="fedgela", rounds=40), *options)
    run.wait_for_round(1)

    gone = federation.names[0]
    federation.command("remove", federation.made.path, gone).ended(0)
    federation.command("add", federation.made.path, "west").ended(0)
    assert nodes(federation)  # Flower's own list keeps who was removed
    run.command.ended(2, 240)
    assert "only 1 of at least 2 sites are there" in run.command.said
    assert "does not let this site in" in first.ended(2, 200)
    west = federation.command(
        "site", federation.made.path / "west", "--data", federation.folder / "site-2.npz"
    )
    west.wait_for("connected")
    federation.command("run", federation.made.path, "--resume", "--out", run.path).ended(2, 240)
    later = federation.run("after", federation.experiment(algorithm="fedgela", rounds=2), *options)
    later.command.ended(0, 240)
    terms = json.loads((later.path / "federation.json").read_text())["terms"]
    assert terms["sites"] == [*federation.names[1:], "west"]
    assert [record["clients"] for record in later.records] == [[0, 2], [0, 2]]
