"""What a pool grants to the models of each namespace: use, storage, quotas. Pure.

On a cluster they are in ConfigMaps; on one machine texts, `NAMESPACE=VALUES; NAMESPACE=VALUES`
(`*`: every namespace). Processes read them from the registry.
"""

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final
from urllib.parse import urlsplit

import orjson

from common.sizes import parse_size
from registry.domain.model import ModelSpec

EVERY: Final = "*"
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SEPARATORS = re.compile(r"[;\n]")
_COUNT = re.compile(r"[0-9]{1,15}")
_ANONYMOUS_SCHEMES = frozenset({"s3", "gs", "hf", "https", "modelscope"})
"""Schemes that name one service, or are read from public addresses only: without a grant they are
read with the model's own credentials or none, never with the pool's."""


class Quota(StrEnum):
    """What a namespace may use of a pool."""

    PINNED = "pinned"
    """Models with `pin`."""
    MIN_COPIES = "min-copies"
    """Sum of `min-copies`."""
    MEMORY = "memory"
    """Bytes on the device of each pod."""
    CACHE = "cache"
    """Bytes in the disk cache of each node."""


class Access(StrEnum):
    """Whose credentials read a model's storage."""

    POOL = "pool"
    MODEL = "model"
    """Those that the model names in its own namespace, if it names any, else none."""


@dataclass(frozen=True, slots=True)
class TenantRules:
    """The default grants everything, as on a machine with one owner."""

    namespaces: frozenset[str] = frozenset({EVERY})
    prefixes: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: {EVERY: (EVERY,)})
    """By namespace: beginnings of the URIs that are read with the pool's credentials."""
    quotas: Mapping[str, Mapping[Quota, int]] = field(default_factory=dict)

    @property
    def is_open(self) -> bool:
        """Whether every namespace may read everything."""
        return EVERY in self.namespaces and EVERY in self.prefixes.get(EVERY, ())

    def admits(self, namespace: str) -> bool:
        return EVERY in self.namespaces or namespace in self.namespaces

    def prefixes_of(self, namespace: str) -> tuple[str, ...]:
        return (*self.prefixes.get(namespace, ()), *self.prefixes.get(EVERY, ()))

    def quota(self, namespace: str, kind: Quota) -> int | None:
        """A namespace's own quota, else that of every namespace; None: unlimited."""
        for name in (namespace, EVERY):
            if kind in (found := self.quotas.get(name, {})):
                return found[kind]
        return None

    def granting_prefix(self, namespace: str, uri: str) -> str | None:
        """The longest prefix that grants the URI to the namespace; None: none does."""
        granting = (each for each in self.prefixes_of(namespace) if _begins_with(uri, each))
        return max(granting, key=len, default=None)

    def access(self, spec: ModelSpec) -> Access | None:
        """Whose credentials read the model's storage; None: it may not be read."""
        if not self.admits(spec.name.namespace):
            return None
        scheme = urlsplit(spec.storage_uri).scheme
        if spec.credentials and scheme in _ANONYMOUS_SCHEMES:
            return Access.MODEL
        if self.granting_prefix(spec.name.namespace, spec.storage_uri) is not None:
            return Access.POOL
        return Access.MODEL if scheme in _ANONYMOUS_SCHEMES else None


UNKNOWN: Final = TenantRules(namespaces=frozenset(), prefixes={})
"""Of a process on a cluster that has not read the rules of its pool yet: they grant nothing."""


def ends_access(spec: ModelSpec, before: TenantRules, now: TenantRules) -> str | None:
    """Why copies that were read under earlier rules may be used no more; None: they may be."""
    was, is_now = before.access(spec), now.access(spec)
    if was is None or is_now is was or is_now is Access.POOL:
        return None
    return access_problem(spec, now, spec.pool) or (
        f"namespace {spec.name.namespace!r} is no longer granted {spec.storage_uri!r} with the "
        f"credentials of pool {spec.pool!r}"
    )


def merged(entries: Iterable[TenantRules]) -> TenantRules:
    """The rules of all entries together; of two quotas of a namespace the smaller one."""
    namespaces: set[str] = set()
    prefixes: dict[str, tuple[str, ...]] = {}
    quotas: dict[str, dict[Quota, int]] = {}
    for each in entries:
        namespaces |= each.namespaces
        for name, found in each.prefixes.items():
            prefixes[name] = (*prefixes.get(name, ()), *found)
        for name, limits in each.quotas.items():
            known = quotas.setdefault(name, {})
            for kind, amount in limits.items():
                known[kind] = min(amount, known.get(kind, amount))
    return TenantRules(frozenset(namespaces), prefixes, quotas)


def encode_rules(rules: TenantRules) -> str:
    document = asdict(rules) | {"namespaces": sorted(rules.namespaces)}
    return orjson.dumps(document, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS).decode()


def decode_rules(text: str) -> TenantRules:
    stored: dict[str, Any] = orjson.loads(text)
    return TenantRules(
        frozenset(stored["namespaces"]),
        {name: tuple(found) for name, found in stored["prefixes"].items()},
        {
            name: {Quota(kind): amount for kind, amount in found.items()}
            for name, found in stored["quotas"].items()
        },
    )


def parse_rules(*, namespaces: str = "", prefixes: str = "", quotas: str = "") -> TenantRules:
    """The rules that these texts give.

    By default every namespace is admitted, and none may use the pool's credentials.
    Raises ValueError with all mistakes, one line each.
    """
    problems: list[str] = []
    parsed = TenantRules(
        namespaces=_parse_namespaces(namespaces, problems),
        prefixes=_parse_prefixes(prefixes, problems),
        quotas=_parse_quotas(quotas, problems),
    )
    if problems:
        raise ValueError("\n".join(problems))
    return parsed


