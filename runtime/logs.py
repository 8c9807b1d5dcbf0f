"""Format and destination of a pod's log lines."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runtime.settings import RuntimeSettings

LIBRARIES = (
    "httpx",
    "httpcore",
    "botocore",
    "boto3",
    "urllib3",
    "transformers",
    "kserve",
    "uvicorn",
)
STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class FieldFormatter(logging.Formatter):
    """Appends ` field=value` for each field given as `extra` to the constant message."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # logging's name
        fields = [
            f" {name}={value}"
            for name, value in vars(record).items()
            if name not in STANDARD_FIELDS
        ]
        return super().formatMessage(record) + "".join(fields)


def configure_logs(settings: RuntimeSettings) -> None:
    """Write log lines to the pod's file, or to standard error; libraries' only from WARNING on."""
    handler: logging.Handler = (
        logging.FileHandler(settings.log_file)
        if settings.log_file
        else logging.StreamHandler(sys.stderr)
    )
    line = f"%(asctime)s %(levelname)s {settings.name} %(name)s: %(message)s"
    handler.setFormatter(FieldFormatter(line))
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler], force=True)
    for name in LIBRARIES:
        logging.getLogger(name).setLevel(logging.WARNING)
