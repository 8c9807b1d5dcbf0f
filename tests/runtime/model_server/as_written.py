"""The V2 server of `tests.runtime.v2_server` as a process, and models for it."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests import servers

ROW = [1.0, 2.0, 3.0, 4.0]
TOTAL = 10.0


@dataclass
class WrittenServer:
    """A V2 server that can be killed and started again on its port."""

    repository: Path
    is_binary: bool = True
    delay_s: float = 0.0
    """Of each inference."""
    port: int = field(default_factory=servers.free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def metrics_url(self) -> str:
        return f"{self.url}/metrics"

    @property
    def settings(self) -> dict[str, Any]:
        """Of a pod that has this server beside it."""
        return {"engine_url": self.url, "engine_repository": str(self.repository)}

    def start(self) -> None:
        """Start it, or another one in place of one that died."""
        self.kill()
        self.repository.mkdir(parents=True, exist_ok=True)
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.runtime.v2_server"),
                *("--repository", str(self.repository), "--port", str(self.port)),
                *([] if self.is_binary else ["--no-binary"]),
                *("--delay", str(self.delay_s)),
            ],
            cwd=servers.REPOSITORY,
        )
        servers.wait_until(lambda: self.get("/v2/health/live").is_success, what="server up")

    def kill(self) -> None:
        """End it as SIGKILL does."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, trust_env=False, timeout=5)

    def post(self, path: str) -> httpx.Response:
        return httpx.post(self.url + path, trust_env=False, timeout=5)

    def requests(self) -> list[str]:
        """The paths of all POSTs so far."""
        found: list[str] = self.get("/requests").json()
        return found


@contextlib.contextmanager
def written_server(
    repository: Path, *, is_binary: bool = True, delay_s: float = 0.0
) -> Iterator[WrittenServer]:
    server = WrittenServer(repository, is_binary, delay_s)
    server.start()
    try:
        yield server
    finally:
        server.kill()


def make_model(folder: Path, behaviour: str = "sum", *, config: str = "") -> Path:
    """A model in Triton's layout."""
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "behaviour").write_text(behaviour)
    if config:
        (folder / "config.pbtxt").write_text(config)
    return folder


def request(*rows: list[float], **fields: object) -> dict[str, Any]:
    """A V2 request in JSON."""
    data = [value for row in rows for value in row]
    entry = {"name": "INPUT0", "datatype": "FP32", "shape": [len(rows), len(rows[0])], "data": data}
    return {"inputs": [entry], **fields}
