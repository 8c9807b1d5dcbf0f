"""Trusted identity providers (token issuers) by tenant, and their public keys.

The folder has one YAML file per tenant, a mounted ConfigMap. The file `_operator` lists the issuers
for metrics and explanations, which show all tenants' data.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Final, Literal, TypeAlias, get_args

import httpx
import orjson
from annotated_types import Predicate
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt import PyJWK, PyJWTError
from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from common.shown_value import shown
from gateway.authentication import OPERATOR, files_of
from gateway.errors import InvalidToken, NotReady
from registry.errors import InvalidYaml
from registry.inference_service.documents import read_yaml

logger = logging.getLogger(__name__)

Algorithm: TypeAlias = Literal[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"
]
"""Only signatures with a private key: neither `none` nor shared secrets."""
ALGORITHMS: Final[tuple[str, ...]] = get_args(Algorithm)
LOOPBACK: Final = frozenset(("127.0.0.1", "::1", "localhost"))
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
        schemes = ("https", "http") if url.host in LOOPBACK else ("https",)
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

    def tenants_of(self, claims: Mapping[str, Any]) -> set[str]:
        """The tenant, if verified claims meet the conditions."""
        is_accepted = bool(self.audience & _audiences(claims)) and all(
            claims.get(name) == required or required in _strings(claims.get(name))
            for name, required in self.claims.items()
        )
        return {self.tenant} if is_accepted else set()


def _strings(value: object) -> set[str]:
    return {each for each in value if isinstance(each, str)} if isinstance(value, list) else set()


def _audiences(claims: Mapping[str, Any]) -> set[str]:
    claimed = claims.get("aud")
    return {claimed} if isinstance(claimed, str) else _strings(claimed)


CLUSTER_AUDIENCE: Final = "pilotlight"


@dataclass(frozen=True, slots=True)
class ClusterIssuer:
    """A cluster's own issuer: a token of a service account is valid for its namespace."""

    issuer: str
    jwks: str
    operators: frozenset[str]
    """Service accounts, as `NAMESPACE:NAME`."""
    tenant: str = ""
    algorithms: frozenset[str] = frozenset(("RS256", "ES256", "ES384", "ES512"))
    """Those with which Kubernetes signs."""

    def tenants_of(self, claims: Mapping[str, Any]) -> set[str]:
        """The account's namespace, for a token of the audience; for an operator's that, too."""
        kind, _, account = str(claims.get("sub")).partition("serviceaccount:")
        if kind != "system:" or CLUSTER_AUDIENCE not in _audiences(claims):
            return set()
        return {account.partition(":")[0]} | ({OPERATOR} if account in self.operators else set())


def way_to_token(cluster_issuer: str, operator: str, tenant: str) -> str:
    """The command that makes a token of the cluster, as the end of an error."""
    account = operator if tenant == OPERATOR else "NAMESPACE:default"
    namespace, _, name = account.partition(":")
    way = f"; to get one: kubectl create token {name} -n {namespace} --audience {CLUSTER_AUDIENCE}"
    return way if cluster_issuer and name else ""


Issuer: TypeAlias = TrustedIssuer | ClusterIssuer


def read_all_issuers(folder: str, cluster: str, operators: frozenset[str]) -> list[Issuer]:
    """Those of a folder, and the cluster's, without a name until the controller has read it.

    Raises OSError, ValueError as `read_issuers`.
    """
    found: list[Issuer] = [*read_issuers(Path(folder))] if folder else []
    if cluster:
        file = Path(cluster).absolute() / "issuer"
        name = file.read_text("utf-8").strip() if file.exists() else ""
        found.append(ClusterIssuer(name, str(file.with_name("jwks")), operators))
    return found


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


