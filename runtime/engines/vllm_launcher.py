"""Starts vLLM's servers fast: imports vLLM once, then forks one per command (`common.forkserver`).

Run as a script by the Python of vLLM's own environment, which sees nothing of ours but `common`:
its versions of all libraries differ. `spawn` has {"name", "arguments", "environment", "log_file"}.
With `ready` it tells vLLM's version, the architectures that it knows, and whether it can sleep. No
CUDA starts here, as vLLM itself forks its engine's process.
"""

from __future__ import annotations

import importlib.util
import os
import runpy
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

_COMMON = Path(__file__).resolve().parents[2] / "common"
_SERVER = "vllm.entrypoints.openai.api_server"


def share_common() -> None:
    """Let `common` be imported, and nothing that lies beside it."""
    spec = importlib.util.spec_from_file_location(
        "common", _COMMON / "__init__.py", submodule_search_locations=[str(_COMMON)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{_COMMON} is missing")
    module = sys.modules["common"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


def import_vllm() -> None:
    import vllm.entrypoints.openai.api_server  # type: ignore[import-not-found]
    import vllm.v1.engine.core  # type: ignore[import-not-found]  # noqa: F401


def facts(import_s: float) -> dict[str, object]:
    from vllm import ModelRegistry, __version__
    from vllm.platforms import current_platform  # type: ignore[import-not-found]

    can_sleep = getattr(current_platform, "is_sleep_mode_available", lambda: False)
    return {
        "version": __version__,
        "architectures": sorted(ModelRegistry.get_supported_archs()),
        "can_sleep": bool(can_sleep()),
        "import_s": import_s,
    }


def serve(arguments: list[str], environment: dict[str, str]) -> int:
    """VLLM's server, until it ends."""
    os.environ.update(environment)
    sys.argv = ["vllm", *arguments]
    sys.modules.pop(_SERVER, None)  # it runs as the main module
    runpy.run_module(_SERVER, run_name="__main__")
    return 0


def main() -> int:
    share_common()
    from common.forkserver import ChildProgram, Forkserver, freeze_after
    from common.frames import parent_socket
    from common.parent_death import outlive_parent

    def program(fields: dict[str, Any]) -> ChildProgram:
        run = partial(serve, fields["arguments"], fields["environment"])
        return ChildProgram(fields["name"], run, fields["log_file"], has_session=True)

    # A killed pod ends the input: then the engines' own processes are killed, too.
    outlive_parent()
    connection = parent_socket()
    begun_s = time.monotonic()
    freeze_after(import_vllm)
    return Forkserver(connection, program, grace_s=0.0).run(**facts(time.monotonic() - begun_s))


if __name__ == "__main__":
    sys.exit(main())
