"""Trusted identity providers (token issuers) by tenant.

The folder has one YAML file per tenant, a mounted ConfigMap. The file `_operator` lists the issuers
for metrics and explanations, which show all tenants' data.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Final, Literal, TypeAlias, get_args

import httpx
from annotated_types import Predicate
from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from common.shown_value import shown
from gateway.authentication.tenant_files import files_of
from registry.errors import InvalidYaml
from registry.inference_service.documents import read_yaml

Algorithm: TypeAlias = Literal[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"
]
"""Only signatures with a private key: neither `none` nor shared secrets."""
ALGORITHMS: Final[tuple[str, ...]] = get_args(Algorithm)
_LOOPBACK: Final = frozenset(("127.0.0.1", "::1", "localhost"))
_RULES: Final = {
    "issuer": "must be a string, as in the token's iss",
    "audience": "must be a string or a list of strings",
    "jwks": "must be an https:// URL (http:// on loopback only) or a file's absolute path",
    "algorithms": f"must be a list of {', '.join(ALGORITHMS)}",
    "claims": "must map names of claims to strings",
}
"""Of each field of an entry."""


def _is_location(value: str) -> bool:
    if value.startswith("/"):
        return PurePosixPath(value).name != "" and value.isprintable()
    try:
        url = httpx.URL(value)
        schemes = ("https", "http") if url.host in _LOOPBACK else ("https",)
    except (httpx.InvalidURL, ValueError):
        return False
    return bool(url.host) and url.scheme in schemes and value.isprintable()


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


_Text: TypeAlias = Annotated[str, Field(min_length=1, strict=True)]


class TrustedIssuer(BaseModel, frozen=True):
    """Conditions under which a token is valid for a tenant."""

    tenant: str
    issuer: _Text
    audience: Annotated[frozenset[_Text], BeforeValidator(_as_list), Field(min_length=1)]
    """At least one must be among the token's audiences."""
    jwks: Annotated[_Text, Predicate(_is_location)]
    """URL or file of the issuer's public keys."""
    algorithms: Annotated[frozenset[Algorithm], Field(min_length=1)] = frozenset(("RS256", "ES256"))
    claims: dict[_Text, _Text] = {}
    """Further claims that a token must have, equal to the text or a list that contains it."""

    def accepts(self, claims: Mapping[str, Any]) -> bool:
        """True if verified claims meet the conditions."""
        claimed = claims.get("aud")
        audiences = {claimed} if isinstance(claimed, str) else _strings(claimed)
        return bool(self.audience & audiences) and all(
            claims.get(name) == required or required in _strings(claims.get(name))
            for name, required in self.claims.items()
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
                found.append(TrustedIssuer(**{**entry, "tenant": file.name}))
    if problems:
        raise ValueError("; ".join(problems))
    return found


def _problems(entry: object) -> Iterator[str]:
    if not isinstance(entry, dict):
        yield f"must be an object with issuer, audience and jwks, was {shown(entry)}"
        return
    for key in sorted(str(key) for key in entry.keys() - _RULES.keys()):
        yield f"{key!r} is none of {', '.join(sorted(_RULES))}"
    try:
        TrustedIssuer.model_validate({**entry, "tenant": ""})
    except ValidationError as error:
        for field in dict.fromkeys(str(each["loc"][0]) for each in error.errors()):
            yield f"{field} {_RULES[field]}, was {shown(entry.get(field))}"
