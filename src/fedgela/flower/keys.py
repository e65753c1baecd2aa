"""A federation's own certificate authority, its server's certificate, and a key for every site."""

import datetime
import ipaddress
import os
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedgela.errors import UserError

DAYS = 825  # the longest that common TLS libraries take for a server's certificate


def write_private(path: Path, content: bytes) -> None:
    """Readable by its owner only, from the first byte on."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def make_certificates(folder: Path, host: str, days: int = DAYS) -> None:
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
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)]))
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


def check_certificate(path: Path) -> None:
    """A UserError where the certificate is none, or its time is over."""
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
    except FileNotFoundError:
        raise UserError(f"{path}: there is no certificate") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: is no readable certificate ({error})") from None
    end = certificate.not_valid_after_utc
    if end < datetime.datetime.now(datetime.UTC):
        raise UserError(
            f"{path}: this certificate expired on {end:%Y-%m-%d}; make the federation anew with "
            "'fedgela federation init', and give the sites their new folders"
        )


def _names(host: str) -> list[x509.GeneralName]:
    """The host, and this machine for commands on the server itself."""
    names: list[x509.GeneralName] = []
    for name in dict.fromkeys((host, "localhost", "127.0.0.1")):
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(name)))
        except ValueError:
            names.append(x509.DNSName(name))
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
