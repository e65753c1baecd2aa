"""A federation's folder, and what is said of mistakes before anything is started."""

import importlib.util
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

from fedgela import cli
from fedgela.config import read_toml
from fedgela.errors import UserError
from fedgela.flower import require_flower
from fedgela.runs import run
from helpers import tiny


def _change(path: Path, **changes: Any) -> None:
    path.write_text(tomli_w.dumps(read_toml(path) | changes))


def test_without_flower_the_message_says_what_to_install(
    npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'fedgela\[flower\]'"):
        require_flower()
    with pytest.raises(UserError, match="flwr and ray cannot be imported"):
        run(tiny(npz, engine="flower-simulation"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


class TestWithFlower:
    @pytest.fixture(autouse=True)
    def _flower(self) -> None:
        pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedgela[flower]'")

    @pytest.fixture
    def made(self, tmp_path: Path) -> Path:
        from fedgela.flower.folder import init

        return init(tmp_path / "fed", ["north", "east"], "127.0.0.1", 8123, ["cat", "dog"]).path

    def test_a_site_gets_what_it_needs_and_no_more(self, made: Path) -> None:
        from fedgela.flower.folder import FederationFolder, SiteFolder

        assert {path.name for path in (made / "north").iterdir()} == {
            "README.md",
            "ca.crt",
            "key",
            "site.toml",
        }
        assert stat.S_IMODE((made / "north" / "key").stat().st_mode) == 0o600
        assert stat.S_IMODE((made / "server" / "server.key").stat().st_mode) == 0o600
        assert not list(made.rglob("ca.key"))
        site, federation = SiteFolder.read(made / "north"), FederationFolder.read(made)
        assert site.federation == federation.id and site.classes == ("cat", "dog")
        assert (made / "north" / "key").read_bytes() != (made / "east" / "key").read_bytes()

    def test_a_later_site_gets_a_folder_like_the_others(self, tmp_path: Path) -> None:
        from fedgela.flower.folder import FederationFolder, SiteFolder, add_sites, init

        made = init(tmp_path / "fed", ["north"], "fl.example.org", 8123, ["cat", "dog"], proxy_port=443)
        add_sites(FederationFolder.read(made.path), ["west", "south"])
        now = FederationFolder.read(made.path)
        assert now.sites == ("north", "west", "south")
        first, later = (SiteFolder.read(made.path / name) for name in ("north", "west"))
        assert (later.federation, later.server, later.classes) == (
            first.federation,
            first.server,
            first.classes,
        )
        assert (
            later.ca.read_bytes() == first.ca.read_bytes()
            and later.key.read_bytes() != first.key.read_bytes()
        )
        assert stat.S_IMODE(later.path.stat().st_mode) == 0o700 and now.public_key("west").is_file()

    @pytest.mark.parametrize(
        ("names", "why"),
        [
            (["east"], "east is a site already"),
            (["south", "south"], "given twice"),
            (["runs"], "'runs' cannot be a site's name"),
            (["a/b"], "a site's name has"),
            (["kept"], "is there already"),
        ],
    )
    def test_a_name_that_cannot_be_added_changes_nothing(
        self, made: Path, names: list[str], why: str
    ) -> None:
        from fedgela.flower.folder import FederationFolder, add_sites

        (made / "kept").mkdir()
        before = {path: path.read_bytes() for path in made.rglob("*") if path.is_file()}
        with pytest.raises(UserError, match=why):
            add_sites(FederationFolder.read(made), ["west", *names])
        assert {path: path.read_bytes() for path in made.rglob("*") if path.is_file()} == before

    def test_a_site_that_is_removed_can_be_made_anew_with_another_key(self, made: Path) -> None:
        from fedgela.flower.folder import FederationFolder, add_sites, remove_site

        old = FederationFolder.read(made).public_key("east").read_bytes()
        remove_site(FederationFolder.read(made), "east")
        now = FederationFolder.read(made)
        assert now.sites == ("north",) and not now.public_key("east").exists()
        with pytest.raises(UserError, match="has no site east; its sites are north"):
            remove_site(now, "east")
        with pytest.raises(UserError, match="north is its last site"):
            remove_site(now, "north")
        (made / "east").rename(made.parent / "old-east")
        again = add_sites(now, ["east"])
        assert again.sites == ("north", "east") and again.public_key("east").read_bytes() != old

    def test_without_a_server_it_is_said_that_it_has_to_be_told(self, made: Path) -> None:
        from typer.testing import CliRunner

        from fedgela.flower.cli import app

        added = CliRunner().invoke(app, ["add", str(made), "west"])
        assert added.exit_code == 0 and "give each site its own folder, west" in added.output
        removed = CliRunner().invoke(app, ["remove", str(made), "west"])
        assert removed.exit_code == 0 and "its folder stays" in removed.output
        assert all("the server will know once it is started" in said.output for said in (added, removed))

    @pytest.mark.parametrize(
        ("host", "proxy_port", "address"),
        [
            ("127.0.0.1", None, "127.0.0.1:8123"),
            ("127.0.0.1", 9000, "127.0.0.1:9000"),
            ("fl.example.org", None, "fl.example.org:8443"),
            ("fl.example.org", 443, "fl.example.org:443"),
            ("fl.example.org", 0, "fl.example.org:8123"),
        ],
    )
    def test_sites_of_other_machines_come_in_through_nginx(
        self, tmp_path: Path, host: str, proxy_port: int | None, address: str
    ) -> None:
        from fedgela.flower.folder import SiteFolder, init

        made = init(tmp_path / "fed", ["a"], host, 8123, [], proxy_port=proxy_port)
        assert SiteFolder.read(made.path / "a").server == address
        assert f"connects to {address} by itself" in (made.path / "a" / "README.md").read_text()
        text = (made.server / "nginx.conf").read_text()
        assert f"listen {proxy_port or 8443} ssl;" in text
        assert "proxy_pass https://127.0.0.1:8123/v1/fleet/;" in text
        for written in ("server.crt", "server.key", "ca.crt"):
            assert f'"{made.server.resolve()}/{written}"' in text
        assert ".making" not in text and (made.server / "nginx").is_dir()

    def test_what_sites_send_is_for_the_servers_owner_only(self, made: Path) -> None:
        for folder in (made, made / "server", made / "runs", made / "north"):
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700, folder

    def test_what_flowers_processes_write_is_for_the_servers_owner_only(self, tmp_path: Path) -> None:
        from fedgela.flower.processes import start

        with (tmp_path / "log").open("wb") as log:
            assert start(["touch", str(tmp_path / "update")], tmp_path / "home", log).wait(20) == 0
        assert stat.S_IMODE((tmp_path / "update").stat().st_mode) == 0o600

    @pytest.mark.parametrize(
        "host", ["münchen.de", "", "a b", "fl.example.org:9000", "0.0.0.0", "300.1.1.1", "-a.org", "a..org"]
    )
    def test_a_host_that_is_none_is_refused(self, tmp_path: Path, host: str) -> None:
        from fedgela.flower.folder import init

        with pytest.raises(UserError, match="--host: an IP address, or a name") as refused:
            init(tmp_path / "fed", ["a"], host, 8123, [])
        assert repr(host) in str(refused.value)

    @pytest.mark.parametrize(
        ("host", "address"),
        [
            ("10.0.0.7", "10.0.0.7:8123"),
            ("::1", "[::1]:8123"),
            (f"{'a' * 40}.{'b' * 40}", f"{'a' * 40}.{'b' * 40}:8123"),
        ],
    )
    def test_the_certificate_is_for_the_host_and_for_this_machine(
        self, tmp_path: Path, host: str, address: str
    ) -> None:
        from fedgela.flower.folder import SiteFolder, init
        from fedgela.flower.keys import names_of

        made = init(tmp_path / "fed", ["a"], host, 8123, [], proxy_port=0)
        assert set(names_of(made.server / "server.crt")) == {host, "localhost", "127.0.0.1", "::1"}
        assert SiteFolder.read(made.path / "a").server == address

    @pytest.mark.parametrize("address", ["localhost", "", ":8000", "h:99999", "h:0", "::1:8000", "[h]:8000"])
    def test_a_site_with_no_address_of_a_server_is_told_so(self, made: Path, address: str) -> None:
        from fedgela.flower.folder import SITE, SiteFolder

        _change(made / "north" / SITE, server=address)
        with pytest.raises(UserError, match=r"site.toml: server: "):
            SiteFolder.read(made / "north")

    def test_mistakes_with_folders_are_named(self, made: Path, tmp_path: Path) -> None:
        from fedgela.flower import FEDERATION
        from fedgela.flower.folder import FederationFolder, SiteFolder, init

        for call, told in (
            (lambda: init(made, ["a"], "h", 1, []), "is there already"),
            (lambda: init(tmp_path / "x", ["a", "a"], "h", 1, []), "given twice"),
            (lambda: init(tmp_path / "x", ["../a"], "h", 1, []), "letters, digits"),
            (lambda: init(tmp_path / "x", ["a"], "h", 1, ["cat"]), "at least 2 classes"),
            (lambda: init(tmp_path, ["a"], "h", 1, []), "is there already"),
            (lambda: init(tmp_path / "x", [FEDERATION], "h", 1, []), "cannot be a site's name"),
            (lambda: init(tmp_path / "x", ["a"], "h", 9, [], proxy_port=9), "is the server's own port"),
            (lambda: init(tmp_path / "x", ["a"], "h", 8443, []), "is the server's own port"),
            (lambda: init(tmp_path / "x", ["a"], "h", 1, [], days=3_000_000), "--days: from 0 to"),
            (lambda: SiteFolder.read(made), "is the federation's folder"),
            (lambda: FederationFolder.read(made / "north"), "is a site's folder"),
            (lambda: FederationFolder.read(tmp_path), "is no federation's folder"),
        ):
            with pytest.raises(UserError, match=told):
                call()
        assert not (tmp_path / "x").exists()
        _change(made / FEDERATION, port=99999)
        with pytest.raises(UserError, match="port must be from 1 to 65535"):
            FederationFolder.read(made)
        (made / "north" / "key").unlink()
        with pytest.raises(UserError, match="key: is missing"):
            SiteFolder.read(made / "north")

    @pytest.mark.parametrize(
        ("options", "bind"),
        [
            ((), None),
            (("--host", "fl.example.org"), None),
            (("--host", "10.0.0.7", "--proxy-port", "0"), "10.0.0.7"),
            (("--host", "127.0.0.2"), "127.0.0.2"),
            (("--host", "::1"), "::1"),
        ],
    )
    def test_init_says_where_the_server_must_listen_for_sites_without_nginx(
        self,
        tmp_path: Path,
        options: tuple[str, ...],
        bind: str | None,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        folder = tmp_path / "fed"
        monkeypatch.setattr(sys, "argv", ["fedgela", "federation", "init", str(folder), *options])
        with pytest.raises(SystemExit, match="0"):
            cli.main()
        command = f"then: fedgela federation server {folder}" + (f" --bind {bind}" if bind else "")
        assert command in capsys.readouterr().out.splitlines()

    def test_an_expired_certificate_is_named_with_its_day(self, tmp_path: Path) -> None:
        from fedgela.flower.folder import init
        from fedgela.flower.keys import check_certificate

        made = init(tmp_path / "fed", ["a"], "127.0.0.1", 8123, [], days=0)
        with pytest.raises(UserError, match="expired on"):
            check_certificate(made.server / "server.crt")

    def test_the_certificate_is_of_the_host_and_signed_by_the_authority(self, made: Path) -> None:
        if not Path("/usr/bin/openssl").exists():
            pytest.skip("openssl is not installed")
        server = made / "server"
        command = ["openssl", "verify", "-x509_strict", "-verify_ip", "127.0.0.1", "-CAfile"]
        done = subprocess.run(
            [*command, server / "ca.crt", server / "server.crt"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr

    def test_a_server_does_not_start_with_damaged_keys_or_at_an_address_not_in_its_certificate(
        self, made: Path
    ) -> None:
        from fedgela.flower.folder import FederationFolder
        from fedgela.flower.link import Link

        federation = FederationFolder.read(made)
        for bind, told in (
            ("127.0.0.2", "not for it, but for localhost, 127.0.0.1, ::1; make the federation with .*--host"),
            ("fl.example.org", "the server's certificate is not for it"),
            ("", "--bind: an IP address, or a name"),
        ):
            with pytest.raises(UserError, match=told):
                Link(federation, bind)
        for file in ("server.key", "server.crt", "ca.crt"):
            whole = (federation.server / file).read_bytes()
            (federation.server / file).write_bytes(whole[:100])
            with pytest.raises(UserError, match=f"{file}: is damaged, or no "):
                Link(federation)
            (federation.server / file).write_bytes(whole)
        assert not (federation.server / "superlink.log").exists()

    def test_a_taken_port_is_named(self) -> None:
        import socket

        from fedgela.flower.processes import check_free

        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            with pytest.raises(UserError, match=f"port {port} of 127.0.0.1 cannot be used"):
                check_free("127.0.0.1", port)

    def test_a_class_list_may_begin_with_a_mark_of_its_encoding(self, tmp_path: Path) -> None:
        (tmp_path / "classes.txt").write_bytes("\ufeffGrippe\nHusten\n".encode())
        from fedgela.flower.cli import _classes

        assert _classes(str(tmp_path / "classes.txt")) == ["Grippe", "Husten"]

    def test_mistakes_end_in_one_line(
        self,
        made: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        monkeypatch.setattr("fedgela.flower.cli._end_in_order", lambda: None)  # the tests' own process stays
        arrays: dict[str, Any] = {"x": np.zeros((20, 8, 8), np.uint8), "y": np.arange(20) % 2}
        np.savez(tmp_path / "data.npz", **arrays, class_names=np.array(["cat", "zebra"]))
        (tmp_path / "binary").write_bytes(bytes(range(256)))
        (tmp_path / "no names").write_text("\n")
        site, new = ("site", made / "north"), ("init", tmp_path / "new")
        (made / "east" / "key").write_text("damaged")
        for arguments, told in (
            ((*new, "--classes", tmp_path / "binary"), "is no text"),
            ((*new, "--classes", tmp_path / "no names"), "there are no names in"),
            ((*new, "--classes", ","), "there are no names in ','"),
            ((*new, "--classes", "cat,do\u200bg"), r"the class name 'do\u200bg' has characters"),
            (("run", made, "--set", "validation=0.2"), "validation: sites hold their own test samples out"),
            ((*new, "--names", ","), "there must be at least one, not 0"),
            ((*new, "--sites", 2, "--names", "x,y,z"), "there must be as many as --sites, 2, not 3"),
            (("site", made / "east", "--data", tmp_path / "data.npz"), "key: is damaged, or no private key"),
            ((*site, "--data", tmp_path / "data.npz"), "classes unknown to the federation: zebra"),
            ((*site, "--data", tmp_path / "none"), "there is no folder or file"),
            (site, "give this site's data"),
            (("run", made), "no server answers at 127.0.0.1:8123"),
            (("run", made, "--resume"), "there is no run to go on with"),
        ):
            monkeypatch.setattr(sys, "argv", ["fedgela", "federation", *map(str, arguments)])
            with pytest.raises(SystemExit) as ended:
                cli.main()
            said = capsys.readouterr().err
            assert ended.value.code == 2 and told in said, said
            assert len(said.splitlines()) <= 2
