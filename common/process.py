"""A process among others: what `ps` shows of it, its log lines, and the signals that end it."""

import asyncio
import ctypes
import fcntl
import json
import logging
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from setproctitle import getproctitle, setproctitle

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
"""Numbers of `mallopt` in glibc."""
_MAX_IN_HEAP: Final = 4 << 20
_STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


def set_process_title(name: str) -> None:
    """`pilotlight: NAME` in place of the command line."""
    os.environ["SPT_NOENV"] = "1"  # else the title takes the place of /proc/PID/environ
    setproctitle(f"pilotlight: {name}")


def extend_process_title(part: str) -> None:
    """Of a forked process, which is a part of the one whose title it has."""
    setproctitle(f"{getproctitle()} {part}")


def keep_freed_memory(byte_count: int) -> None:
    """Let the allocator keep so much for the next large blocks, such as bodies of requests.

    glibc gives the end of its heap back at once, and each page that comes again is an interrupt.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)  # other libraries have none
    if set_option is not None:
        set_option(_M_TRIM_THRESHOLD, byte_count)
        set_option(_M_MMAP_THRESHOLD, _MAX_IN_HEAP)


@contextmanager
def on_stop_signals(stop: Callable[[int], object]) -> Iterator[None]:
    """Call `stop` in the running loop with the number of each SIGINT and SIGTERM."""
    loop = asyncio.get_running_loop()
    for number in _STOP_SIGNALS:
        loop.add_signal_handler(number, stop, number)
    try:
        yield
    finally:
        for number in _STOP_SIGNALS:
            loop.remove_signal_handler(number)


# Log lines of every process: a constant message, then the fields of the record.


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


# Folders for sockets: short, as a socket's path may have 107 bytes and that of --home has more.
#
# Each holds a lock for as long as the process that made it runs, however that ends. Who makes one
# removes those whose lock is free, which a killed process has left.


_PREFIX: Final = "pilotlight-"
_LOCK: Final = "in-use"


@contextmanager
def socket_folder() -> Iterator[Path]:
    """A folder of this user's alone, until the context or the process ends."""
    _remove_abandoned(Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    try:
        with _locked(folder):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """The lock gets its name once it is held, so that nobody finds a free one."""
    aside = folder / f"{_LOCK}.new"
    descriptor = os.open(aside, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        aside.rename(folder / _LOCK)
        yield
    finally:
        os.close(descriptor)


def _remove_abandoned(parent: Path) -> None:
    for folder in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError):  # without a lock it is something else; another start removes it
            if folder.lstat().st_uid == os.getuid() and not _is_in_use(folder):
                shutil.rmtree(folder)


def _is_in_use(folder: Path) -> bool:
    """Raises OSError for a folder without a lock."""
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def write_private_file(file: Path, text: str) -> None:
    """Replace a file atomically by one that only this user may read."""
    aside = file.with_suffix(".tmp")
    aside.unlink(missing_ok=True)
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w") as stream:
        stream.write(text)
    aside.replace(file)
