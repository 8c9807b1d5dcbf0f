"""Run a module with the compiled code; see the package."""

from __future__ import annotations

import runpy
import sys

from load.compiled.build import CannotCompile, build
from load.compiled.loading import install


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit("usage: python -m load.compiled MODULE [ARGUMENT...]")
    try:
        folder = build(log=_log)
    except CannotCompile as error:
        _log(f"plain Python: {error}")
    else:
        install(folder)
        _log(f"compiled: {folder}")
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def _log(text: str) -> None:
    sys.stderr.write(f"simulator: {text}\n")


if __name__ == "__main__":
    main()
