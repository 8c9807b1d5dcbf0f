"""Trusted identity providers (token issuers) by tenant.

The folder has one YAML file per tenant, a mounted ConfigMap. The file `_operator` lists the issuers
for metrics and explanations, which show all tenants' data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

import httpx

from common.shown_value import shown
from gateway.authentication.tenant_files import files_of
from registry.errors import InvalidYaml
from registry.inference_service.manifests import read_yaml

ALGORITHMS: Final = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
)  # fmt: skip
"""Only signatures with a private key: neither `none` nor shared secrets."""
DEFAULT_ALGORITHMS: Final = ("RS256", "ES256")
_FIELDS: Final = frozenset(("issuer", "audience", "jwks", "algorithms", "claims"))
_LOOPBACK: Final = frozenset(("127.0.0.1", "::1", "localhost"))
_JWKS_RULE: Final = (
    "jwks must be an https:// URL (http:// on loopback only) or a file's absolute path"
)


@dataclass(frozen=True, slots=True)
class TrustedIssuer:
    """Conditions under which a token is valid for a tenant."""

    tenant: str
    issuer: str
    audiences: frozenset[str]
    """At least one must be among the token's audiences."""
    jwks: str
    """URL or file of the issuer's public keys."""
    algorithms: frozenset[str] = frozenset(DEFAULT_ALGORITHMS)
    claims: tuple[tuple[str, str], ...] = ()
    """Further claims that a token must have, equal to the text or a list that contains it."""

    def accepts(self, claims: Mapping[str, Any]) -> bool:
        """True if verified claims meet the conditions."""
        claimed = claims.get("aud")
        audiences = {claimed} if isinstance(claimed, str) else _strings(claimed)
        return bool(self.audiences & audiences) and all(
            claims.get(name) == required or required in _strings(claims.get(name))
            for name, required in self.claims
        )


def _strings(value: object) -> set[str]:
    return {each for each in value if isinstance(each, str)} if isinstance(value, list) else set()


def read_issuers(folder: Path) -> list[TrustedIssuer]:
    """All trusted issuers. Raises OSError, or ValueError with every problem of every file."""
    found: list[TrustedIssuer] = []
    problems: list[str] = []
    for file in files_of(folder):
        try:
            documents = read_yaml(file.read_text("utf-8"))
        except (InvalidYaml, UnicodeDecodeError) as error:
            problems.append(f"{file}: {error}")
            continue
        entries = documents[0] if len(documents) == 1 else None
        if not isinstance(entries, list):
            problems.append(f"{file}: must be one list of trusted issuers, was {shown(documents)}")
            continue
        for number, entry in enumerate(entries, start=1):
            entry_problems = list(_problems(entry))
            problems += [f"{file}: entry {number}: {problem}" for problem in entry_problems]
            if not entry_problems:
                found.append(_issuer(file.name, entry))
    if problems:
        raise ValueError("; ".join(problems))
    return found


def _issuer(tenant: str, entry: Mapping[str, Any]) -> TrustedIssuer:
    return TrustedIssuer(
        tenant,
        entry["issuer"],
        frozenset(_as_list(entry["audience"])),
        entry["jwks"],
        frozenset(entry.get("algorithms", DEFAULT_ALGORITHMS)),
        tuple(sorted(entry.get("claims", {}).items())),
    )


def _problems(entry: object) -> Iterator[str]:
    if not isinstance(entry, dict):
        yield f"must be an object with issuer, audience and jwks, was {shown(entry)}"
        return
    for key in sorted(str(key) for key in entry.keys() - _FIELDS):
        yield f"{key!r} is none of {', '.join(sorted(_FIELDS))}"
    if not _is_string(entry.get("issuer")):
        yield f"issuer must be a string, as in the token's iss, was {shown(entry.get('issuer'))}"
    audiences = _as_list(entry.get("audience"))
    if not audiences or not all(map(_is_string, audiences)):
        yield f"audience must be a string or a list of strings, was {shown(entry.get('audience'))}"
    if not _is_jwks_location(entry.get("jwks")):
        yield f"{_JWKS_RULE}, was {shown(entry.get('jwks'))}"
    algorithms = entry.get("algorithms", list(DEFAULT_ALGORITHMS))
    if not isinstance(algorithms, list) or not algorithms or not _all_known(algorithms):
        yield f"algorithms must be a list of {', '.join(ALGORITHMS)}, was {shown(algorithms)}"
    claims = entry.get("claims", {})
    if not isinstance(claims, dict) or not all(map(_is_string, [*claims, *claims.values()])):
        yield f"claims must map names of claims to strings, was {shown(claims)}"


def _all_known(algorithms: list[object]) -> bool:
    return all(isinstance(each, str) and each in ALGORITHMS for each in algorithms)


def _as_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _is_string(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _is_jwks_location(value: object) -> bool:
    if not isinstance(value, str) or not value.isprintable():
        return False
    if value.startswith("/"):
        return PurePosixPath(value).name != ""
    try:
        url = httpx.URL(value)
        host = url.host
    except (httpx.InvalidURL, ValueError):
        return False
    return bool(host) and (url.scheme == "https" or (url.scheme == "http" and host in _LOOPBACK))
