"""Where a pod's log lines go."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runtime.settings import PodSettings

NOISY = ("httpx", "httpcore", "botocore", "boto3", "urllib3", "transformers", "kserve", "uvicorn")


def configure_logs(settings: PodSettings) -> None:
    """Send log lines to the pod's file, or to standard error."""
    handler: logging.Handler = (
        logging.FileHandler(settings.log_file)
        if settings.log_file
        else logging.StreamHandler(sys.stderr)
    )
    line = f"%(asctime)s %(levelname)s {settings.name} %(name)s: %(message)s"
    handler.setFormatter(logging.Formatter(line))
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler], force=True)
    for name in NOISY:
        logging.getLogger(name).setLevel(logging.WARNING)
