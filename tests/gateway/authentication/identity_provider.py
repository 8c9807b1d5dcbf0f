"""An identity provider for tests: signs tokens and publishes its keys."""

import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jwt
import yaml
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from tests.http_server import Handler, http_server

ISSUER = "https://id.example.com"
AUDIENCE = "pilotlight"
DAY_S = 86_400
"""Longer than any test run, so that no token is rejected by its age."""

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey


def new_key(algorithm: str = "ES256") -> PrivateKey:
    if algorithm == "ES256":
        return ec.generate_private_key(ec.SECP256R1())
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def public_jwk(key: PrivateKey, key_id: str | None, **more: str) -> dict[str, Any]:
    """The entry of a key in a JWKS."""
    public = key.public_key()
    if isinstance(public, rsa.RSAPublicKey):
        entry = RSAAlgorithm.to_jwk(public, as_dict=True)
    else:
        entry = ECAlgorithm.to_jwk(public, as_dict=True)
    return {**entry, **({"kid": key_id} if key_id is not None else {}), **more}


def key_set(*entries: dict[str, Any]) -> bytes:
    """A JWKS document."""
    return json.dumps({"keys": entries}).encode()


@dataclass
class Issuer:
    """Keys by name, and tokens signed with them."""

    keys: dict[str, PrivateKey] = field(default_factory=dict)

    @property
    def document(self) -> bytes:
        return key_set(*(public_jwk(key, name) for name, key in self.keys.items()))

    def token(
        self,
        key: str,
        *,
        algorithm: str = "ES256",
        headers: dict[str, Any] | None = None,
        **claims: Any,
    ) -> str:
        """A token valid for a day, with these claims replaced; None removes a claim."""
        usual = {"iss": ISSUER, "aud": AUDIENCE, "exp": int(time.time()) + DAY_S}
        content = {name: value for name, value in {**usual, **claims}.items() if value is not None}
        return jwt.encode(content, self.keys[key], algorithm, {"kid": key, **(headers or {})})


@contextlib.contextmanager
def published(issuer: Issuer) -> Iterator[str]:
    """The URL of an issuer's keys, served while the block runs."""

    class Keys(Handler):
        def do_GET(self) -> None:
            self.answer(200, issuer.document)

    with http_server(Keys) as address:
        yield f"http://{address}/keys"


def trust(folder: Path, tenant: str, jwks: str, **more: Any) -> None:
    """Add the issuer to a tenant's trusted issuers."""
    entry = {"issuer": ISSUER, "audience": AUDIENCE, "jwks": jwks, **more}
    (folder / tenant).write_text(yaml.safe_dump([entry]))
