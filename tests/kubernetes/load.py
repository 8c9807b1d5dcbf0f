"""Continuous requests while a test kills something."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import httpx

from tests.kubernetes.models import Gateway, Tenant
from tests.servers import wait_until

CLIENTS = 2
PAUSE_S = 0.05


class Load:
    """A few clients that call one model repeatedly."""

    def __init__(self, call: Callable[[], httpx.Response]) -> None:
        self._call = call
        self._is_over = threading.Event()
        self._lock = threading.Lock()
        self._answer_total = 0
        self.refused: list[str] = []
        """Responses with a status other than 200."""
        self.broken: list[str] = []
        """Requests without a response, because the connection broke."""

    def run(self) -> None:
        """Send requests until `stop` is called."""
        while not self._is_over.is_set():
            try:
                self._note(self._call())
            except httpx.TransportError as error:
                self.broken.append(repr(error))
            time.sleep(PAUSE_S)

    def stop(self) -> None:
        """Stop after the requests in flight."""
        self._is_over.set()

    def _note(self, answer: httpx.Response) -> None:
        if answer.status_code != 200:
            self.refused.append(f"{answer.status_code}: {answer.text}")
        with self._lock:
            self._answer_total += 1

    def wait_for_more(self, count: int) -> None:
        """Return after `count` more responses."""
        wanted = self._answer_total + count
        wait_until(lambda: self._answer_total >= wanted, what=f"{count} more answers")


@contextlib.contextmanager
def load(
    gateway: Gateway,
    tenant: Tenant,
    model: str,
    *,
    clients: int = CLIENTS,
    instances: Sequence[object] = (),
    headers: Mapping[str, str] | None = None,
) -> Iterator[Load]:
    """Load on a model, from its first response to the end of the context."""
    started = Load(lambda: gateway.predict(tenant, model, *instances, headers=headers))
    threads = [threading.Thread(target=started.run) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        started.wait_for_more(clients)
        yield started
    finally:
        started.stop()
        for thread in threads:
            thread.join()
