"""Certificates for the webhooks where no cert-manager makes them. Pure but for keys and dates.

A certificate authority of our own signs one server certificate; both live in one Secret, which all
replicas share, and the authority goes into the webhooks' `caBundle`.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID = datetime.timedelta(days=365)
RENEW_BEFORE = datetime.timedelta(days=60)
_SKEW = datetime.timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM texts, named as in a Secret of type kubernetes.io/tls."""

    authority: bytes
    certificate: bytes
    key: bytes


def make_certificates(names: list[str], now: datetime.datetime) -> Certificates:
    """An authority, and a certificate for a server of these DNS names, valid for a year."""
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


def beside(authority: bytes, before: bytes) -> bytes:
    """An authority with the one before it: replicas show the older certificate a little longer."""
    try:
        [older, *_] = x509.load_pem_x509_certificates(before)
    except ValueError:
        return authority
    return authority + older.public_bytes(serialization.Encoding.PEM)


def is_worn(certificate: bytes, names: list[str], now: datetime.datetime) -> bool:
    """Whether a certificate ends soon, is for other names, or is none."""
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
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + VALID)
    )
