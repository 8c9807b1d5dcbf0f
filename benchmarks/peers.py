"""The environment of the peers that Pilotlight does not depend on: servers, loaders, AWS's CRT.

Big, and needed by nobody but the benchmark, so it is made only when asked for:
`python -m benchmarks.peers install`. Loaders run in the benchmark's own process, with its torch,
which the peers' environment lacks.
"""

from __future__ import annotations

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
    """The peers' interpreter if it was installed."""
    python = ENVIRONMENT / "bin" / "python"
    return python if python.exists() and (ENVIRONMENT / ".installed").exists() else None


def has_peer(module: str) -> bool:
    """Whether a peer can be imported; from then on the peers come after all that is here."""
    python = peers_python()
    if python is not None:
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        packages = str(ENVIRONMENT / "lib" / version / "site-packages")
        if packages not in sys.path:
            sys.path.append(packages)
    return find_spec(module) is not None


def install() -> None:
    """Make `.venv-peers` from the peers' lock; a second call does nothing."""
    if peers_python() is not None:
        print(f"{ENVIRONMENT.name} is there already")
        return
    count = sum("==" in line for line in _LOCK.read_text().splitlines())
    print(f"{count} packages into {ENVIRONMENT.name}: about 0.2 GB to download, 0.6 GB on disk.")
    venv.create(ENVIRONMENT, with_pip=True, clear=True)
    # The lock is complete but for torch, which the loaders would bring once more.
    command = ["-m", "pip", "install", "--disable-pip-version-check", "--no-deps", "-r", str(_LOCK)]
    subprocess.run([str(ENVIRONMENT / "bin" / "python"), *command], check=True)
    (ENVIRONMENT / ".installed").touch()


if __name__ == "__main__":
    if sys.argv[1:] != ["install"]:
        sys.exit("usage: python -m benchmarks.peers install")
    install()
