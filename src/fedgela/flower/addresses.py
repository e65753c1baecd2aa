"""Hosts as people name them, and addresses of the form host:port."""

import ipaddress
import re

LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
HOST = "an IP address, or a name of letters, digits, - and . (without a port)"
PORTS = range(1, 65536)


def is_host(text: str) -> bool:
    """Whether it can name one machine in an address and in a certificate."""
    found = ip_of(text)
    if found is not None:
        return not found.is_unspecified and "%" not in text
    labels = text.split(".")
    return len(text) <= 253 and all(map(LABEL.fullmatch, labels)) and not labels[-1].isdigit()


def ip_of(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def is_this_machine(host: str) -> bool:
    found = ip_of(host)
    return host == "localhost" if found is None else found.is_loopback


def address_of(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def host_and_port(address: str) -> tuple[str, int]:
    """ValueError where it is no address."""
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not is_host(host) or not port.isdecimal() or address_of(host, int(port)) != address:
        raise ValueError(f"{address!r} is no address of the form host:port")
    if int(port) not in PORTS:
        raise ValueError(f"{address!r} has no port from 1 to {PORTS[-1]}")
    return host, int(port)


def reached_at(bind: str) -> str:
    """Where this machine reaches what listens at `bind`, which may be all of its addresses."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(bind, bind)
