"""The programs of this machine that replace container images."""

import sys
from dataclasses import dataclass, field
from pathlib import Path

from tests.kubernetes.places import REPOSITORY, program, source_tree

HOME = "/opt/pilotlight"
"""Working directory of the repository's images; a volume may cover its path on this machine."""

VENV = f"{HOME}/.venv"

KNATIVE = "ko://knative.dev/serving/cmd/"
"""Prefix of the images in Knative's manifests."""

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

INITIALIZER = ("python", "storage-initializer", "scripts", "initializer-entrypoint")
"""In KServe's repository."""


class UnknownImage(Exception):
    """No program of this machine replaces the image."""


@dataclass(frozen=True, slots=True)
class Image:
    """The entrypoint, directory and mounts of an image."""

    path: str
    directory: str
    entrypoint: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    folders: dict[str, Path] = field(default_factory=dict)
    """Folders of this machine, mounted read-only at other paths of the container."""


def image(name: str) -> Image:
    """The programs for an image; raises UnknownImage.

    Images of this repository, with `pilotlight` in their name, contain the repository and its
    virtual environment. Redis is this machine's, of version 7 or later, as the image; KServe's
    storage initializer is its own script, with the storage library of the virtual environment.
    """
    if name.startswith(KNATIVE):
        built = program(f"knative-{name.removeprefix(KNATIVE)}")
        return Image(SYSTEM_PATH, "/", (str(built),))
    repository = name.partition("@")[0].rpartition(":")[0] or name
    folders = {HOME: REPOSITORY, VENV: Path(sys.prefix)}
    if "pilotlight" in repository:
        installed = {"PYTHONPATH": HOME}  # the packages are found in any working directory
        return Image(f"{VENV}/bin:{SYSTEM_PATH}", HOME, variables=installed, folders=folders)
    if repository.rpartition("/")[2] in {"redis", "valkey"}:
        return Image(SYSTEM_PATH, "/", ("redis-server",))
    if repository.endswith("kserve/storage-initializer"):
        script = source_tree("kserve-controller").joinpath(*INITIALIZER)
        return Image(f"{VENV}/bin:{SYSTEM_PATH}", "/", ("python", str(script)), folders=folders)
    raise UnknownImage(f"no program of this machine stands for the image {name!r}")
