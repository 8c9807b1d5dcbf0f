"""One inference request: buffer its body, place it, send it to the pod, stream the response back.

Everything a request owns (slot, connection, queue entry) is released when its coroutine ends,
however it ends. A request is retried at another pod only if the first cannot have produced a
response, and only while the retry budget lasts.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gateway.dispatch.pod_request import request_head, send_request
from gateway.errors import NoPodAccepted, UpstreamLost
from gateway.http.headers import PodResponse, read_response
from gateway.telemetry.request_telemetry import ServedRequest, stage_timings
from gateway.upstream.pod_connection import PodConnectionLost, PodUnreachable
from gateway.upstream.queue_proxy import MESSAGES, classify_response, is_from_pod
from registry.knative_errors import QueueProxyFailure

if TYPE_CHECKING:
    from gateway.dispatch.dispatcher import Dispatcher, Placement
    from gateway.dispatch.passive_health import PassiveHealth
    from gateway.dispatch.reservations import Reservation, Reservations
    from gateway.dispatch.retries import RetryBudget
    from gateway.http.body import IncomingBody
    from gateway.http.client_request import ClientRequest
    from gateway.http.headers import RequestHeaders
    from gateway.routing.route_request import IncomingRequest
    from gateway.telemetry.arrival_counter import ArrivalCounter
    from gateway.telemetry.request_telemetry import RequestTelemetry
    from gateway.upstream.pod_connection import PodConnection, PodConnectionPool
    from registry.domain.pod_state import PodState

_MAX_ATTEMPTS: Final = 10
_RETRYABLE_REFUSALS: Final = frozenset(("slots", "draining", "device-full"))
"""Refusals caused by the pod's state at the time, not by the request or its model."""


@dataclass(frozen=True, slots=True)
class ExchangeContext:
    """The parts of the gateway that every exchange uses."""

    dispatcher: Dispatcher
    passive_health: PassiveHealth
    connections: PodConnectionPool
    retry_budget: RetryBudget
    telemetry: RequestTelemetry
    reservations: Reservations
    arrival_counter: ArrivalCounter


