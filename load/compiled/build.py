"""Compilation of the simulator's modules, kept until one of their sources changes."""

from __future__ import annotations

import ast
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from load.compiled.sources import rewritten
from load.errors import LoadError

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT: Final = Path(__file__).parents[2]
ROOTS: Final = (
    "load/simulator/simulated_cluster.py", "load/simulator/event_queue.py",
    "load/simulator/results/finished_requests.py",
)  # fmt: skip
"""Every simulated request runs through these modules and those that they import."""
FOLDERS: Final = (
    "gateway/dispatch/", "gateway/routing/", "load/simulator/", "registry/cost/",
    "registry/domain/", "runtime/",
)  # fmt: skip
"""Imports from other folders are not compiled: errors, settings, the Redis client."""
_PACKAGES: Final = ("autoscaler", "gateway", "load", "registry", "runtime")
_SETUP: Final = """
import sys
from mypyc.build import mypycify
from setuptools import setup

options = ["--config-file=mypy.toml", "--implicit-reexport"]
options += [f"--disable-error-code={each}" for each in ("misc", "no-untyped-def", "type-arg")]
extensions = mypycify([*options, *sys.argv[2:]], opt_level="2", debug_level="0")
setup(packages=[], ext_modules=extensions, script_args=["build_ext", "--build-lib", sys.argv[1]])
"""


class CannotCompile(LoadError):
    """There is no C compiler, or the compilation failed."""


def build(*, log: Callable[[str], object]) -> Path:
    """The folder of the compiled modules, compiled now if their sources are new.

    Raises:
        CannotCompile: there is no C compiler, no mypyc, or it failed.
    """
    home = Path(sys.prefix) / "compiled"
    folder = home / _digest()
    if folder.exists():
        return folder
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        raise CannotCompile(f"there is no C compiler ({compiler})")
    log("compiling, once for these sources: about a minute")
    try:
        home.mkdir(exist_ok=True)
        with TemporaryDirectory(dir=home) as work:
            _compile(Path(work))
            for older in home.glob("[0-9a-f]*-built"):
                shutil.rmtree(older)
            (Path(work) / "out").rename(folder)
    except OSError as error:
        raise CannotCompile(str(error)) from error
    return folder


def compiled_paths() -> list[str]:
    """The roots and all modules of `FOLDERS` that they import, directly or not, when they run."""
    found: set[str] = set()
    pending = list(ROOTS)
    while pending:
        path = pending.pop()
        if path in found or not path.startswith(FOLDERS) or not (ROOT / path).is_file():
            continue
        found.add(path)
        for node in ast.parse((ROOT / path).read_text()).body:
            if isinstance(node, ast.ImportFrom) and node.module:
                package = node.module.replace(".", "/")
                pending += [f"{package}.py", *(f"{package}/{each.name}.py" for each in node.names)]
    return sorted(found)


def _digest() -> str:
    """Hash of everything that determines the result."""
    try:
        parts = [sys.version, version("mypy"), _SETUP]
    except PackageNotFoundError:
        raise CannotCompile("mypyc is not installed; it is part of mypy") from None
    parts += rewritten(_sources()).values()
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16] + "-built"


def _sources() -> dict[str, str]:
    return {path: (ROOT / path).read_text() for path in compiled_paths()}


def _compile(work: Path) -> None:
    """Compile a copy of the packages into `out`; mypyc reads the types of all of them."""
    for package in _PACKAGES:
        shutil.copytree(
            ROOT / package, work / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    shutil.copy(ROOT / "pyproject.toml", work / "mypy.toml")  # a name that setuptools ignores
    sources = rewritten(_sources())
    for path, source in sources.items():
        (work / path).write_text(source)
    ran = subprocess.run(
        [sys.executable, "-P", "-c", _SETUP, "out", *sources],
        cwd=work,
        env={**os.environ, "MYPY_CACHE_DIR": str(work / "cache")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if ran.returncode:
        raise CannotCompile("mypyc failed:\n" + ran.stdout[-2000:])
