"""Where everything of the suite lies: programs, sources, addresses of the cluster's network."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent.parent
VERSIONS = REPOSITORY / "scripts" / "kubernetes" / "versions"

NAMESPACE = "pilotlight"
"""Of the platform, as `manifests/base` names it."""

IN_NAMESPACE = ("-n", NAMESPACE)

PATIENCE_S = 300.0
"""How long to wait for what has to come, which takes seconds: the machine may be very busy."""

HOST_ADDRESS = "10.77.0.1"
"""Of this side of the bridge to which every pod is attached."""

POD_NETWORK = "10.77.0.0/16"
SERVICE_NETWORK = "10.78.0.0/16"
API_SERVICE_ADDRESS = "10.78.0.1"
API_PORT = 6443
API_URL = f"https://{HOST_ADDRESS}:{API_PORT}"


@dataclass(frozen=True, slots=True)
class Build:
    """One line of `scripts/kubernetes/versions`."""

    name: str
    module: str
    version: str


def builds() -> dict[str, Build]:
    """What is built, by name of the program."""
    lines = [line.split() for line in VERSIONS.read_text().splitlines() if line[:1] != "#"]
    return {fields[0]: Build(*fields[:3]) for fields in lines if fields}


def cache_folder() -> Path:
    """Where the programs were built."""
    named = os.environ.get("PILOTLIGHT_KUBERNETES_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "pilotlight" / "kubernetes"


def program(name: str) -> Path:
    """A program: from `KUBEBUILDER_ASSETS` if it is there, else from the cache."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if assets and (Path(assets) / name).exists():
        return Path(assets) / name
    path = cache_folder() / "bin" / f"{name}-{builds()[name].version}"
    if not path.exists():
        raise FileNotFoundError(f"{path}: run `scripts/kubernetes/build {name}`")
    return path


def source_tree(name: str) -> Path:
    """The source of a program's module, with the manifests that its authors ship."""
    build = builds()[name]
    return cache_folder() / "source" / f"{build.module.replace('/', '_')}@{build.version}"