class _RetryElsewhere(Exception):
    """The pod has not executed the request; another attempt may succeed."""

    def __init__(self, reason: str, *, is_free: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_free = is_free
        """The refusal follows from an optimistic reservation: it costs no retry budget."""


class Exchange:
    """One inference request from its body to the end of its response."""

    def __init__(
        self,
        context: ExchangeContext,
        client: ClientRequest,
        read: RequestHeaders,
        request: IncomingRequest,
        body: IncomingBody,
    ) -> None:
        self._context = context
        self._client = client
        self._read = read
        self._request = request
        self._body = body
        self._loop = client.loop
        self._started_s = time.perf_counter()
        self._queue_s = 0.0
        self._placement: Placement | None = None
        self._holds_reservation = False
        self._awaited_tier: str | None = None
        self._refusals_total = 0
        self._was_device_full = False

    async def run(self, until_s: float) -> None:
        """Serve the request until loop time `until_s`.

        Raises GatewayError if there is no response, or only the beginning of one.
        """
        if not self._body.buffer_received():
            await self._body.buffer()
        for _ in range(_MAX_ATTEMPTS):
            try:
                await self._attempt(until_s)
                return
            except _RetryElsewhere as retry:
                self._context.telemetry.retried(retry.reason)
                if not retry.is_free and not self._context.retry_budget.spend():
                    raise NoPodAccepted(
                        f"the pod did not accept the request ({retry.reason}) and the retry budget "
                        "is spent",
                        retry_after_s=1.0,
                    ) from None
        raise NoPodAccepted(
            f"no pod accepted the request in {_MAX_ATTEMPTS} attempts", retry_after_s=1.0
        )

    @property
    def policy(self) -> str | None:
        """The policy of the last placement; None if the request was not placed."""
        return self._placement.policy if self._placement else None

    async def _attempt(self, until_s: float) -> None:
        placement = await self._context.dispatcher.place(self._request)
        self._placement = placement
        self._holds_reservation = True
        self._awaited_tier = self._awaited_tier or placement.awaited_tier
        try:
            self._queue_s = time.perf_counter() - self._started_s
            await self._send_to_pod(placement, until_s)
        finally:
            self._release()

    def _release(self) -> None:
        if self._holds_reservation and self._placement is not None:
            self._holds_reservation = False
            self._context.reservations.release(self._placement.reservation)
            self._context.dispatcher.notify_change()

    # The pod

    async def _send_to_pod(self, placement: Placement, until_s: float) -> None:
        entry, connections = placement.reservation.entry, self._context.connections
        left_ms = (until_s - self._loop.time()) * 1000
        head = request_head(self._client.target, self._read, placement, self._body, left_ms=left_ms)
        connection = connections.take_idle(entry.address) if self._body.is_complete else None
        if connection is None:
            connection = await self._connect(entry)
        sent_s = time.perf_counter()
        try:
            try:
                await send_request(connection, head, self._body, self._client)
            except PodConnectionLost as lost:
                connection.close()
                connection = await self._resend(lost, entry, head)
            response = read_response(connection.headers)
            if not is_from_pod(connection, response):
                cause = await classify_response(connection, connections, entry.address)
                raise self._unanswered_error(cause, placement.reservation)
            refusal = response.not_executed
            if refusal in _RETRYABLE_REFUSALS and self._can_retry(refusal):
                raise self._refusal_error(refusal, placement.reservation)
            await self._respond(placement, connection, response, sent_s)
        except BaseException:
            connection.close()
            raise
        connections.release(entry.address, connection)

    async def _connect(self, entry: PodState) -> PodConnection:
        try:
            return await self._context.connections.connect(entry.address)
        except PodUnreachable:
            self._context.passive_health.suspect(entry)
            raise _RetryElsewhere("unreachable") from None

    async def _resend(self, lost: PodConnectionLost, entry: PodState, head: bytes) -> PodConnection:
        """Send again over a new connection if the lost one was stale: it may have sent nothing."""
        if not self._body.is_resendable:
            self._context.passive_health.suspect(entry)
            raise UpstreamLost(f"the pod was lost inside the request: {lost}") from lost
        try:
            fresh = await self._context.connections.connect(entry.address)
        except PodUnreachable:
            self._context.passive_health.suspect(entry)  # its process is gone without a response
            raise _RetryElsewhere("pod-died") from None
        if not lost.was_reused:
            fresh.close()
            raise UpstreamLost(
                "the pod closed the connection without a response; it may have executed the request"
            )
        try:
            await send_request(fresh, head, self._body, self._client)
        except PodConnectionLost:
            fresh.close()
            self._context.passive_health.suspect(entry)
            raise _RetryElsewhere("pod-died") from lost
        except BaseException:
            fresh.close()
            raise
        return fresh

    def _can_retry(self, refusal: str) -> bool:
        """False also for an inference that two devices had no memory for: it is too large."""
        if refusal == "device-full" and self._was_device_full:
            return False
        return self._body.is_resendable

    def _refusal_error(self, reason: str, reservation: Reservation) -> _RetryElsewhere:
        """Notes what a pod's refusal to execute means for this and other requests."""
        if reason == "draining":
            self._context.passive_health.suspect(reservation.entry)
        elif reason == "device-full":
            self._was_device_full = True
            self._context.passive_health.mark_device_full(reservation.predict)
        elif self._context.reservations.note_collision(reservation):
            return _RetryElsewhere(reason, is_free=True)
        else:
            self._context.reservations.reassert(reservation.entry)
            self._context.passive_health.mark_full(reservation.entry, self._refusals_total)
            self._refusals_total += 1
        return _RetryElsewhere(reason)

    def _unanswered_error(self, cause: QueueProxyFailure, reservation: Reservation) -> Exception:
        """The error of a response that came from the pod's queue-proxy, not from the pod."""
        if cause is QueueProxyFailure.FULL and self._body.is_resendable:
            return self._refusal_error("slots", reservation)
        if cause is QueueProxyFailure.NOT_REACHED:
            self._context.passive_health.suspect(reservation.entry)
            if self._body.is_resendable:
                return _RetryElsewhere("pod-died")
        return UpstreamLost(MESSAGES[cause])

    # The response

    async def _respond(
        self, placement: Placement, connection: PodConnection, response: PodResponse, sent_s: float
    ) -> None:
        client, telemetry = self._client, self._context.telemetry
        if not connection.has_body:
            await connection.wait_body()  # an error until here still gets a clear response
        timings = stage_timings(self._queue_s, time.perf_counter() - sent_s, response)
        served = self._served_request(placement, response)
        lines = telemetry.head_lines(served, response, timings)
        client.start_response(connection.status, lines, has_length=response.has_length)
        is_last = self._forward_body(connection)
        telemetry.served(served, timings, connection.status)  # after the write: off its path
        while not is_last:
            await client.drain()
            await connection.wait_body()
            is_last = self._forward_body(connection)

    def _forward_body(self, connection: PodConnection) -> bool:
        """Send the client the received part of the response; returns whether it was the last."""
        chunks = connection.take_body()
        if connection.is_complete:
            self._release()  # before the client can send its next request
        body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        self._client.write_body(body, is_last=connection.is_complete)
        return connection.is_complete

    def _served_request(self, placement: Placement, response: PodResponse) -> ServedRequest:
        target, reservation = self._client.target, placement.reservation
        return ServedRequest(
            self._request.id,
            target.label,
            target.version,
            str(placement.policy),
            placement.decision,
            reservation.entry.name,
            reservation.predict.name,
            response.start if response.start != "warm" else self._awaited_tier or "warm",
        )
