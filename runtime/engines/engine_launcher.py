"""Starts an engine's servers fast: imports it once, forks one per command (`common.forkserver`).

Run as a script by the Python of the engine's own environment, which sees nothing of ours but
`common`: its versions of all libraries differ. The argument is an adapter's `Launch` with its
program, as JSON. `spawn` has {"name", "arguments", "environment", "log_file"}; `ready` has
`LauncherFacts`. No CUDA starts here, as vLLM itself forks its engine's process.
"""

from __future__ import annotations

import importlib.util
import json
import os
import runpy
import subprocess
import sys
import time
from functools import partial, reduce
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

_COMMON = Path(__file__).resolve().parents[2] / "common"


def share_common() -> None:
    """Let `common` be imported, and nothing that lies beside it."""
    spec = importlib.util.spec_from_file_location(
        "common", _COMMON / "__init__.py", submodule_search_locations=[str(_COMMON)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{_COMMON} is missing")
    module = sys.modules["common"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


def value_of(name: str, default: object) -> Any:
    """What `MODULE:ATTRIBUTES` is, or returns; the default where there is none."""
    module, _, attributes = name.partition(":")
    if not module:
        return default
    try:
        found = reduce(getattr, attributes.split("."), import_module(module))
    except AttributeError:
        return default
    return found() if callable(found) else found


def version_of(program: str) -> str:
    """What a server says of itself; raises SystemExit if it cannot run here."""
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    text = f"{said.stderr}{said.stdout}".strip()
    if said.returncode:
        raise SystemExit(f"{program} --version ended with {said.returncode}: {text}")
    return next((line for line in text.splitlines() if "version" in line), "unknown")


def serve(launch: dict[str, Any], arguments: list[str], environment: dict[str, str]) -> NoReturn:
    """The server, until it ends."""
    os.environ.update(environment)
    if not (server := launch["server"]):
        os.execv(launch["program"], [launch["program"], *arguments])
    sys.argv = [server, *arguments]
    sys.modules.pop(server, None)  # it runs as the main module
    runpy.run_module(server, run_name="__main__")
    sys.exit()


def main() -> int:
    share_common()
    from common.forkserver import ChildProgram, Forkserver, freeze_after
    from common.frames import parent_socket
    from common.parent_death import outlive_parent

    launch = json.loads(sys.argv[1])

    def program(fields: dict[str, Any]) -> ChildProgram:
        run = partial(serve, launch, fields["arguments"], fields["environment"])
        return ChildProgram(fields["name"], run, fields["log_file"], has_session=True)

    def import_all() -> None:
        for module in (launch["server"], *launch["imports"]):
            import_module(module)

    # A killed pod ends the input: then the engines' own processes are killed, too.
    outlive_parent()
    connection = parent_socket()
    begun_s = time.monotonic()
    if launch["server"]:
        freeze_after(import_all)
        version = value_of(launch["version"], "unknown")
    else:
        version = version_of(launch["program"])
    return Forkserver(connection, program, grace_s=0.0).run(
        version=version,
        architectures=sorted(value_of(launch["architectures"], ())),
        can_sleep=bool(value_of(launch["can_sleep"], False)),
        import_s=time.monotonic() - begun_s,
    )


if __name__ == "__main__":
    sys.exit(main())
