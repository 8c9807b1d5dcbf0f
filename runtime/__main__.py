"""Run one pod: `python -m runtime --name POD --redis-url URL`."""

from __future__ import annotations

import logging
import os
import sys

from common.process import set_process_title
from common.settings_table import read_settings
from runtime.pod.placement_claim import with_place
from runtime.pod_process import bind_to_share
from runtime.settings import RuntimeSettings


def main() -> int:
    arguments, environment = sys.argv[1:], dict(os.environ)
    settings = read_settings(RuntimeSettings, sys.argv[1:], os.environ, prog="python -m runtime")
    sys.argv = sys.argv[:1]  # kserve reads the command line when it is imported
    settings = with_place(settings)
    set_process_title(settings.name)
    bind_to_share(share_pct=settings.share)
    os.environ.setdefault("OMP_NUM_THREADS", str(settings.threads))
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from runtime.pod_process import import_everything

    import_everything()
    from runtime.pod.lifecycle import RESTART, run_pod

    status = run_pod(settings)
    if status == RESTART:
        logging.shutdown()
        os.execve(sys.executable, [sys.executable, "-m", "runtime", *arguments], environment)
    return status


if __name__ == "__main__":
    status = main()
    logging.shutdown()
    os._exit(status)  # a thread hanging in a download would block the interpreter's exit