MIN_REFRESH_INTERVAL_S: Final = 5.0
"""Minimum time between two reads because of unknown key ids or failed reads."""
MAX_AGE_S: Final = 300.0
"""The keys are read again at least this often, so that revoked keys become invalid."""
TIMEOUT_S: Final = 5.0
MAX_BYTES: Final = 1 << 20
MIN_RSA_BITS: Final = 2048
"""RFC 7518, section 3.3."""
_ALGORITHM_OF_CURVE: Final = {
    "P-256": "ES256",
    "P-384": "ES384",
    "P-521": "ES512",
    "Ed25519": "EdDSA",
}
_RSA: Final = frozenset(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"))

Key = tuple[PyJWK, frozenset[str]]
"""A public key with the algorithms that it may verify."""


class KeySet:
    """Public keys (JWKS, RFC 7517) at a URL or file; read in a thread, again when they rotate.

    Tokens with unknown key ids together cause at most one read every few seconds; a read that fails
    leaves the keys unchanged.
    """

    def __init__(
        self,
        location: str,
        on_change: Callable[[], None],
        *,
        read: Callable[[str], bytes] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._location = location
        self._on_change = on_change
        self._read = read or read_document
        self._clock = clock
        self._document = b""
        self._keys: Mapping[str | None, tuple[Key, ...]] = {}
        self._has_read = False
        self._tried_s: float | None = None
        self._refreshing = asyncio.Lock()

    async def key(self, key_id: str | None, algorithm: str) -> PyJWK:
        """The key with this id; for None, the only key for the algorithm.

        Raises:
            InvalidToken: there is none.
            NotReady: the keys could not be read yet.
        """
        if not self._has_read or key_id not in self._keys:
            await self._refresh(unless=lambda: self._has_read and key_id in self._keys)
        if not self._has_read:
            raise NotReady(
                "the token issuer's keys cannot be read now", retry_after_s=MIN_REFRESH_INTERVAL_S
            )
        named = self._keys.values() if key_id is None else (self._keys.get(key_id, ()),)
        candidates = [key for keys in named for key, usable in keys if algorithm in usable]
        if len(candidates) != 1:
            problem = "is unknown or not for its algorithm" if key_id else "must be named (kid)"
            raise InvalidToken(f"the token's key {problem}")
        return candidates[0]

    async def refresh_if_old(self) -> None:
        """Read the keys again after `MAX_AGE_S`; sooner those of a file, or after a failure."""
        is_far = self._has_read and not self._location.startswith("/")
        interval_s = MAX_AGE_S if is_far else MIN_REFRESH_INTERVAL_S
        if self._tried_s is None or self._clock() - self._tried_s >= interval_s:
            await self._refresh(unless=lambda: False)

    async def _refresh(self, *, unless: Callable[[], bool]) -> None:
        async with self._refreshing:  # `unless`: another task may have read the key
            now_s = self._clock()
            is_early = self._tried_s is not None and now_s - self._tried_s < MIN_REFRESH_INTERVAL_S
            if is_early or unless():
                return
            self._tried_s = now_s
            try:
                document = await asyncio.to_thread(self._read, self._location)
                if document != self._document or not self._has_read:
                    keys = read_key_set(document)
                    self._document, self._keys, self._has_read = document, keys, True
                    self._on_change()
            except (OSError, ValueError, httpx.HTTPError) as error:
                logger.warning(
                    "cannot read a token issuer's keys; the previous keys stay in use",
                    extra={"location": self._location},
                    exc_info=error,
                )


def read_document(location: str) -> bytes:
    """The content of a URL or file. Raises OSError, ValueError, httpx.HTTPError."""
    if location.startswith("/"):
        with Path(location).open("rb") as file:
            return _checked_size(file.read(MAX_BYTES + 1))
    until_s = time.monotonic() + TIMEOUT_S
    received = b""
    with httpx.stream("GET", location, timeout=TIMEOUT_S) as response:
        response.raise_for_status()
        if response.is_redirect:
            raise ValueError("the response is a redirect; configure the final URL")
        for chunk in response.iter_bytes():
            received += chunk
            _checked_size(received)
            if time.monotonic() > until_s:
                raise TimeoutError(f"the keys were not received within {TIMEOUT_S:g} s")
    return received


def _checked_size(document: bytes) -> bytes:
    if len(document) > MAX_BYTES:
        raise ValueError(f"keys may have {MAX_BYTES} bytes at most")
    return document


def read_key_set(document: bytes) -> dict[str | None, tuple[Key, ...]]:
    """The usable keys of a JWKS by id. Raises ValueError if it is not a JWKS.

    Keys of other uses and types are ignored, as RFC 7517, section 5, demands.
    """
    try:
        entries = orjson.loads(document)["keys"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        raise ValueError("must be a JSON Web Key Set: an object with a list 'keys'") from None
    if not isinstance(entries, list):
        raise ValueError(f"'keys' must be a list, was {shown(entries)}")
    keys: dict[str | None, tuple[Key, ...]] = {}
    for entry in entries:
        algorithms = _algorithms_of(entry)
        key = _parse_key(entry, min(algorithms)) if algorithms else None
        if key is not None:
            key_id = entry.get("kid")
            keys[key_id] = (*keys.get(key_id, ()), (key, algorithms))
    return keys


def _algorithms_of(entry: Any) -> frozenset[str]:
    """Algorithms that a key may verify, by its type and curve and by its own `alg`."""
    if not isinstance(entry, dict) or entry.get("use", "sig") != "sig":
        return frozenset()
    if not isinstance(entry.get("kid", ""), str):
        return frozenset()
    kind, curve = entry.get("kty"), entry.get("crv")
    possible: frozenset[str] = frozenset()
    if kind == "RSA":
        possible = _RSA
    elif kind in ("EC", "OKP") and isinstance(curve, str) and curve in _ALGORITHM_OF_CURVE:
        possible = frozenset((_ALGORITHM_OF_CURVE[curve],))
    declared = entry.get("alg")
    return possible if declared is None else possible & frozenset((str(declared),))


def _parse_key(entry: Mapping[str, Any], algorithm: str) -> PyJWK | None:
    extra = {"kid": entry.get("kid")}
    try:
        key = PyJWK(dict(entry), algorithm)
    except (PyJWTError, ValueError, TypeError, KeyError) as error:
        logger.warning("ignored a key that cannot be read", extra=extra, exc_info=error)
        return None
    if isinstance(key.key, rsa.RSAPublicKey) and key.key.key_size < MIN_RSA_BITS:
        logger.warning("ignored an RSA key below the minimum size", extra=extra)
        return None
    if "d" in entry:
        logger.warning("ignored a published private key", extra=extra)
        return None
    return key
