"""Self-signed certificates for the webhooks, for clusters without cert-manager.

A new certificate authority signs one server certificate. Both are kept in one Secret that all
replicas share; the authority is copied to the webhooks' `caBundle`.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALIDITY = datetime.timedelta(days=365)
RENEW_BEFORE = datetime.timedelta(days=60)
_CLOCK_SKEW = datetime.timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Certificates:
    """In PEM format."""

    authority: bytes
    certificate: bytes
    key: bytes


def make_certificates(names: list[str], now: datetime.datetime) -> Certificates:
    """An authority, and a server certificate for these DNS names; both valid for a year."""
    authority_key = ec.generate_private_key(ec.SECP256R1())
    subject = _name("pilotlight-webhook-ca")
    authority = (
        _builder(subject, subject, authority_key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(
            x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False
        )
        .sign(authority_key, hashes.SHA256())
    )
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        _builder(_name(names[0]), subject, key.public_key(), now)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(n) for n in names]), False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), False
        )
        .sign(authority_key, hashes.SHA256())
    )
    return Certificates(
        authority=authority.public_bytes(serialization.Encoding.PEM),
        certificate=certificate.public_bytes(serialization.Encoding.PEM),
        key=key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )


def authority_bundle(authority: bytes, previous: bytes) -> bytes:
    """A new authority and its predecessor: replicas serve the old certificate a little longer."""
    try:
        [old, *_] = x509.load_pem_x509_certificates(previous)
    except ValueError:
        return authority
    return authority + old.public_bytes(serialization.Encoding.PEM)


def needs_renewal(certificate: bytes, names: list[str], now: datetime.datetime) -> bool:
    """True if the certificate expires soon, lacks one of the names, or cannot be read."""
    try:
        found = x509.load_pem_x509_certificate(certificate)
        listed = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound):
        return True
    if not set(names) <= set(listed.get_values_for_type(x509.DNSName)):
        return True
    return found.not_valid_after_utc - now < RENEW_BEFORE


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    now: datetime.datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + VALIDITY)
    )
