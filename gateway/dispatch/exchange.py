"""One inference request of a client: buffer its body, call a pod, stream the response back.

Everything a request owns (slot, connection, queue entry) is released when its coroutine ends,
however it ends.
"""

from __future__ import annotations

import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from gateway.http.inference_client import wait_for_reader
from gateway.telemetry.recent_requests import stage_timings
from gateway.telemetry.request_telemetry import ServedRequest

if TYPE_CHECKING:
    from gateway.dispatch.inference_call import InferenceCall
    from gateway.http.body import IncomingBody
    from gateway.http.headers import Headers
    from gateway.http.inference_client import InferenceClient
    from gateway.telemetry.request_telemetry import RequestTelemetry
    from gateway.upstream.event_log import LoggedRequest

MAX_ERROR_BYTES: Final = 2048
"""Of an error's response, kept for its explanation."""


class Exchange:
    awaited = "pod"
    """Who responds, for messages."""

    def __init__(
        self,
        call: InferenceCall,
        client: InferenceClient,
        body: IncomingBody,
        telemetry: RequestTelemetry,
        *,
        stall_s: float,
    ) -> None:
        """`stall_s`: how long the client may read nothing of its response."""
        self._call = call
        self._client = client
        self._body = body
        self._telemetry = telemetry
        self._stall_s = stall_s
        self._logged: LoggedRequest | None = None
        self._content_type = b""
        """Of the response, for its event."""
        self._error_body = b""
        """The first bytes of an error's response."""

    async def run(self, until_s: float) -> None:
        """Serve the request until loop time `until_s`.

        Raises GatewayError if there is no response, or only the beginning of one.
        """
        if not self._body.receive_now():
            await self._body.receive()
        call = self._call
        await call.send(until_s)
        try:
            await self._respond()
        except BaseException:
            call.end(is_complete=False)
            raise
        call.end(is_complete=True)

    @property
    def policy(self) -> str | None:
        """The policy of the last placement; None if the request was not placed."""
        return self._call.placement.policy if self._call.is_placed else None

    async def _respond(self) -> None:
        call, client = self._call, self._client
        connection, response = call.connection, call.response
        if not connection.has_body:
            await connection.wait_body()  # an error until here still gets a clear response
        timings = stage_timings(call.queue_s, time.perf_counter() - call.sent_s, response)
        served = self._served_request()
        self._log_request()
        lines = self._telemetry.head_lines(served, response, timings)
        client.start_response(connection.status, lines, has_length=response.has_length)
        is_last = self._forward_body()
        # After the write: off its path.
        self._telemetry.served(served, timings, connection.status, self._error_body)
        if response.has_length:
            call.release()  # such a response is complete at the pod: a slow client holds no slot
        while not is_last:
            await wait_for_reader(client, self._stall_s)
            await connection.wait_body()
            is_last = self._forward_body()

    def _forward_body(self) -> bool:
        """Send the client the received part of the response; returns whether it was the last."""
        connection = self._call.connection
        chunks = connection.take_body()
        if connection.is_complete:
            self._call.release()  # before the client can send its next request
        body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        if connection.status >= HTTPStatus.BAD_REQUEST and not self._error_body:
            self._error_body = body[:MAX_ERROR_BYTES]
        if self._logged is not None:
            self._log_response(self._logged, body)
        self._client.write_body(body, is_last=connection.is_complete)
        return connection.is_complete

    def _log_request(self) -> None:
        """As events, if the model has a logger; responses only with status 200, as KServe does."""
        logged = self._call.logged(self._client.headers)
        if logged is None:
            return
        body = self._body
        logged.request(body.buffered, body.received_bytes, _content_type(self._client.headers))
        if self._call.connection.status == HTTPStatus.OK:
            self._logged = logged
            self._content_type = _content_type(self._call.connection.headers)

    def _log_response(self, logged: LoggedRequest, body: bytes) -> None:
        logged.response_part(body)
        if self._call.connection.is_complete:
            logged.response_end(self._content_type)

    def _served_request(self) -> ServedRequest:
        call, target = self._call, self._client.target
        placement, start = call.placement, call.response.start
        return ServedRequest(
            call.request.id,
            target.label,
            target.version,
            str(placement.policy),
            placement.decision,
            placement.reservation.entry.name,
            placement.reservation.predict.name,
            start if start != "warm" else call.awaited_tier or "warm",
            target.selection_lines,
            self._error_name(),
        )

    def _error_name(self) -> str:
        """Of an error's response; an error of a server behind the pod has none of its own."""
        if self._call.connection.status < HTTPStatus.BAD_REQUEST:
            return ""
        return self._call.response.error.decode("latin-1") or "error"


def _content_type(headers: Headers) -> bytes:
    return next((value for name, value in headers if name == b"content-type"), b"")
