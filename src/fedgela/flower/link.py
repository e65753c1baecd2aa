"""`fedgela federation server`: Flower's SuperLink with TLS, node authentication and a database; the sites'
keys are registered, and no others."""

import time
from collections.abc import Callable

from fedgela.errors import UserError
from fedgela.flower.addresses import HOST, ip_of, is_host, reached_at
from fedgela.flower.control import synchronise
from fedgela.flower.folder import FederationFolder
from fedgela.flower.keys import check_certificate, check_server_key, names_of
from fedgela.flower.processes import check_free, has_dead_child, is_listening, last_words, start, stop

SECONDS_TO_START = 60.0
POLL_SECONDS = 0.5
DATABASE, UNUSABLE = "flower.db", "unusable-flower.db"
OF_DATABASE = (b"sqlite3.", b"Exit Code: 105")  # words of Flower that ends for its database


class UnusableDatabase(UserError):
    pass


class Link:
    """A running SuperLink."""

    def __init__(
        self,
        folder: FederationFolder,
        bind: str = "127.0.0.1",
        note: Callable[[str], None] = lambda text: None,
    ) -> None:
        server = folder.server
        for certificate in ("server.crt", "ca.crt"):
            check_certificate(server / certificate)
        check_server_key(server / "server.key", server / "server.crt")
        self._check_bind(folder, bind)
        self.log = server / "superlink.log"
        folder.listens_at(bind)
        try:
            self._start(folder, bind)
        except UnusableDatabase:
            # Flower makes its database in many steps, and cannot go on where it was killed between them. All
            # that matters is elsewhere: sites are registered anew, and runs go on from their own folders
            for file in sorted(server.glob(f"{DATABASE}*")):
                file.rename(file.with_name(file.name.replace(DATABASE, UNUSABLE, 1)))
            note(f"Flower could not use its database, which is now {server / UNUSABLE}; it makes a new one")
            self._start(folder, bind)
        try:
            synchronise(folder)
        except BaseException:
            self.stop()
            raise

    def _start(self, folder: FederationFolder, bind: str) -> None:
        server = folder.server
        command = ["flower-superlink", "--host", bind, "--port", str(folder.port)]
        command += ["--ssl-ca-certfile", str(server / "ca.crt")]
        command += ["--ssl-certfile", str(server / "server.crt"), "--ssl-keyfile", str(server / "server.key")]
        command += ["--enable-supernode-auth", "--disable-runtime-dependency-installation"]
        command += ["--database", str((server / DATABASE).resolve())]
        with self.log.open("ab") as log:
            since = log.tell()
            self.process = start(command, server / "flwr", log)
        try:
            self._wait(folder, since)
        except BaseException:
            self.stop()
            raise

    @staticmethod
    def _check_bind(folder: FederationFolder, bind: str) -> None:
        """Flower's own processes come in at this address too, and look for it in the certificate."""
        host = reached_at(bind)
        if not is_host(host):
            raise UserError(f"--bind: {HOST}, not {bind!r}")
        names = names_of(folder.server / "server.crt")
        if str(ip_of(host) or host) not in names:
            raise UserError(
                f"--bind {bind}: the server's certificate is not for it, but for {', '.join(names)}; make "
                f"the federation with 'fedgela federation init --host {host}', or listen everywhere (0.0.0.0)"
            )
        check_free(folder.host_here, folder.port)  # a server of this federation may listen elsewhere
        check_free(bind, folder.port)

    def _wait(self, folder: FederationFolder, since: int) -> None:
        end = time.monotonic() + SECONDS_TO_START
        while not is_listening(folder.host_here, folder.port):
            if self.process.poll() is not None or time.monotonic() > end:
                said = self.log.read_bytes()[since:]
                kind = UnusableDatabase if any(words in said for words in OF_DATABASE) else UserError
                raise kind(f"Flower's SuperLink did not start: {last_words(self.log, since)}")
            time.sleep(0.1)

    def wait(self, note: Callable[[str], None]) -> None:
        """Until it ends, or its child that starts runs does, as when it was stopped for too long: it goes on
        without, and no run would ever begin."""
        while self.process.poll() is None:
            if has_dead_child(self.process.pid):
                note(f"Flower's SuperLink starts no runs any more, start it again; its log is {self.log}")
                return
            time.sleep(POLL_SECONDS)
        note(f"Flower's SuperLink has ended (exit code {self.process.returncode}); its log is {self.log}")

    def stop(self) -> None:
        stop(self.process)
