"""Requests and responses as CloudEvents to the URL of a model's `logger`, as KServe's agent sends.

In binary mode over HTTP/1.1 (https://github.com/cloudevents/spec, version 1.0): attributes are
`ce-` headers, the body is the data. Events wait in a queue that is bounded in number and bytes, and
are sent by a few tasks; what does not fit or is not taken is dropped and counted. No request waits.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final
from urllib.parse import urlsplit

from common.http_client import HttpClient, split_url
from common.http_connection import HttpError
from common.http_headers import Headers
from registry.domain.model import LogMode, ModelName, ModelSpec, RequestLog

logger = logging.getLogger(__name__)

REQUEST: Final = "org.kubeflow.serving.inference.request"
RESPONSE: Final = "org.kubeflow.serving.inference.response"
MAX_EVENT_BYTES: Final = 1 << 20
MAX_EVENTS: Final = 1000
MAX_QUEUED_BYTES: Final = 32 << 20
SENDERS: Final = 4
TIMEOUT_S: Final = 5.0


class EventOutcome(StrEnum):
    SENT = "sent"
    FAILED = "failed"
    """The receiver could not be reached, or did not answer with a status below 300."""
    QUEUE_FULL = "queue-full"
    TOO_LARGE = "too-large"
    FORBIDDEN = "forbidden"
    """The URL is not one that the model's namespace may name."""


@dataclass(frozen=True, slots=True)
class Event:
    url: str
    headers: Mapping[str, str]
    """With the event's attributes."""
    chunks: Sequence[bytes]
    size: int


class EventLog:
    def __init__(
        self, count: Callable[[EventOutcome], None], is_allowed: Callable[[str, str], bool]
    ) -> None:
        """`is_allowed`: whether a namespace may name a URL."""
        self._client = HttpClient(max_body_bytes=MAX_EVENT_BYTES)
        self.count = count
        self._is_allowed = is_allowed
        self._events: asyncio.Queue[Event] = asyncio.Queue(MAX_EVENTS)
        self._queued_bytes = 0
        self._is_failing = False

    def logged(
        self, spec: ModelSpec, settings: RequestLog, request_id: str, pod: str, headers: Headers
    ) -> "LoggedRequest | None":
        """The log of one request that a pod has answered; None: it may not be sent there."""
        if not self._is_allowed(spec.name.namespace, settings.url):
            self.count(EventOutcome.FORBIDDEN)
            return None
        attributes = _attributes(spec.name, settings.headers, request_id, pod, headers)
        return LoggedRequest(self, settings, attributes)

    def add(self, event: Event) -> None:
        if event.size > MAX_EVENT_BYTES:
            self.count(EventOutcome.TOO_LARGE)
        elif self._events.full() or self._queued_bytes + event.size > MAX_QUEUED_BYTES:
            self.count(EventOutcome.QUEUE_FULL)
        else:
            self._events.put_nowait(event)
            self._queued_bytes += event.size

    async def run(self) -> None:
        """Send until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(SENDERS):
                    group.create_task(self._send_all())
        finally:
            self._client.close()

    async def _send_all(self) -> None:
        while True:
            event = await self._events.get()
            try:
                await self._send(event)
            except (HttpError, ValueError) as error:
                self.count(EventOutcome.FAILED)
                if not self._is_failing:  # one line per outage
                    logger.warning("events were not taken", extra={"error": error})
                self._is_failing = True
            else:
                self.count(EventOutcome.SENT)
                self._is_failing = False
            finally:
                self._queued_bytes -= event.size

    async def _send(self, event: Event) -> None:
        """Raises HttpError, ValueError."""
        address, path = split_url(event.url)
        headers = {"host": urlsplit(event.url).netloc, **event.headers}
        response = await self._client.request(
            "POST", address, path or "/", headers, event.chunks, timeout_s=TIMEOUT_S
        )
        if response.status >= 300:
            raise HttpError(f"{event.url} answered with status {response.status}")


@dataclass(eq=False, slots=True)
class LoggedRequest:
    """One request, and the parts of its response so far."""

    log: EventLog
    settings: RequestLog
    attributes: Mapping[str, str]
    _response: list[bytes] = field(default_factory=list)
    _response_bytes: int = 0

    def request(self, chunks: Sequence[bytes], size: int, content_type: bytes) -> None:
        if self.settings.mode is not LogMode.RESPONSE:
            self._add(REQUEST, list(chunks), size, content_type)

    def response_part(self, body: bytes) -> None:
        if self.settings.mode is LogMode.REQUEST:
            return
        self._response_bytes += len(body)
        if self._response_bytes <= MAX_EVENT_BYTES:
            self._response.append(body)
        else:
            self._response = []

    def response_end(self, content_type: bytes) -> None:
        """The response had status 200 and is complete."""
        if self.settings.mode is not LogMode.REQUEST:
            self._add(RESPONSE, self._response, self._response_bytes, content_type)

    def _add(self, kind: str, chunks: Sequence[bytes], size: int, content_type: bytes) -> None:
        headers = {
            "ce-type": kind,
            "ce-time": datetime.now(UTC).isoformat(),
            "content-type": content_type.decode("latin-1") or "application/json",
            **self.attributes,
        }
        self.log.add(Event(self.settings.url, headers, chunks, size))


def _attributes(
    name: ModelName, wanted: Sequence[str], request_id: str, pod: str, headers: Headers
) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    for key, value in headers:
        if (text := key.decode("latin-1")) in wanted:
            found.setdefault(text, []).append(value.decode("latin-1"))
    values = {
        "specversion": "1.0",
        "id": dict(headers).get(b"ce-id", request_id.encode()).decode("latin-1"),
        "source": pod,
        "inferenceservicename": name.name,
        "namespace": name.namespace,
        "component": "predictor",
        "endpoint": "default",
        "metadata": json.dumps(found),
    }
    return {f"ce-{key}": value for key, value in values.items()}
