"""Log format of the autoscaler: a constant message, then the record's fields."""

from __future__ import annotations

import logging
import sys

_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class _Fields(logging.Formatter):
    """Appends the fields passed as `extra`, as ` name=value`."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # logging's name
        fields = [f" {key}={value}" for key, value in vars(record).items() if key not in _PLAIN]
        return super().formatMessage(record) + "".join(fields)


def configure_logs(level: str) -> None:
    """Send log lines to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Fields("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for noisy in ("httpx", "httpcore"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
