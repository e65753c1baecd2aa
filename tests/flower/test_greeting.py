"""A site before it comes in: it waits until the federation's server answers, and their clocks agree."""

import ssl
import threading
import time
from collections.abc import Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedgela[flower]'")

from fedgela.flower import greeting
from fedgela.flower.folder import SiteFolder, init
from fedgela.flower.processes import free_port

WORD = {502: "Bad Gateway", 504: "Gateway Timeout"}


class Server:
    """With the federation's certificate; each answer has the next status and clock, and the last for ever."""

    def __init__(self, folder: Path) -> None:
        made = init(folder, ["north"], "127.0.0.1", free_port(), [])
        self.site = SiteFolder.read(folder / "north")
        self.statuses, self.clocks, self.asked = [404], [0.0], 0
        server = self

        class Answer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                turn, server.asked = server.asked, server.asked + 1
                status, fast = (row[min(turn, len(row) - 1)] for row in (server.statuses, server.clocks))
                self.send_response_only(status)
                if fast is not None:
                    self.send_header("Date", formatdate(time.time() + fast, usegmt=True))
                self.end_headers()

        self.http = HTTPServer(("127.0.0.1", made.port), Answer)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(made.server / "server.crt", made.server / "server.key")
        self.http.socket = context.wrap_socket(self.http.socket, server_side=True)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def waited_for(self) -> list[str]:
        """What the site says until it may come in."""
        said: list[str] = []
        greeting.wait_for_server(self.site, said.append)
        return said


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(greeting, "RETRY_SECONDS", 0.0)
    server = Server(tmp_path / "federation")
    yield server
    server.http.shutdown()
    server.http.server_close()


def test_a_server_that_answers_is_not_waited_for(server: Server) -> None:
    assert server.waited_for() == [] and server.asked == 1


@pytest.mark.parametrize("status", WORD)
def test_a_proxy_whose_server_is_away_is_no_server(server: Server, status: int) -> None:
    server.statuses = [status, status, 404]
    told = f"its proxy says {status} {WORD[status]}"
    assert server.waited_for() == [f"north: no server answers ({told}); trying until one does"]
    assert server.asked == 3


@pytest.mark.parametrize(
    ("fast", "told"),
    [(-60.0, "s ahead of the server's, and more than 5 s are not let in"), (400.0, "s behind")],
)
def test_a_clock_with_which_nobody_is_let_in_is_told_until_it_is_set(
    server: Server, fast: float, told: str
) -> None:
    server.clocks = [fast, fast, 0.0]
    (said,) = server.waited_for()
    assert said.startswith("north: this machine's clock is ") and told in said
    assert server.asked == 3


@pytest.mark.parametrize("fast", [-3.0, 200.0, None])
def test_a_clock_with_which_a_site_may_be_let_in_is_no_matter(server: Server, fast: float | None) -> None:
    server.clocks = [fast]
    assert server.waited_for() == []
