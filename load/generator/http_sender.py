"""Requests over HTTP in V1, V2 or OpenAI's protocol, on connections that are kept open."""

import time
from collections.abc import Callable
from typing import Final

from common.http_client import HttpClient
from common.http_connection import Connection, HttpError, NotConnected
from load.generator.bodies import MAX_RESPONSE_BYTES, RequestBodies, RequestBody, judge
from load.generator.records import (
    MAX_KEPT_BYTES,
    RequestResult,
    http_error,
    stream_error,
    streamed_tokens,
)
from load.generator.settings import Content, RunSettings
from load.generator.target import TargetUrl, host_headers, inference_path
from load.generator.trace_arrivals import TraceArrival

_MAX_IDLE_S: Final = 4.0
"""uvicorn closes idle connections after 5 s; older ones are not used again."""


class HttpSender:
    """Sends requests of one worker; see `load.generator.worker.Sender`."""

    def __init__(
        self, settings: RunSettings, target: TargetUrl, now_s: Callable[[], float]
    ) -> None:
        self._settings = settings
        self._target = target
        self._now_s = now_s
        self._bodies = RequestBodies(settings.protocol, settings.seed)
        self._client = HttpClient(
            tls=target.tls(),
            connect_timeout_s=None,  # that of the request
            max_idle_s=_MAX_IDLE_S,
            max_idle=settings.max_in_flight,
        )

    async def send(
        self, arrival: TraceArrival, content: Content, request_id: str, result: RequestResult
    ) -> None:
        """Fill in the result of one request; every failure becomes its error."""
        body = self._bodies.body(arrival, content)
        head, response = self._head(arrival, body, request_id), b""
        result.label = body.label
        result.sent_s = self._now_s()
        try:
            connection = await self._client.take(self._target.address)
        except NotConnected as error:
            result.fail(f"no connection to {self._target.authority}: {error.__cause__}")
            result.finished_s = self._now_s()
            return
        try:
            response = await self._exchange(connection, head, body, result)
        except HttpError:
            place = "inside the response" if result.status else "before the response"
            result.fail(f"the connection was closed or broken {place}")
        finally:
            result.finished_s = self._now_s()
            if content.examples is not None:
                judge(result, arrival, content.examples, response)
            self._client.release(self._target.address, connection)

    async def _exchange(
        self, connection: Connection, head: bytes, body: RequestBody, result: RequestResult
    ) -> bytes:
        """The end of the response, or all of one that is judged."""
        connection.start()
        connection.write(head, [body.data])
        await connection.wait_head()
        result.first_byte_s = self._now_s() - (time.monotonic() - connection.head_s)
        result.status = connection.status
        result.read_headers(connection.headers)
        kept_bytes = MAX_KEPT_BYTES if body.label is None else MAX_RESPONSE_BYTES
        tail = b""
        while not connection.is_taken:
            await connection.wait_body()
            tail = (tail + b"".join(connection.take_body()))[-kept_bytes:]
        if not 200 <= result.status < 300:
            result.fail(http_error(result.status, tail))
        elif body.is_streamed:
            result.generated_tokens = streamed_tokens(tail)
            if (error := stream_error(tail)) is not None:
                result.fail(error)
        return tail

    def _head(self, arrival: TraceArrival, body: RequestBody, request_id: str) -> bytes:
        settings = self._settings
        path = inference_path(
            settings.protocol,
            settings.layout,
            tenant=arrival.tenant,
            model=arrival.model,
            is_generation=arrival.output_size > 0,
        )
        host = host_headers(settings.host_header, arrival.tenant, arrival.model)
        lines = [
            f"POST {self._target.path}{path} HTTP/1.1",
            f"host: {host.get('host', self._target.authority)}",
            f"x-request-id: {request_id}",
            f"content-length: {len(body.data)}",
            *(f"{name}: {value}" for name, value in body.headers),
            *(f"{name}: {value}" for name, value in settings.credentials.items()),
        ]
        if settings.policy is not None:
            lines.append(f"x-pilotlight-policy: {settings.policy}")
        if arrival.deadline_s is not None:
            lines.append(f"x-pilotlight-deadline-ms: {max(1.0, arrival.deadline_s * 1000):.3f}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode()

    async def close(self) -> None:
        self._client.close()
