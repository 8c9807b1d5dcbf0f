"""A scheduler that closes an idle connection as the next request comes on it."""

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests import servers

pytestmark = pytest.mark.slow

RESPONSE = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"


class ClosingScheduler:
    """Answers the first request of a connection, and closes it at the second."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.requests: list[bytes] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return  # closed
            with connection:
                self.requests.append(connection.recv(65536))
                connection.sendall(RESPONSE)
                self.requests.append(connection.recv(65536))


@pytest.fixture
def scheduler() -> Iterator[ClosingScheduler]:
    started = ClosingScheduler()
    with started.listener:
        yield started


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "w/runs/0", {}, 200),
        ("PUT", "w", {}, 200),
        ("DELETE", "w/runs/0", {}, 200),
        ("POST", "w:run", {"idempotency-key": "one"}, 200),
        ("POST", "w:run", {}, 502),
    ],
)
def test_what_can_be_repeated_is_sent_again(
    redis: servers.RedisServer,
    scheduler: ClosingScheduler,
    tmp_path: Path,
    method: str,
    path: str,
    headers: dict[str, str],
    status: int,
) -> None:
    with ExitStack() as stack:
        gateway = stack.enter_context(
            servers.gateway(
                tmp_path,
                redis_url=redis.url,
                pool="lost-schedulers",
                workflows_url=f"http://127.0.0.1:{scheduler.port}",
            )
        )
        client = stack.enter_context(httpx.Client(trust_env=False, timeout=60))
        url = f"{gateway.url}/v1/workflows"
        assert client.get(url).status_code == 200
        response = client.request(method, f"{url}/{path}", headers=headers)
    assert response.status_code == status, response.text
    sent = [each for each in scheduler.requests if each.startswith(f"{method} /v1/w".encode())]
    assert len(sent) == (2 if status == 200 else 1) + (method == "GET")
