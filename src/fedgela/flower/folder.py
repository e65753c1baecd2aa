"""A federation's folder: made once with `fedgela federation init`, then each site gets its own part of it.

federation.toml      who takes part, where the server is, the class list if it is agreed on
server/              certificates, public keys, nginx.conf, Flower's database with what sites send: never
                     leaves the server
site-1/ ...          what a site's administrator gets: address, the authority's certificate, a private key
runs/                what `fedgela federation run` writes
"""

import re
import secrets
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import tomli_w

import fedgela
from fedgela.config import read_toml
from fedgela.errors import UserError
from fedgela.files import write_atomically
from fedgela.flower import FEDERATION, nginx
from fedgela.flower.addresses import (
    HOST,
    PORTS,
    address_of,
    host_and_port,
    is_host,
    is_this_machine,
    reached_at,
)
from fedgela.flower.keys import DAYS, make_certificates, make_key

SITE = "site.toml"
LISTENS = "listens-at"  # in the server's folder: where the server does, or did last
PROXY_PORT = 8443
MOST_DAYS = 36500  # dates end with the year 9999


@dataclass(frozen=True)
class FederationFolder:
    path: Path
    id: str
    host: str  # by which sites reach the server
    port: int
    entrance: str  # host:port at which sites come in: the server's, or nginx's
    sites: tuple[str, ...]
    classes: tuple[str, ...]  # empty: collected from the sites when a run begins

    @property
    def server(self) -> Path:
        return self.path / "server"

    @property
    def runs(self) -> Path:
        return self.path / "runs"

    def public_key(self, site: str) -> Path:
        return self.server / "keys" / f"{site}.pub"

    def listens_at(self, bind: str) -> None:
        """Keep where the server listens, for commands on its machine, which are other processes."""
        write_atomically(self.server / LISTENS, bind)

    @property
    def host_here(self) -> str:
        """By which the server's own machine reaches it."""
        path = self.server / LISTENS
        return reached_at(path.read_text().strip()) if path.exists() else "127.0.0.1"

    @property
    def address(self) -> str:
        """For commands on the server itself."""
        return address_of(self.host_here, self.port)

    @classmethod
    def read(cls, path: Path) -> "FederationFolder":
        if (path / SITE).exists():
            raise UserError(f"{path}: is a site's folder; the server needs the federation's")
        table = _read(path / FEDERATION, f"{path}: is no federation's folder (no {FEDERATION})")
        kinds = {"id": str, "host": str, "port": int, "entrance": str, "sites": list, "classes": list}
        fields = _fields(table, path / FEDERATION, **kinds)
        if fields["port"] not in PORTS:
            raise UserError(f"{path / FEDERATION}: port must be from 1 to {PORTS[-1]}, not {fields['port']}")
        return cls(path, **fields)

    def write(self, path: Path) -> None:
        """At `path`, which may be another than its own as long as it is being made."""
        table = {key: value for key, value in asdict(self).items() if key != "path"}
        write_atomically(path / FEDERATION, tomli_w.dumps(_plain(table) | {"fedgela": fedgela.__version__}))


@dataclass(frozen=True)
class SiteFolder:
    path: Path
    federation: str  # its id
    name: str
    server: str  # host:port
    classes: tuple[str, ...]

    @property
    def ca(self) -> Path:
        return self.path / "ca.crt"

    @property
    def key(self) -> Path:
        return self.path / "key"

    @property
    def state(self) -> Path:
        return self.path / "state"

    @classmethod
    def read(cls, path: Path) -> "SiteFolder":
        if (path / FEDERATION).exists():
            raise UserError(f"{path}: is the federation's folder; give a site's, which lies in it")
        table = _read(path / SITE, f"{path}: is no site's folder (no {SITE})")
        site = cls(path, **_fields(table, path / SITE, federation=str, name=str, server=str, classes=list))
        try:
            host_and_port(site.server)
        except ValueError as error:
            raise UserError(f"{path / SITE}: server: {error}") from None
        for needed in (site.ca, site.key):
            if not needed.is_file():
                raise UserError(f"{needed}: is missing; ask the server's administrator for the folder again")
        return site


def _read(path: Path, missing: str) -> dict[str, Any]:
    if not path.is_file():
        raise UserError(missing)
    return read_toml(path)


def _fields(table: dict[str, Any], path: Path, **kinds: type) -> dict[str, Any]:
    found = {}
    for key, kind in kinds.items():
        value = table.get(key, [] if kind is list else None)
        if value is None or not isinstance(value, kind):
            raise UserError(f"{path}: {key} must be a {kind.__name__}, not {value!r}")
        found[key] = tuple(str(item) for item in value) if isinstance(value, list) else value
    return found


def init(
    path: Path,
    sites: list[str],
    host: str,
    port: int,
    classes: list[str],
    days: int = DAYS,
    proxy_port: int | None = None,
) -> FederationFolder:
    """Make a federation's folder, whole or not at all. Sites come in through nginx at `proxy_port`, or
    directly where it is 0; by default directly only where they are on the server's own machine."""
    if proxy_port is None:
        proxy_port = 0 if is_this_machine(host) else PROXY_PORT
    _check_server(host, port, proxy_port, days)
    if path.exists():
        raise UserError(f"{path}: is there already; a federation is made in a new folder")
    _check_names(sites, classes)
    making = path.with_name(f".{path.name}.making")
    shutil.rmtree(making, ignore_errors=True)
    keys = making / "server" / "keys"
    for folder in (making, keys.parent, keys, making / "runs"):
        folder.mkdir(parents=True, mode=0o700)  # parents that are missing get no such mode
    entrance = address_of(host, proxy_port or port)
    made = FederationFolder(path, secrets.token_hex(8), host, port, entrance, tuple(sites), tuple(classes))
    make_certificates(making / "server", host, days)
    conf = nginx.configuration(path / "server", host, port, proxy_port or PROXY_PORT)
    write_atomically(making / "server" / nginx.CONFIGURATION, conf)
    (making / "server" / nginx.FOLDER).mkdir()
    for name in sites:
        _make_site(making / name, made, name, keys / f"{name}.pub")
    made.write(making)
    making.rename(path)
    return made


