"""Run a module with the compiled code; see the package."""

from __future__ import annotations

import runpy
import sys

from load.compiled.build import CannotCompile, built
from load.compiled.loading import use


def main() -> None:
    """`python -m load.compiled MODULE [ARGUMENT...]`."""
    if len(sys.argv) < 2:
        sys.exit("usage: python -m load.compiled MODULE [ARGUMENT...]")
    try:
        folder = built(say=_say)
    except CannotCompile as error:
        _say(f"plain Python: {error}")
    else:
        use(folder)
        _say(f"compiled: {folder}")
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def _say(text: str) -> None:
    sys.stderr.write(f"simulator: {text}\n")


if __name__ == "__main__":
    main()
