"""Log lines of every process: a constant message, then the fields of the record."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_STANDARD_FIELDS: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class FieldFormatter(logging.Formatter):
    """Appends ` field=value` for each field given as `extra` to the constant message."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # logging's name
        fields = [
            f" {name}={value}"
            for name, value in vars(record).items()
            if name not in _STANDARD_FIELDS
        ]
        return super().formatMessage(record) + "".join(fields)


def configure_logs(
    handler: logging.Handler,
    level: str,
    *,
    line_format: str = "%(asctime)s %(levelname)s %(name)s: %(message)s",
    libraries: Iterable[str] = ("httpx", "httpcore"),
) -> None:
    """Write log lines to the handler alone; those of the libraries only from WARNING on."""
    handler.setFormatter(FieldFormatter(line_format))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in libraries:
        logging.getLogger(name).setLevel(logging.WARNING)
