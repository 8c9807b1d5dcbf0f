"""Verification of tokens, without a gateway."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import time
from typing import TYPE_CHECKING, Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from hypothesis import given
from hypothesis import strategies as st

from gateway.authentication.tenant_tokens import (
    MAX_CACHED,
    TenantTokens,
    VerifiedToken,
    looks_like_token,
)
from gateway.errors import Forbidden, InvalidToken
from tests.gateway.authentication.identity_provider import DAY_S, ISSUER, Issuer, new_key, trust

if TYPE_CHECKING:
    from pathlib import Path

RED = Issuer({"elliptic": new_key(), "rsa": new_key("RS256")})
STRANGER = Issuer({"elliptic": new_key()})
NOW_S = int(time.time())


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> TenantTokens:
    folder = tmp_path_factory.mktemp("issuers")
    keys = tmp_path_factory.mktemp("keys") / "keys.json"
    keys.write_bytes(RED.document)
    trust(folder, "red", str(keys))
    trust(folder, "blue", str(keys), audience="blue-only")
    trust(folder, "green", str(keys), claims={"groups": "team-green"})
    return TenantTokens(folder, leeway_s=30.0)


def check(tokens: TenantTokens, namespace: str, token: str | bytes) -> None:
    asyncio.run(tokens.check(namespace, token.encode() if isinstance(token, str) else token))


@pytest.mark.parametrize(
    ("key", "algorithm"), [("elliptic", "ES256"), ("rsa", "RS256")], ids=["ES256", "RS256"]
)
def test_a_signed_token_is_valid_for_its_tenant_only(
    tokens: TenantTokens, key: str, algorithm: str
) -> None:
    token = RED.token(key, algorithm=algorithm)
    check(tokens, "red", token)
    check(tokens, "red", token)
    for other in ("blue", "green", "absent", "_operator"):
        with pytest.raises(Forbidden):
            check(tokens, other, token)


def test_a_token_is_valid_for_several_tenants_by_audience_and_claims(tokens: TenantTokens) -> None:
    both = RED.token("elliptic", aud=["pilotlight", "blue-only"], groups=["team-green"])
    for tenant in ("red", "blue", "green"):
        check(tokens, tenant, both)


def _altered(token: str, **header: Any) -> str:
    rest = token.partition(".")[2]
    return f"{_part(header)}.{rest}"


def _part(content: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(content).encode()).rstrip(b"=").decode()


def _confused() -> str:
    """Signed with the public key's text as a shared secret, as in CVE-2016-10555."""
    secret = RED.keys["rsa"].public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )  # fmt: skip
    claims = {"iss": ISSUER, "aud": "pilotlight", "exp": NOW_S + DAY_S}
    message = f"{_part({'alg': 'HS256', 'typ': 'JWT', 'kid': 'rsa'})}.{_part(claims)}"
    algorithm = jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256)
    signature = algorithm.sign(message.encode(), secret)
    return f"{message}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"


GOOD = RED.token("elliptic")


