"""Files of trusted issuers by tenant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gateway.authentication.issuers import ALGORITHMS, TrustedIssuer, read_issuers

if TYPE_CHECKING:
    from pathlib import Path

ENTRY = (
    "- {issuer: https://id.example.com, audience: pilotlight, jwks: https://id.example.com/keys}\n"
)


def test_reads_one_file_of_trusted_issuers_per_tenant(tmp_path: Path) -> None:
    (tmp_path / "red").write_text(ENTRY)
    (tmp_path / "blue").write_text(
        "- issuer: other\n  audience: [a, b]\n  jwks: /etc/keys.json\n  algorithms: [EdDSA]\n"
        "  claims: {groups: team-blue}\n"
    )
    (tmp_path / "..data").mkdir()
    blue, red = read_issuers(tmp_path)
    assert red == TrustedIssuer(
        "red",
        "https://id.example.com",
        frozenset(("pilotlight",)),
        "https://id.example.com/keys",
        frozenset(("RS256", "ES256")),
    )
    assert sorted(blue.audiences) == ["a", "b"]
    assert sorted(blue.algorithms) == ["EdDSA"]
    assert blue.claims == (("groups", "team-blue"),)


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
    issuer = TrustedIssuer("red", "i", frozenset("a"), "/keys", claims=(("groups", "team"),))
    assert issuer.accepts(claims) is is_accepted
