"""Autoscalers in their own processes."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator

from tests import servers


@contextlib.contextmanager
def autoscaler_process(redis_url: str, **settings: object) -> Iterator[subprocess.Popen[bytes]]:
    """A running `python -m autoscaler`; ends with the context."""
    flags = {"redis_url": redis_url, **settings}
    arguments = [
        text
        for name, value in flags.items()
        for text in (f"--{name.replace('_', '-')}", str(value))
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "autoscaler", *arguments], cwd=servers.REPOSITORY
    )
    try:
        yield process
    finally:
        servers.end_process(process)
