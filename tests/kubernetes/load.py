"""Requests that keep coming while something is killed."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

import httpx

from tests.servers import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.kubernetes.models import Gateway, Tenant

CLIENTS = 2
PAUSE_S = 0.05


class Load:
    """A few clients that call one model again and again."""

    def __init__(
        self, gateway: Gateway, tenant: Tenant, model: str, instances: Sequence[object]
    ) -> None:
        self._gateway, self._tenant, self._model = gateway, tenant, model
        self._instances = instances
        self._is_over = threading.Event()
        self._answers: list[httpx.Response] = []
        self.broken: list[str] = []
        """Requests that got no answer, since the connection broke."""

    def run(self) -> None:
        """Call until told to stop."""
        while not self._is_over.is_set():
            try:
                answer = self._gateway.predict(self._tenant, self._model, *self._instances)
                self._answers.append(answer)
            except httpx.TransportError as error:
                self.broken.append(repr(error))
            time.sleep(PAUSE_S)

    def stop(self) -> None:
        """Let the clients finish what they are at."""
        self._is_over.set()

    @property
    def refused(self) -> list[str]:
        """Answers other than 200."""
        return [answer.text for answer in list(self._answers) if answer.status_code != 200]

    def wait_for_more(self, count: int) -> None:
        """Return when `count` more requests have been answered."""
        wanted = len(self._answers) + count
        wait_until(lambda: len(self._answers) >= wanted, what=f"{count} more answers")


@contextlib.contextmanager
def load(
    gateway: Gateway,
    tenant: Tenant,
    model: str,
    *,
    clients: int = CLIENTS,
    instances: Sequence[object] = (),
) -> Iterator[Load]:
    """Load that has begun to be answered, and ends with the block."""
    started = Load(gateway, tenant, model, instances)
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
