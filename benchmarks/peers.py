"""The environment of the peers that Pilotlight does not depend on: Ray Serve and LitServe.

Big, and needed by nobody but the benchmark, so it is made only when asked for:
`python -m benchmarks.peers install`.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).resolve().parent.parent
ENVIRONMENT: Final = REPOSITORY / ".venv-peers"
_LOCK: Final = Path(__file__).with_name("requirements-peers.lock")


def peers_python() -> Path | None:
    """The peers' interpreter if it was installed."""
    python = ENVIRONMENT / "bin" / "python"
    return python if python.exists() and (ENVIRONMENT / ".installed").exists() else None


def install() -> None:
    """Make `.venv-peers` from the peers' lock; a second call does nothing."""
    if peers_python() is not None:
        print(f"{ENVIRONMENT.name} is there already")
        return
    count = sum("==" in line for line in _LOCK.read_text().splitlines())
    print(f"{count} packages into {ENVIRONMENT.name}: about 0.2 GB to download, 1 GB on disk.")
    venv.create(ENVIRONMENT, with_pip=True, clear=True)
    command = ["-m", "pip", "install", "--disable-pip-version-check", "-r", str(_LOCK)]
    subprocess.run([str(ENVIRONMENT / "bin" / "python"), *command], check=True)
    (ENVIRONMENT / ".installed").touch()


if __name__ == "__main__":
    if sys.argv[1:] != ["install"]:
        sys.exit("usage: python -m benchmarks.peers install")
    install()
