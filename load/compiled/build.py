"""What is compiled, where it is kept, and when it is compiled anew."""

from __future__ import annotations

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
"""Of the checkout."""
MODULES: Final = (
    "gateway/routing/route_request.py",
    "gateway/routing/ski_rental.py",
    "gateway/routing/auto.py",
    "gateway/routing/pod_selection.py",
    "gateway/routing/colocation.py",
    "gateway/routing/decision.py",
    "gateway/routing/latency_model.py",
    "gateway/routing/remote_proxy.py",
    "gateway/routing/views.py",
    "gateway/dispatch/fair_queue.py",
    "gateway/dispatch/retries.py",
    "gateway/dispatch/admission_queue.py",
    "load/simulator/cluster/plan.py",
    "load/simulator/pods/continuous_batch.py",
    "load/simulator/pods/device.py",
    "load/simulator/pods/simulated_request.py",
    "load/simulator/gateway.py",
    "load/simulator/pods/iterations.py",
    "load/simulator/event_queue.py",
    "load/simulator/pods/shared_link.py",
    "load/simulator/pods/model_loading.py",
    "load/simulator/memory_registry.py",
    "load/simulator/pods/node.py",
    "load/simulator/pods/pod.py",
    "load/simulator/queueing.py",
    "load/simulator/results/rows.py",
    "registry/domain/cluster.py",
    "registry/domain/estimates.py",
    "registry/domain/model.py",
    "registry/domain/pod.py",
    "registry/domain/profile.py",
    "registry/domain/pod_index.py",
    "registry/domain/pod_state.py",
    "registry/domain/reservation.py",
    "registry/domain/residency_index.py",
    "runtime/device/batch.py",
    "runtime/device/batch_times.py",
    "runtime/device/device_model.py",
    "runtime/device/queue.py",
    "runtime/tiers/eviction.py",
    "runtime/tiers/idle_memory.py",
    "runtime/loading/reload_costs.py",
    "runtime/tiers/device_cache.py",
    "runtime/registration/measurements.py",
)
"""What a simulated request passes through."""
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
    """There is no compiler, or it failed."""


def built(*, say: Callable[[str], object]) -> Path:
    """The folder of the compiled modules, compiled now where their sources are new.

    Raises:
        CannotCompile: where that cannot be done here.
    """
    home = Path(sys.prefix) / "compiled"
    folder = home / _digest()
    if folder.exists():
        return folder
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        raise CannotCompile(f"there is no C compiler ({compiler})")
    say("compiling, once for these sources: about a minute")
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


def _digest() -> str:
    """Of all that decides what comes out."""
    try:
        parts = [sys.version, version("mypy"), _SETUP]
    except PackageNotFoundError:
        raise CannotCompile("mypyc, which comes with mypy, is not installed") from None
    parts += rewritten(_sources()).values()
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16] + "-built"


def _sources() -> dict[str, str]:
    return {path: (ROOT / path).read_text() for path in MODULES}


def _compile(work: Path) -> None:
    """From a copy of the packages, since mypyc reads the types of all; the result is in `out`."""
    for package in _PACKAGES:
        shutil.copytree(
            ROOT / package, work / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    shutil.copy(ROOT / "pyproject.toml", work / "mypy.toml")  # which setuptools does not read
    for path, source in rewritten(_sources()).items():
        (work / path).write_text(source)
    ran = subprocess.run(
        [sys.executable, "-P", "-c", _SETUP, "out", *MODULES],
        cwd=work,
        env={**os.environ, "MYPY_CACHE_DIR": str(work / "cache")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if ran.returncode:
        raise CannotCompile("mypyc failed:\n" + ran.stdout[-2000:])
