"""One request over HTTP, from the first byte sent to the last one read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.upstream.pod_connection import PodConnectionLost
from load.generator.answers import MOST_KEPT, RequestResult, error_of, stream_error
from load.generator.bodies import Bodies
from load.generator.connections import Connections
from load.generator.paths import inference_path
from load.generator.target_url import host_headers

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.upstream.pod_connection import PodConnection
    from load.generator.arrivals import TraceArrival
    from load.generator.bodies import Body
    from load.generator.content import Content
    from load.generator.settings import RunSettings
    from load.generator.target_url import TargetUrl


class HttpSender:
    """Puts requests in V1, V2 or OpenAI's protocol."""

    def __init__(
        self, settings: RunSettings, origin: TargetUrl, now_s: Callable[[], float]
    ) -> None:
        self._settings = settings
        self._origin = origin
        self._now_s = now_s
        self._bodies = Bodies(settings.protocol, settings.seed)
        self._connections = Connections(origin)

    async def send(
        self, arrival: TraceArrival, content: Content, request_id: str, outcome: RequestResult
    ) -> None:
        """Fill in the outcome of one request; whatever goes wrong becomes its error."""
        body = self._bodies.body(arrival, content)
        head = self._head(arrival, body, request_id)
        outcome.sent_s = self._now_s()
        try:
            connection = await self._connections.take()
        except OSError as error:
            outcome.error = f"no connection to {self._origin.authority}: {error}"
            outcome.finished_s = self._now_s()
            return
        try:
            await self._exchange(connection, head, body, outcome)
        except PodConnectionLost:
            part = "inside its answer" if outcome.status else "before it answered"
            outcome.error = f"the connection was closed or broken {part}"
        finally:
            outcome.finished_s = self._now_s()
            if outcome.error is None or connection.is_complete:
                self._connections.give_back(connection)
            else:
                connection.close()

    async def _exchange(
        self, connection: PodConnection, head: bytes, body: Body, outcome: RequestResult
    ) -> None:
        def on_data() -> None:
            if outcome.first_byte_s is None and connection.has_head:
                outcome.first_byte_s = self._now_s()

        connection.on_data = on_data
        connection.write_all(head, [body.data])
        await connection.wait_head()
        outcome.status = connection.status
        outcome.read_headers(connection.headers)
        tail = b"".join(connection.take_body())[-MOST_KEPT:]
        while not connection.is_complete:
            await connection.wait_body()
            tail = (tail + b"".join(connection.take_body()))[-MOST_KEPT:]
        if not 200 <= outcome.status < 300:
            outcome.error = error_of(outcome.status, tail)
        elif body.is_streamed:
            outcome.error = stream_error(tail)

    def _head(self, arrival: TraceArrival, body: Body, request_id: str) -> bytes:
        settings = self._settings
        path = inference_path(
            settings.protocol, settings.layout, tenant=arrival.tenant, model=arrival.model,
            is_generation=arrival.output_size > 0,
        )  # fmt: skip
        host = host_headers(settings.host_header, arrival.tenant, arrival.model)
        lines = [
            f"POST {self._origin.path}{path} HTTP/1.1",
            f"host: {host.get('host', self._origin.authority)}",
            f"x-request-id: {request_id}",
            f"content-length: {len(body.data)}",
            *(f"{name}: {value}" for name, value in body.headers),
        ]
        if settings.policy is not None:
            lines.append(f"x-pilotlight-policy: {settings.policy}")
        if arrival.deadline_s is not None:
            lines.append(f"x-pilotlight-deadline-ms: {max(1.0, arrival.deadline_s * 1000):.3f}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode()

    async def close(self) -> None:
        """Close idle connections."""
        self._connections.close()
