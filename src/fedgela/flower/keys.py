"""A federation's own certificate authority, its server's certificate, and a key for every site."""

import datetime
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedgela.errors import UserError
from fedgela.flower.addresses import ip_of

SERVER = "fedgela server"  # a common name ends at 64 characters; the host is among the alternative names
DAYS = 825  # the longest that common TLS libraries take for a server's certificate


def write_private(path: Path, content: bytes) -> None:
    """Readable by its owner only, from the first byte on."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def make_certificates(folder: Path, host: str, days: int) -> None:
    """ca.crt, server.crt and server.key. The authority's own key is not kept: nobody can sign another."""
    now = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=5)  # clocks differ
    authority = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedgela federation")])
    end = now + datetime.timedelta(days=days)
    ca = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(authority.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, end - datetime.timedelta(days=1)))
        .not_valid_after(end)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority.public_key()), critical=False)
        .add_extension(_usage(sign=True), critical=True)
        .sign(authority, hashes.SHA384())
    )
    key = ec.generate_private_key(ec.SECP384R1())
    server = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, SERVER)]))
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, end - datetime.timedelta(days=1)))
        .not_valid_after(end)
        .add_extension(x509.SubjectAlternativeName(_names(host)), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False
        )
        .add_extension(_usage(sign=False), critical=True)
        .sign(authority, hashes.SHA384())
    )
    (folder / "ca.crt").write_bytes(ca.public_bytes(serialization.Encoding.PEM))
    (folder / "server.crt").write_bytes(server.public_bytes(serialization.Encoding.PEM))
    write_private(
        folder / "server.key",
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
    )


def make_key(private: Path, public: Path) -> None:
    """A site's key: its private half for the site, its public half for the server."""
    key = ec.generate_private_key(ec.SECP384R1())
    write_private(
        private,
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
        ),
    )
    public.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    )


def public_key(path: Path) -> bytes:
    """A site's public key in the form in which Flower keeps it."""
    key = _read(path, "public key", serialization.load_ssh_public_key)
    pem: bytes = key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return pem


def check_site_key(path: Path) -> None:
    """A UserError where it is no private key of a site."""
    _read(path, "private key", lambda content: serialization.load_ssh_private_key(content, None))


def check_server_key(path: Path, certificate: Path) -> None:
    """A UserError where it is not the certificate's private key."""
    key = _read(path, "private key", lambda content: serialization.load_pem_private_key(content, None))
    if key.public_key() != _read_certificate(certificate).public_key():
        raise UserError(f"{path}: is not the key of {certificate}")


def check_certificate(path: Path) -> None:
    """A UserError where the certificate is none, or its time is over."""
    end = _read_certificate(path).not_valid_after_utc
    if end < datetime.datetime.now(datetime.UTC):
        raise UserError(
            f"{path}: this certificate expired on {end:%Y-%m-%d}; make the federation anew with "
            "'fedgela federation init', and give the sites their new folders"
        )


def names_of(path: Path) -> list[str]:
    """The hosts that a certificate is for."""
    names = _read_certificate(path).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(name) for kind in (x509.DNSName, x509.IPAddress) for name in names.get_values_for_type(kind)]


def _read_certificate(path: Path) -> x509.Certificate:
    return _read(path, "certificate", x509.load_pem_x509_certificate)


def _read(path: Path, what: str, load: Callable[[bytes], Any]) -> Any:
    try:
        return load(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path}: the {what} cannot be read ({error.strerror})") from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise UserError(f"{path}: is damaged, or no {what}") from None


def _names(host: str) -> list[x509.GeneralName]:
    """The host, and this machine for commands on the server itself."""
    names: list[x509.GeneralName] = []
    for name in dict.fromkeys((host, "localhost", "127.0.0.1", "::1")):
        found = ip_of(name)
        names.append(x509.DNSName(name) if found is None else x509.IPAddress(found))
    return names


def _usage(sign: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=not sign,
        key_cert_sign=sign,
        crl_sign=sign,
        encipher_only=False,
        decipher_only=False,
    )
