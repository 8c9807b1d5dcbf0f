"""The forkserver starts pods fast: it imports all libraries once, then forks a pod per command.

Standard input is its parent's socket; `spawn` has a pod's settings (`common.forkserver`).
"""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import Any

from common.forkserver import ChildProgram, Forkserver, freeze_after
from common.frames import parent_socket
from common.process import set_process_title
from common.settings_table import settings_from_fields
from runtime.pod_process import bind_to_share, import_everything
from runtime.settings import RuntimeSettings


def pod_program(fields: dict[str, Any]) -> ChildProgram:
    """Raises ValueError, TypeError."""
    settings = settings_from_fields(RuntimeSettings, fields)
    return ChildProgram(settings.name, partial(_run_pod, settings), settings.log_file)


def _run_pod(settings: RuntimeSettings) -> int:
    set_process_title(settings.name)
    bind_to_share(gpu=settings.gpu, cores=settings.cores, share_pct=settings.share)
    from runtime.pod.lifecycle import run_pod

    return run_pod(settings)


def main() -> int:
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    connection = parent_socket()
    sys.argv = sys.argv[:1]  # kserve reads the command line when it is imported
    set_process_title("forkserver")
    freeze_after(import_everything)
    return Forkserver(connection, pod_program).run()


if __name__ == "__main__":
    sys.exit(main())
