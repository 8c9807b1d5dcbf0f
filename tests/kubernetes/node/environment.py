"""A container's environment variables and command, evaluated as by a kubelet."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from tests.kubernetes.node.images import Image
from tests.kubernetes.places import API_SERVICE_ADDRESS

Lookup = Callable[[str, str], Mapping[str, str] | None]
"""Reads the entries of a `ConfigMap` or `Secret` in the pod's namespace, by kind and name."""

_REFERENCE = re.compile(r"\$\$|\$\(([-._a-zA-Z][-._a-zA-Z0-9]*)\)")
_SUFFIXES = {"Ki": 1024, "Mi": 1024**2, "Gi": 1024**3, "k": 1000, "M": 1000**2, "G": 1000**3}


class BadReference(Exception):
    """A variable or volume names something that does not exist."""


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace `$(NAME)` for known names; `$$` is a dollar sign."""

    def value(match: re.Match[str]) -> str:
        return "$" if match[1] is None else variables.get(match[1], match[0])

    return _REFERENCE.sub(value, text)


def field_of(pod: Mapping[str, Any], path: str, *, address: str) -> str:
    """A field of the downward API."""
    match = re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", path)
    if match:
        return str(pod["metadata"].get(match[1], {}).get(match[2], ""))
    if path in {"status.podIP", "status.podIPs"}:
        return address
    if path == "status.hostIP":
        return str(pod["status"].get("hostIP", ""))
    found: Any = pod
    for name in path.split("."):
        found = found.get(name, "")
    if isinstance(found, dict):
        return "\n".join(f'{name}="{text}"' for name, text in sorted(found.items()))
    return str(found)


def quantity(text: str) -> float:
    """The number of a resource quantity, in cores or bytes."""
    for suffix, factor in _SUFFIXES.items():
        if text.endswith(suffix):
            return float(text.removesuffix(suffix)) * factor
    return float(text[:-1]) / 1000 if text.endswith("m") else float(text)


def environment(
    pod: Mapping[str, Any], container: Mapping[str, Any], *, address: str, lookup: Lookup
) -> dict[str, str]:
    """The variables of the pod's specification; raises BadReference."""
    variables = {
        "KUBERNETES_SERVICE_HOST": API_SERVICE_ADDRESS,
        "KUBERNETES_SERVICE_PORT": "443",
        "KUBERNETES_SERVICE_PORT_HTTPS": "443",
        "HOSTNAME": pod["metadata"]["name"],
        "HOME": "/",
    }
    for source in container.get("envFrom", []):
        for kind, key in (("ConfigMap", "configMapRef"), ("Secret", "secretRef")):
            if key in source:
                entries = _entries(lookup, kind, source[key])
                prefix = source.get("prefix", "")
                variables |= {f"{prefix}{name}": text for name, text in entries.items()}
    for item in container.get("env", []):
        if "valueFrom" in item:
            found = _value_from(pod, container, item["valueFrom"], address=address, lookup=lookup)
            variables |= {} if found is None else {item["name"]: found}
        else:
            variables[item["name"]] = expand(item.get("value", ""), variables)
    return variables


def _entries(lookup: Lookup, kind: str, reference: Mapping[str, Any]) -> Mapping[str, str]:
    entries = lookup(kind, reference["name"])
    if entries is None and not reference.get("optional"):
        raise BadReference(f"{kind} {reference['name']!r} not found")
    return entries or {}


def _value_from(
    pod: Mapping[str, Any],
    container: Mapping[str, Any],
    source: Mapping[str, Any],
    *,
    address: str,
    lookup: Lookup,
) -> str | None:
    if "fieldRef" in source:
        return field_of(pod, source["fieldRef"]["fieldPath"], address=address)
    if "resourceFieldRef" in source:
        return _resource(container, source["resourceFieldRef"])
    kind, key = ("Secret", "secretKeyRef")
    if "configMapKeyRef" in source:
        kind, key = ("ConfigMap", "configMapKeyRef")
    reference = source[key]
    found = _entries(lookup, kind, reference).get(reference["key"])
    if found is None and not reference.get("optional"):
        raise BadReference(f"{kind} {reference['name']!r} has no key {reference['key']!r}")
    return found


def _resource(container: Mapping[str, Any], reference: Mapping[str, Any]) -> str:
    kind, _, name = reference["resource"].partition(".")
    amount = quantity(container.get("resources", {}).get(kind, {}).get(name, "0"))
    divisor = quantity(str(reference.get("divisor", "1")) or "1") or 1.0
    return str(-int(-amount // divisor))


def command(
    container: Mapping[str, Any], program: Image, variables: Mapping[str, str]
) -> list[str]:
    """`command`, or the image's entrypoint without one, then `args`."""
    first = container.get("command") or list(program.entrypoint)
    return [expand(text, variables) for text in [*first, *container.get("args", [])]]