def add_sites(federation: FederationFolder, names: list[str]) -> FederationFolder:
    """The federation with further sites, whose folders are made; runs that begin from now on have them."""
    _check_names(names, [])
    for name in names:
        if name in federation.sites:
            raise UserError(f"{federation.path}: {name} is a site already; for another key, remove it first")
        if (federation.path / name).exists():
            raise UserError(f"{federation.path / name}: is there already; move it away, or take another name")
    for name in names:
        making = federation.path / f".{name}.making"
        shutil.rmtree(making, ignore_errors=True)
        _make_site(making, federation, name, federation.public_key(name))
        making.rename(federation.path / name)
    return _with_sites(federation, (*federation.sites, *names))


def remove_site(federation: FederationFolder, name: str) -> FederationFolder:
    """The federation without a site, whose key is not let in any more once the server knows it."""
    if name not in federation.sites:
        raise UserError(f"{federation.path}: has no site {name}; its sites are {', '.join(federation.sites)}")
    if len(federation.sites) == 1:
        raise UserError(f"{federation.path}: {name} is its last site")
    without = _with_sites(federation, tuple(site for site in federation.sites if site != name))
    federation.public_key(name).unlink(missing_ok=True)
    return without


def _with_sites(federation: FederationFolder, sites: tuple[str, ...]) -> FederationFolder:
    changed = replace(federation, sites=sites)
    changed.write(federation.path)
    return changed


def _check_server(host: str, port: int, proxy_port: int, days: int) -> None:
    if not is_host(host):
        raise UserError(f"--host: {HOST}, not {host!r}")
    if not 0 <= days <= MOST_DAYS:
        raise UserError(f"--days: from 0 to {MOST_DAYS}, not {days}")
    if proxy_port == port:
        raise UserError(f"--proxy-port: {port} is the server's own port; choose another for nginx")


def _check_names(sites: list[str], classes: list[str]) -> None:
    for name in sites:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", name):
            raise UserError(
                "a site's name has up to 63 ASCII letters, digits, . _ and -, and begins with a letter or a "
                f"digit, not {name!r}"
            )
        if name in (FEDERATION, "server", "runs"):
            raise UserError(f"{name!r} cannot be a site's name: the federation itself keeps its own there")
    named: tuple[tuple[str, list[str]], ...] = (("site", sites), ("class", classes))
    for what, names in named:
        if len(set(names)) < len(names):
            raise UserError(f"a {what}'s name is given twice: {', '.join(names)}")
    hidden = [name for name in classes if not name.isprintable()]
    if hidden:
        raise UserError(f"the class name {hidden[0]!a} has characters that no screen shows")
    if len(classes) == 1:
        raise UserError("there must be at least 2 classes")


def _make_site(folder: Path, made: FederationFolder, name: str, public: Path) -> None:
    folder.mkdir(mode=0o700)
    shutil.copy(public.parent.parent / "ca.crt", folder / "ca.crt")
    make_key(folder / "key", public)
    table = {
        "federation": made.id,
        "name": name,
        "server": made.entrance,
        "classes": made.classes,
        "fedgela": fedgela.__version__,
    }
    write_atomically(folder / SITE, tomli_w.dumps(_plain(table)))
    write_atomically(folder / "README.md", _readme(name, made.classes, made.entrance))


def _plain(table: dict[str, Any]) -> dict[str, Any]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in table.items()}


def _readme(name: str, classes: tuple[str, ...], address: str) -> str:
    about_classes = (
        f"The federation's classes are: {', '.join(classes)}. Name yours the same."
        if classes
        else "The sites' class names are collected when a run begins, so that the server is told which "
        "classes you have: name the same class alike everywhere."
    )
    return f"""# {name}: a site of a fedgela federation

Your data stays on your machine. Keep this folder to yourself: the file `key` lets whoever has it take part as
{name}. Personal models are kept here too, in `state/`.

    pip install 'fedgela[flower]=={fedgela.__version__}'
    fedgela federation site . --data PATH

PATH is a folder of images (CLASS/*.jpg), an .npz, a .parquet or a .csv file. {about_classes}

The site connects to {address} by itself and opens no port to the network; let it reach that
address. It can be stopped (Ctrl-C) and started again at any time, also in the middle of a run.

What leaves your machine, in a run of FedGELA: the weights of the shared body; the number of your training
and of your test samples; sums over all of your samples (of the loss, of right answers, of pixel values and
their squares by colour channel). No samples, no file names, no class counts, no personal model. Other
methods may share more; the run says so. With `--share-classes` the site also tells how many samples of each
class it has, and its accuracy, loss and confusion by class. The server's operator chooses the code that runs
here: take part only with operators whom you trust (docs/threat-model.md).
"""
