"""Certificates that a server makes for itself, and the TLS contexts that serve them."""

import datetime
import ssl
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALIDITY: Final = datetime.timedelta(days=365)
_CLOCK_SKEW: Final = datetime.timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Certificates:
    """In PEM format."""

    authority: bytes
    certificate: bytes
    key: bytes


def make_certificates(names: list[str], now: datetime.datetime) -> Certificates:
    """A server certificate for these DNS names, its own authority, valid for a year.

    By the key's identifiers clients tell two of one name apart during a renewal.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    public = key.public_key()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + VALIDITY)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(n) for n in names]), False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(public), critical=False)
        .sign(key, hashes.SHA256())
    )
    certificate = made.public_bytes(serialization.Encoding.PEM)
    return Certificates(
        authority=certificate,
        certificate=certificate,
        key=key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )


def make_context(certificates: Certificates) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_certificates(context, certificates)
    return context


def load_certificates(context: ssl.SSLContext, certificates: Certificates) -> None:
    """Use these for new connections. Raises ssl.SSLError if key and certificate do not match.

    Through temporary files, since the ssl module cannot read certificates from memory.
    """
    with tempfile.TemporaryDirectory() as folder:
        certificate, key = Path(folder) / "tls.crt", Path(folder) / "tls.key"
        certificate.write_bytes(certificates.certificate)
        key.touch(mode=0o600)
        key.write_bytes(certificates.key)
        context.load_cert_chain(certificate, key)
