"""A pod's volumes as folders of this machine, written from their sources at each call."""

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.kubernetes.node.environment import BadReference, Lookup, field_of

Token = Callable[[Mapping[str, Any]], str]
"""Returns a token of the pod's service account for the source of a projected volume."""


def make_volume(
    pod: Mapping[str, Any],
    volume: Mapping[str, Any],
    folder: Path,
    *,
    address: str,
    lookup: Lookup,
    token: Token,
) -> Path:
    """The folder of one volume; raises BadReference for unsupported kinds."""
    if "hostPath" in volume:
        return _host_path(volume["hostPath"])
    folder.mkdir(parents=True, exist_ok=True)
    if "emptyDir" in volume:
        folder.chmod(0o777)
        return folder
    sources = volume["projected"]["sources"] if "projected" in volume else [volume]
    for source in sources:
        for name, text in _files(pod, source, address=address, lookup=lookup, token=token).items():
            _write(folder / name, text)
    return folder


def _host_path(source: Mapping[str, Any]) -> Path:
    path = Path(source["path"])
    if source.get("type") == "DirectoryOrCreate":
        path.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        raise BadReference(f"hostPath {path} does not exist")
    return path


def _files(
    pod: Mapping[str, Any], source: Mapping[str, Any], *, address: str, lookup: Lookup, token: Token
) -> Mapping[str, str]:
    if "serviceAccountToken" in source:
        spec = source["serviceAccountToken"]
        return {spec["path"]: token(spec)}
    if "downwardAPI" in source:
        items = source["downwardAPI"].get("items", [])
        return {
            item["path"]: field_of(pod, item["fieldRef"]["fieldPath"], address=address)
            for item in items
        }
    for kind, key, name in (("ConfigMap", "configMap", "name"), ("Secret", "secret", "secretName")):
        if key in source:
            reference = source[key]
            return _entries(lookup, kind, reference.get(name) or reference["name"], reference)
    kinds = sorted(set(source) - {"name"})
    raise BadReference(f"volumes of kind {', '.join(kinds)} are not supported by this node")


def _entries(
    lookup: Lookup, kind: str, name: str, reference: Mapping[str, Any]
) -> Mapping[str, str]:
    entries = lookup(kind, name)
    if entries is None:
        if reference.get("optional"):
            return {}
        raise BadReference(f"{kind} {name!r} not found")
    items = reference.get("items")
    if items is None:
        return entries
    return {item["path"]: entries[item["key"]] for item in items if item["key"] in entries}


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.part")
    aside.write_text(text)
    os.replace(aside, path)


def delete_volumes(folder: Path) -> None:
    """Delete the volumes in a pod's folder."""
    shutil.rmtree(folder, ignore_errors=True)
