"""The environment of peers that Pilotlight does not depend on: servers, loaders, AWS's CRT.

Only benchmarks use it: `python -m benchmarks.peers install` makes it. Loaders run in the process of
the benchmark, with its torch, which this environment lacks.
"""

import subprocess
import sys
import venv
from importlib.util import find_spec
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).resolve().parent.parent
ENVIRONMENT: Final = REPOSITORY / ".venv-peers"
_LOCK: Final = Path(__file__).with_name("requirements-peers.lock")


def peers_python() -> Path | None:
    """The interpreter of the environment; None if it is not installed."""
    python = ENVIRONMENT / "bin" / "python"
    return python if python.exists() and (ENVIRONMENT / ".installed").exists() else None


def has_peer(module: str) -> bool:
    """Whether a peer can be imported; appends the environment to the import path."""
    python = peers_python()
    if python is not None:
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        packages = str(ENVIRONMENT / "lib" / version / "site-packages")
        if packages not in sys.path:
            sys.path.append(packages)
    return find_spec(module) is not None


def install() -> None:
    """Make `.venv-peers` from its lock file, unless it exists."""
    if peers_python() is not None:
        print(f"{ENVIRONMENT.name} exists already")
        return
    count = sum("==" in line for line in _LOCK.read_text().splitlines())
    print(f"{count} packages into {ENVIRONMENT.name}: about 0.3 GB to download, 1 GB on disk.")
    venv.create(ENVIRONMENT, with_pip=True, clear=True)
    # The lock is complete except for torch, which the loaders would install a second time.
    command = ["-m", "pip", "install", "--disable-pip-version-check", "--no-deps", "-r", str(_LOCK)]
    subprocess.run([str(ENVIRONMENT / "bin" / "python"), *command], check=True)
    (ENVIRONMENT / ".installed").touch()


if __name__ == "__main__":
    if sys.argv[1:] != ["install"]:
        sys.exit("usage: python -m benchmarks.peers install")
    install()
