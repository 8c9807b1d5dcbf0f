"""Trusted issuers and the verification of tokens, without a gateway."""

import asyncio
import base64
import hashlib
import json
import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from hypothesis import given
from hypothesis import strategies as st

from gateway.authentication.access import MAX_CACHED, TenantTokens, VerifiedToken, looks_like_token
from gateway.authentication.issuers import ALGORITHMS, TrustedIssuer, read_issuers
from gateway.errors import Forbidden, InvalidToken
from tests.gateway.asynchronous import run_async
from tests.gateway.authentication.identity_provider import DAY_S, ISSUER, Issuer, new_key, trust
from tests.gateway.end_to_end.test_freed_requests import no_garbage

RED = Issuer({"elliptic": new_key(), "rsa": new_key("RS256")})
STRANGER = Issuer({"elliptic": new_key()})
NOW_S = int(time.time())

ENTRY = (
    "- {issuer: https://id.example.com, audience: pilotlight, jwks: https://id.example.com/keys}\n"
)


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> TenantTokens:
    folder = tmp_path_factory.mktemp("issuers")
    keys = tmp_path_factory.mktemp("keys") / "keys.json"
    keys.write_bytes(RED.document)
    trust(folder, "red", str(keys))
    trust(folder, "blue", str(keys), audience="blue-only")
    trust(folder, "green", str(keys), claims={"groups": "team-green"})
    return TenantTokens(lambda: read_issuers(folder), leeway_s=30.0)


def check(tokens: TenantTokens, namespace: str, token: str | bytes) -> None:
    given = token.encode() if isinstance(token, str) else token
    if namespace not in asyncio.run(tokens.namespaces_of(given)):
        raise Forbidden("of another tenant")


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
    secret = (
        RED.keys["rsa"]
        .public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
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


@run_async
async def test_a_rejected_token_is_freed(tokens: TenantTokens) -> None:
    with no_garbage(), pytest.raises(InvalidToken):
        await tokens.namespaces_of(STRANGER.token("elliptic").encode())


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
    check(
        TenantTokens(lambda: read_issuers(folder), leeway_s=DAY_S),
        "red",
        RED.token("elliptic", **claims),
    )


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


def test_issuers_that_are_read_again_as_they_were_keep_verified_tokens(tmp_path: Path) -> None:
    trust(tmp_path, "blue", "/keys/z.json")
    trust(tmp_path, "red", "/keys/a.json")
    tokens = TenantTokens(lambda: read_issuers(tmp_path))
    tokens._add_to_cache(b"digest", VerifiedToken(frozenset(("red",)), NOW_S))
    tokens._set_issuers(read_issuers(tmp_path))
    assert b"digest" in tokens._cache


def test_the_cache_is_bounded(tokens: TenantTokens) -> None:
    token = GOOD.encode()
    for _ in range(2):  # the first may read the keys, which clears the cache
        check(tokens, "red", token)
    [verified, *_] = tokens._cache.values()
    for number in range(MAX_CACHED + 10):
        tokens._add_to_cache(b"%d" % number, verified)
    assert len(tokens._cache) == MAX_CACHED
    tokens._clear_cache()


@pytest.mark.parametrize(("text", "is_one"), [(b"a.b.c", True), (b"abc", False), (b"a.b", False)])
def test_distinguishes_tokens_from_keys(text: bytes, is_one: bool) -> None:
    assert looks_like_token(text) is is_one


def test_reads_one_file_of_trusted_issuers_per_tenant(tmp_path: Path) -> None:
    (tmp_path / "red").write_text(ENTRY)
    (tmp_path / "blue").write_text(
        "- issuer: other\n  audience: [a, b]\n  jwks: /etc/keys.json\n  algorithms: [EdDSA]\n"
        "  claims: {groups: team-blue}\n"
    )
    (tmp_path / "..data").mkdir()
    blue, red = read_issuers(tmp_path)
    assert red == TrustedIssuer(
        tenant="red",
        issuer="https://id.example.com",
        audience=frozenset(("pilotlight",)),
        jwks="https://id.example.com/keys",
        algorithms=frozenset(("RS256", "ES256")),
    )
    assert sorted(blue.audience) == ["a", "b"]
    assert sorted(blue.algorithms) == ["EdDSA"]
    assert blue.claims == {"groups": "team-blue"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("issuer: x", "must be one list of trusted issuers", id="no-list"),
        pytest.param("- text", "must be an object with issuer", id="no-object"),
        pytest.param("- {issuer: [", "not valid YAML", id="no-yaml"),
        pytest.param("- !!bool x", "not valid YAML", id="odd-yaml"),
        pytest.param(ENTRY.replace("}", ", claims: {}, claims: {a: b}}"), "twice", id="key-twice"),
        pytest.param(f"{ENTRY}---\n{ENTRY}", "must be one list", id="two-documents"),
        pytest.param(ENTRY.replace("issuer:", "isuer:"), "'isuer' is none of", id="misspelt"),
        pytest.param(
            ENTRY.replace("audience: pilotlight", "audience: []"), "audience must be", id="audience"
        ),
        pytest.param(
            ENTRY.replace("jwks: https", "jwks: http"), "jwks must be an https://", id="plain-http"
        ),
        pytest.param(ENTRY.replace("https://id.example.com/keys", "keys.json"), "jwks", id="path"),
        pytest.param(ENTRY.replace("com/keys", "com:port/keys"), "jwks", id="no-port"),
        pytest.param(
            ENTRY.replace("}", ", algorithms: [HS256]}"), "algorithms must be", id="shared-secret"
        ),
        pytest.param(ENTRY.replace("}", ", algorithms: [none]}"), "algorithms must", id="none"),
        pytest.param(ENTRY.replace("}", ", claims: [a]}"), "claims must map", id="claims"),
    ],
)
def test_reports_a_problem(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "red").write_text(text)
    with pytest.raises(ValueError, match=problem):
        read_issuers(tmp_path)


def test_reports_all_problems_together(tmp_path: Path) -> None:
    (tmp_path / "red").write_text("- {issuer: '', audience: 1, jwks: x}\n")
    (tmp_path / "blue").write_text("7")
    with pytest.raises(ValueError, match=r"blue.*red: entry 1: issuer.*audience.*jwks"):
        read_issuers(tmp_path)


def test_only_public_key_algorithms_can_be_trusted() -> None:
    assert not {name for name in ALGORITHMS if name.startswith("HS") or name == "none"}


@pytest.mark.parametrize(
    ("claims", "is_accepted"),
    [
        pytest.param({"aud": "a", "groups": "team"}, True, id="text"),
        pytest.param({"aud": ["x", "a"], "groups": ["other", "team"]}, True, id="lists"),
        pytest.param({"aud": "x", "groups": "team"}, False, id="audience"),
        pytest.param({"aud": "a"}, False, id="no-claim"),
        pytest.param({"aud": "a", "groups": ["teams"]}, False, id="other-group"),
        pytest.param({"aud": {"a": 1}, "groups": "team"}, False, id="odd-audience"),
        pytest.param({"aud": "a", "groups": {"team": 1}}, False, id="odd-claim"),
        pytest.param({"aud": ["a"], "groups": [["team"], None, "team"]}, True, id="odd-list"),
    ],
)
def test_a_token_is_accepted_by_audience_and_claims(
    claims: dict[str, Any], is_accepted: bool
) -> None:
    issuer = TrustedIssuer(
        tenant="red", issuer="i", audience=frozenset("a"), jwks="/keys", claims={"groups": "team"}
    )
    assert issuer.tenants_of(claims) == ({"red"} if is_accepted else set())
