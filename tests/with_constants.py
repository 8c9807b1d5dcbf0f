"""Runs a program with other constants, where a test cannot wait for those of the product.

`python -m tests.with_constants MODULE:NAME=NUMBER … PROGRAM ARGUMENTS`
"""

import importlib
import json
import runpy
import sys


def main() -> None:
    arguments = sys.argv[1:]
    while "=" in arguments[0]:
        place, _, number = arguments.pop(0).partition("=")
        module, _, name = place.partition(":")
        changed = importlib.import_module(module)
        getattr(changed, name)  # an unknown name is an error
        setattr(changed, name, json.loads(number))
    sys.argv = arguments
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
