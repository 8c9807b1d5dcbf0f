"""Log lines of every process: a constant message, then the fields of the record."""

import json
import logging
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

LOG_FORMATS: Final = ("text", "json")
_STANDARD_FIELDS: Final = frozenset(vars(logging.makeLogRecord({}))) | {
    "message",
    "asctime",
    "color_message",  # uvicorn's message once more, with escape sequences
}


class FieldFormatter(logging.Formatter):
    """Appends ` field=value` for each field given as `extra` to the constant message."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # logging's name
        fields = [
            f" {name}={value}"
            for name, value in vars(record).items()
            if name not in _STANDARD_FIELDS
        ]
        return super().formatMessage(record) + "".join(fields)


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, message, and the fields given as `extra`."""

    def format(self, record: logging.LogRecord) -> str:  # logging's name
        document: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields = {key: each for key, each in vars(record).items() if key not in _STANDARD_FIELDS}
        document |= fields
        if record.exc_info:
            document["exception"] = self.formatException(record.exc_info)
        return json.dumps(document, default=str)


def parse_log_format(text: str) -> str:
    if text not in LOG_FORMATS:
        raise ValueError(f"must be one of {', '.join(LOG_FORMATS)}, was {text!r}")
    return text


def configure_logs(
    handler: logging.Handler,
    level: str,
    *,
    log_format: str = "text",
    line_format: str = "%(asctime)s %(levelname)s %(name)s: %(message)s",
    libraries: Iterable[str] = ("httpx", "httpcore"),
) -> None:
    """Write log lines to the handler alone; those of the libraries only from WARNING on."""
    is_json = log_format == "json"
    handler.setFormatter(JsonFormatter() if is_json else FieldFormatter(line_format))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in libraries:
        logging.getLogger(name).setLevel(logging.WARNING)