def machine_rules(namespaces: str, prefixes: str, quotas: str) -> TenantRules:
    """As `parse_rules`; on one machine all is granted unless one of the first two says what is."""
    parsed = parse_rules(namespaces=namespaces, prefixes=prefixes, quotas=quotas)
    return parsed if namespaces or prefixes else TenantRules(quotas=parsed.quotas)


def access_problem(spec: ModelSpec, rules: TenantRules, pool: str) -> str | None:
    """Why a model may not use the pool, and what to change; None: it may."""
    namespace = spec.name.namespace
    if rules is UNKNOWN:
        return (
            f"the rules of pool {pool!r} for tenants are not in the registry yet, so none of its "
            "models may be served; its controller writes them"
        )
    if not rules.admits(namespace):
        return (
            f"pool {pool!r} does not admit namespace {namespace!r}; its operator may add a "
            "ConfigMap of the tenant with the label pilotlight.io/tenant-of"
        )
    if rules.access(spec) is not None:
        return None
    scheme = urlsplit(spec.storage_uri).scheme
    granted = ", ".join(rules.prefixes_of(namespace)) or "none"
    return (
        f"spec.predictor.model.storageUri: namespace {namespace!r} may not read {scheme}:// URIs "
        f"in pool {pool!r} but those it is granted (now: {granted}), was {spec.storage_uri!r}; its "
        "operator may grant a prefix in the tenant's ConfigMap (the chart's "
        f"pools[].storagePrefixes), such as '{namespace}={spec.storage_uri}'"
    )


def quota_problem(spec: ModelSpec, others: Iterable[ModelSpec], rules: TenantRules) -> str | None:
    """Which quota a model exceeds, beside the namespace's earlier models of its pool.

    `others` are read only for a model that counts against a quota.
    """
    if not spec.policy.pin and not spec.policy.min_copies:
        return None
    namespace, earlier = spec.name.namespace, [each.policy for each in others]
    demands = (
        (Quota.PINNED, "pin", int(spec.policy.pin), sum(each.pin for each in earlier)),
        (
            Quota.MIN_COPIES,
            "min-copies",
            spec.policy.min_copies,
            sum(each.min_copies for each in earlier),
        ),
    )
    for kind, key, wanted, used in demands:
        limit = rules.quota(namespace, kind)
        if limit is not None and wanted and wanted + used > limit:
            return (
                f"metadata.annotations[pilotlight.io/{key}] exceeds the quota {kind} of namespace "
                f"{namespace!r}: {limit}, of which earlier models use {used}"
            )
    return None


def _begins_with(uri: str, prefix: str) -> bool:
    """Whether the prefix names the URI or a folder above it: `s3://team` is not `s3://team-2`."""
    if prefix == EVERY or uri == prefix:
        return True
    if prefix.startswith("hf://") and uri.startswith((f"{prefix}:", f"{prefix}@")):
        return True  # a revision of the model
    return uri.startswith(prefix if prefix.endswith("/") else f"{prefix}/")


def _parse_namespaces(text: str, problems: list[str]) -> frozenset[str]:
    names = frozenset(re.split(r"[\s,;]+", text.strip())) - {""}
    problems += [
        f"namespaces must be names separated by commas, or '*', was {name!r}"
        for name in sorted(names)
        if not _is_namespace(name)
    ]
    return names or frozenset({EVERY})


def _parse_prefixes(text: str, problems: list[str]) -> dict[str, tuple[str, ...]]:
    found = _by_namespace("storage-prefixes", text, problems)
    problems += [
        f"storage-prefixes: {prefix!r} of {name!r} must be '*' or begin with a scheme, as s3://"
        for name, prefixes in found.items()
        for prefix in prefixes
        if prefix != EVERY and "://" not in prefix
    ]
    return found


def _parse_quotas(text: str, problems: list[str]) -> dict[str, dict[Quota, int]]:
    return {
        name: dict(
            parsed for each in values if (parsed := _parse_quota(name, each, problems)) is not None
        )
        for name, values in _by_namespace("quotas", text, problems).items()
    }


def _parse_quota(name: str, text: str, problems: list[str]) -> tuple[Quota, int] | None:
    kind, _, amount = text.partition(":")
    if kind in (Quota.MEMORY, Quota.CACHE):
        with suppress(ValueError):
            return Quota(kind), parse_size(amount)
    elif kind in list(Quota) and _COUNT.fullmatch(amount):
        return Quota(kind), int(amount)
    problems.append(
        f"quotas: {text!r} of {name!r} must be {Quota.PINNED} or {Quota.MIN_COPIES}, a colon and a "
        f"whole number, or {Quota.MEMORY} or {Quota.CACHE}, a colon and a size, as memory:2Gi or "
        "cache:500MB"
    )
    return None


def _by_namespace(key: str, text: str, problems: list[str]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for part in _SEPARATORS.split(text):
        if not part.strip():
            continue
        name, equals, values = part.strip().partition("=")
        name = name.strip()
        if not equals or not _is_namespace(name):
            problems.append(
                f"{key} must be NAMESPACE=VALUES, or '*' for every namespace, separated by ';', "
                f"was {part.strip()!r}"
            )
            continue
        listed = tuple(each for each in re.split(r"[\s,]+", values) if each)
        found[name] = (*found.get(name, ()), *listed)
    return found


def _is_namespace(name: str) -> bool:
    return name == EVERY or _NAMESPACE.fullmatch(name) is not None