@pytest.mark.parametrize(
    "token",
    [
        pytest.param(STRANGER.token("elliptic"), id="signature-of-another-issuer"),
        pytest.param(RED.token("elliptic", iss="https://other.example.com"), id="issuer"),
        pytest.param(RED.token("elliptic", iss=None), id="no-issuer"),
        pytest.param(RED.token("elliptic", aud="other"), id="audience"),
        pytest.param(RED.token("elliptic", aud=None), id="no-audience"),
        pytest.param(RED.token("elliptic", exp=NOW_S - 600), id="expired"),
        pytest.param(RED.token("elliptic", exp=None), id="without-an-end"),
        pytest.param(RED.token("elliptic", exp="soon"), id="odd-end"),
        pytest.param(RED.token("elliptic", exp=10**400), id="endless"),
        pytest.param(RED.token("elliptic", nbf=NOW_S + DAY_S), id="not-yet"),
        pytest.param(RED.token("elliptic", headers={"kid": "absent"}), id="unknown-key"),
        pytest.param(RED.token("elliptic", headers={"crit": ["x"], "x": 1}), id="extension"),
        pytest.param(_altered(GOOD, alg="none", kid="elliptic"), id="none"),
        pytest.param(_altered(GOOD, alg="nOnE", kid="elliptic"), id="none-otherwise"),
        pytest.param(_altered(GOOD, alg="none").rpartition(".")[0] + ".", id="unsigned"),
        pytest.param(_altered(GOOD, alg="RS256", kid="elliptic"), id="other-algorithm"),
        pytest.param(_altered(GOOD, alg="ES256", kid="rsa"), id="other-kind-of-key"),
        pytest.param(_altered(GOOD, alg="HS256", kid="elliptic"), id="shared-secret"),
        pytest.param(_altered(GOOD, alg=["ES256"], kid="elliptic"), id="odd-algorithm"),
        pytest.param(_altered(GOOD, alg="ES256", kid=["elliptic"]), id="odd-key"),
        pytest.param(_confused(), id="algorithm-confusion"),
        pytest.param(GOOD[:-4] + "AAAA", id="altered-signature"),
        pytest.param("a.b.c", id="garbage"),
        pytest.param("..", id="nothing"),
        pytest.param("é.é.é".encode("latin-1"), id="not-ascii"),
        pytest.param("a" * 9000 + ".b.c", id="too-long"),
        pytest.param(f"{_part({'alg': 'ES256'})}.{_part([])}.x", id="claims-are-a-list"),
        pytest.param(
            f"{_part({'alg': 'ES256'})}."
            f"{base64.urlsafe_b64encode(b'[' * 4000).rstrip(b'=').decode()}.x",
            id="nested",
        ),
    ],
)
def test_rejects_an_invalid_token(tokens: TenantTokens, token: str | bytes) -> None:
    with pytest.raises(InvalidToken):
        check(tokens, "red", token)


@pytest.mark.parametrize(
    "claims",
    [
        pytest.param({"exp": NOW_S - 5}, id="just-expired"),
        pytest.param({"nbf": NOW_S + 15}, id="almost"),
    ],
)
def test_accepts_small_clock_differences(tmp_path: Path, claims: dict[str, Any]) -> None:
    keys = tmp_path / "keys.json"
    keys.write_bytes(RED.document)
    folder = tmp_path / "issuers"
    folder.mkdir()
    trust(folder, "red", str(keys))
    check(TenantTokens(folder, leeway_s=DAY_S), "red", RED.token("elliptic", **claims))


@given(st.binary(max_size=60), st.binary(max_size=60), st.binary(max_size=20))
def test_rejects_random_bytes(
    tokens: TenantTokens, header: bytes, claims: bytes, signature: bytes
) -> None:
    encoded = [base64.urlsafe_b64encode(part).rstrip(b"=") for part in (header, claims, signature)]
    for token in (b".".join(encoded), b".".join((header, claims, signature))):
        with pytest.raises(InvalidToken):
            check(tokens, "red", token)


def test_a_cached_token_expires(tokens: TenantTokens) -> None:
    unreadable = b"a.b.c"
    digest = hashlib.sha256(unreadable).digest()
    tokens._add_to_cache(digest, VerifiedToken(frozenset(("red",)), time.time() + 600))
    check(tokens, "red", unreadable)
    tokens._add_to_cache(digest, VerifiedToken(frozenset(("red",)), time.time() - 1))
    with pytest.raises(InvalidToken):
        check(tokens, "red", unreadable)


def test_a_token_is_verified_once(tokens: TenantTokens) -> None:
    token = RED.token("elliptic", jti="once").encode()
    check(tokens, "red", GOOD)  # reads the keys
    check(tokens, "red", token)
    seen = tokens._cache[hashlib.sha256(token).digest()]
    check(tokens, "red", token)
    assert tokens._cache[hashlib.sha256(token).digest()] is seen


def test_the_cache_is_bounded(tokens: TenantTokens) -> None:
    token = GOOD.encode()
    check(tokens, "red", token)
    [verified, *_] = tokens._cache.values()
    for number in range(MAX_CACHED + 10):
        tokens._add_to_cache(b"%d" % number, verified)
    assert len(tokens._cache) == MAX_CACHED
    tokens._clear_cache()


@pytest.mark.parametrize(("text", "is_one"), [(b"a.b.c", True), (b"abc", False), (b"a.b", False)])
def test_distinguishes_tokens_from_keys(text: bytes, is_one: bool) -> None:
    assert looks_like_token(text) is is_one
