"""Autoscalers in their own processes."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from typing import TYPE_CHECKING

from tests import servers

if TYPE_CHECKING:
    from collections.abc import Iterator


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
