"""The benchmark's S3 server beside this process, and what clients need to reach it."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from benchmarks.machine import REPOSITORY
from pilotlight.platform.processes import free_port

_START_S = 20.0


@dataclass(frozen=True, slots=True)
class Distance:
    """How far a store is; by default it answers at once and as fast as it can."""

    first_byte_s: float = 0.0
    bytes_per_s: float = 0.0
    """Of each connection; 0 for no limit."""


@contextmanager
def serving(folder: Path, distance: Distance | None = None) -> Iterator[str]:
    """The URL of a server whose buckets are the folders in `folder`."""
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.storage.server", str(port), str(folder)]
    if distance is not None:
        command += [str(distance.first_byte_s), str(distance.bytes_per_s)]
    process = subprocess.Popen(command, cwd=REPOSITORY)
    url = f"http://127.0.0.1:{port}"
    try:
        give_up_s = time.monotonic() + _START_S
        while not _answers(url):
            if process.poll() is not None or time.monotonic() > give_up_s:
                raise RuntimeError("the server did not start")
            time.sleep(0.05)
        yield url
    finally:
        process.terminate()
        process.wait()


def environment_of(url: str) -> dict[str, str]:
    """This process's environment, its account replaced by one of the server."""
    environment = {name: text for name, text in os.environ.items() if not name.startswith("AWS_")}
    return environment | {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "bench",
        "AWS_SECRET_ACCESS_KEY": "bench",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING": "0",
        "no_proxy": "127.0.0.1",
    }


def _answers(url: str) -> bool:
    try:
        return httpx.head(url, trust_env=False).status_code == httpx.codes.NOT_FOUND
    except httpx.TransportError:
        return False
