"""A certificate authority for the cluster: certificates of servers and users, kubeconfig files."""

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


@dataclass(frozen=True, slots=True)
class KeyPair:
    """Paths of a certificate and its key."""

    certificate: Path
    key: Path


def write_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """A new private key; its public key is written beside it, with the suffix `.pub`."""
    key = ec.generate_private_key(ec.SECP256R1())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    path.chmod(0o600)
    path.with_suffix(".pub").write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    return key


def _name(user: str, group: str = "") -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.COMMON_NAME, user)]
    if group:
        attributes.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, group))
    return x509.Name(attributes)


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


class Authority:
    """Signs certificates that are valid for a day; their files are in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = write_key(folder / "ca.key")
        self._subject = _name("pilotlight-tests")
        self.certificate = folder / "ca.crt"
        unsigned = self._unsigned(self._subject, self._key).add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )
        self._write(self.certificate, unsigned)

    def server(self, name: str, *, alternatives: Sequence[str]) -> KeyPair:
        """A certificate for a server with these names and addresses."""
        names = x509.SubjectAlternativeName([_alternative(text) for text in alternatives])
        return self._issue(name, _name(name), ExtendedKeyUsageOID.SERVER_AUTH, names)

    def user(self, user: str, *, group: str = "") -> KeyPair:
        """A certificate by which the API server authenticates this user and group."""
        file_name = user.replace(":", "_")
        return self._issue(file_name, _name(user, group), ExtendedKeyUsageOID.CLIENT_AUTH)

    def kubeconfig(self, user: str, *, url: str, group: str = "") -> Path:
        """A kubeconfig file of a user, with a client certificate."""
        pair = self.user(user, group=group)
        path = pair.certificate.with_suffix(".kubeconfig")
        credentials = {"client-certificate": str(pair.certificate), "client-key": str(pair.key)}
        return write_kubeconfig(path, url=url, authority=self.certificate, credentials=credentials)

    def _issue(
        self,
        file_name: str,
        subject: x509.Name,
        usage: x509.ObjectIdentifier,
        names: x509.SubjectAlternativeName | None = None,
    ) -> KeyPair:
        pair = KeyPair(self._folder / f"{file_name}.crt", self._folder / f"{file_name}.key")
        unsigned = self._unsigned(subject, write_key(pair.key)).add_extension(
            x509.ExtendedKeyUsage([usage]), critical=False
        )
        if names is not None:
            unsigned = unsigned.add_extension(names, critical=False)
        self._write(pair.certificate, unsigned)
        return pair

    def _unsigned(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=1))
        )

    def _write(self, path: Path, unsigned: x509.CertificateBuilder) -> None:
        signed = unsigned.sign(self._key, hashes.SHA256())
        path.write_bytes(signed.public_bytes(serialization.Encoding.PEM))


def write_kubeconfig(path: Path, *, url: str, authority: Path, credentials: dict[str, str]) -> Path:
    """A kubeconfig file with one cluster, one user and one context."""
    name = "tests"
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "clusters": [
            {"name": name, "cluster": {"server": url, "certificate-authority": str(authority)}}
        ],
        "users": [{"name": name, "user": credentials}],
    }
    path.write_text(yaml.safe_dump(content))
    path.chmod(0o600)
    return path
