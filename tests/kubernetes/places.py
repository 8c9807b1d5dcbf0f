"""Paths and network addresses of the suite: programs, sources, the cluster's networks."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent.parent
VERSIONS = REPOSITORY / "scripts" / "kubernetes" / "versions"

NAMESPACE = "pilotlight"
"""Namespace of the platform in `manifests/base`."""

IN_NAMESPACE = ("-n", NAMESPACE)

TIMEOUT_S = 300.0
"""Events that take seconds may take minutes on a busy machine."""

HOST_ADDRESS = "10.77.0.1"
"""Address of the host on the bridge to which every pod is attached."""

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
    """The lines of `versions`, by name of the program; KServe as KSERVE_VERSION says."""
    lines = [line.split() for line in VERSIONS.read_text().splitlines() if line[:1] != "#"]
    found = {fields[0]: Build(*fields[:3]) for fields in lines if fields}
    kserve = found["kserve-controller"]
    version = os.environ.get("KSERVE_VERSION") or kserve.version
    return {**found, kserve.name: replace(kserve, version=version)}


def cache_folder() -> Path:
    """The folder of the built programs."""
    named = os.environ.get("PILOTLIGHT_KUBERNETES_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "pilotlight" / "kubernetes"


def program(name: str) -> Path:
    """The path of a program: in `KUBEBUILDER_ASSETS` if it is there, else in the cache."""
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
