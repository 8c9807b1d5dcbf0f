"""One inference request from its placement to the head of a pod's response, with retries.

It needs no client connection: the body may be in memory. A request is retried at another pod only
if the first cannot have produced a response, and only while the retry budget lasts.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from common.pod_responses import QueueProxyFailure
from gateway.dispatch.pod_request import request_head, resent_head, send_request
from gateway.dispatch.retries import FailedAttempts, NotExecuted
from gateway.errors import NoPodAccepted, UpstreamLost
from gateway.http.headers import PodResponse, read_response
from gateway.upstream.pod_connection import PodConnectionLost, PodUnreachable
from gateway.upstream.queue_proxy import MESSAGES, classify_response, has_died, is_from_pod
from registry.domain.measures import size_class

if TYPE_CHECKING:
    import asyncio

    from gateway.dispatch.dispatcher import Dispatcher, Placement
    from gateway.dispatch.lost_pods import LostPods
    from gateway.dispatch.reservations import Reservations
    from gateway.dispatch.retries import Retries
    from gateway.http.body import IncomingBody
    from gateway.http.headers import Headers, RequestHeaders
    from gateway.http.routes import ModelTarget
    from gateway.routing.route_request import IncomingRequest
    from gateway.telemetry.arrival_counter import ArrivalCounter
    from gateway.telemetry.request_telemetry import RequestTelemetry
    from gateway.upstream.event_log import EventLog, LoggedRequest
    from gateway.upstream.pod_connection import PodConnection, PodConnectionPool
    from registry.domain.pod_state import PodState


@dataclass(frozen=True, slots=True)
class CallContext:
    """The parts of the gateway that every call uses."""

    loop: asyncio.AbstractEventLoop
    dispatcher: Dispatcher
    reservations: Reservations
    retries: Retries
    connections: PodConnectionPool
    telemetry: RequestTelemetry
    arrival_counter: ArrivalCounter
    lost_pods: LostPods
    events: EventLog


class _RetryElsewhere(Exception):
    """The pod has not executed the request; another attempt may succeed."""

    def __init__(self, reason: NotExecuted, *, is_free: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_free = is_free
        """The refusal follows from an optimistic reservation: it costs no retry budget."""


class InferenceCall:
    """Holds its slot and connection from `send` until `end`; call `release` to free the slot."""

    placement: Placement
    """Placement of the last attempt; set if `is_placed` is True."""
    connection: PodConnection
    response: PodResponse
    """Head of the response."""
    sent_s: float
    queue_s: float
    """Time from the call's creation to its placement."""

    def __init__(
        self,
        context: CallContext,
        target: ModelTarget,
        headers: RequestHeaders,
        request: IncomingRequest,
        body: IncomingBody,
    ) -> None:
        self.request = request
        self.awaited_tier: str | None = None
        """Source tier of the load that the queued request waited for; None: no load."""
        self.is_placed = False
        self._context = context
        self._target = target
        self._headers = headers
        self._body = body
        self._holds_reservation = False
        self._begun = 0
        """Pods that requests had lost when the current attempt was sent."""
        self._failed: FailedAttempts | None = None
        self._started_s = time.perf_counter()
        self._count_arrival()
        context.retries.budget.earn()

    async def send(self, until_s: float) -> None:
        """Place and send the request until a pod responds; `until_s`: its deadline, in loop time.

        Raises GatewayError if there is no response.
        """
        lost_pods, path, body = self._context.lost_pods, self._target.pod_path, self._body
        lost_pods.check(path, body.buffered, body.received_bytes)
        self.request.size_class = size_class(body.received_bytes)
        while True:
            try:
                self.placement = placement = await self._place()
                self.is_placed = self._holds_reservation = True
                self.awaited_tier = self.awaited_tier or placement.awaited_tier
                self.queue_s = time.perf_counter() - self._started_s
                self._begun = lost_pods.losses
                await self._send_to_pod(placement, until_s)
                lost_pods.acquit(path, body.buffered, body.received_bytes)
                return
            except _RetryElsewhere as retry:
                self.release()
                self._take_retry(retry)
            except BaseException:
                self.release(is_cancelled=True)
                raise

    def _count_arrival(self) -> None:
        self._context.arrival_counter.count(self.request.model)

    async def _place(self) -> Placement:
        """Place the next attempt. Raises GatewayError."""
        return await self._context.dispatcher.place(self.request, self._headers.place_at)

    def _left_ms(self, until_s: float) -> float:
        """The time until the deadline that the pod is told."""
        return (until_s - self._context.loop.time()) * 1000

    def _take_retry(self, retry: _RetryElsewhere) -> None:
        if retry.reason is NotExecuted.POD_DIED:
            entry = self.placement.reservation.entry
            suspicion = self._context.lost_pods.record(
                self._target.pod_path,
                self._body.buffered,
                self._body.received_bytes,
                pod=f"{entry.name}/{entry.epoch}",
                begun=self._begun,
            )
            if suspicion is not None:
                raise suspicion from None
        self._context.telemetry.retried(retry.reason)
        error = self._context.retries.take_retry(
            self._failures(), retry.reason, is_free=retry.is_free
        )
        if error is not None:
            raise NoPodAccepted(error, retry_after_s=1.0) from None

    def _failures(self) -> FailedAttempts:
        if self._failed is None:
            self._failed = FailedAttempts()
        return self._failed

    def logged(self, headers: Headers) -> LoggedRequest | None:
        """The log of the request, once a pod has responded; `headers`: the client's."""
        spec = self.placement.spec
        if spec.logger is None:
            return None
        pod = self.placement.reservation.predict.name
        return self._context.events.logged(spec, spec.logger, self.request.id, pod, headers)

    def release(self, *, is_cancelled: bool = False) -> None:
        """Free the slot, if it is still held; `is_cancelled`: before the pod has responded."""
        if self._holds_reservation:
            self._holds_reservation = False
            self._context.dispatcher.release(self.placement, is_cancelled=is_cancelled)

    def end(self, *, is_complete: bool) -> None:
        """Free slot and connection, which another call may use after a complete response."""
        if is_complete:
            self._context.connections.release(
                self.placement.reservation.entry.address, self.connection
            )
        else:
            self.connection.close()
        self.release(is_cancelled=not is_complete)

    # One attempt

    async def _send_to_pod(self, placement: Placement, until_s: float) -> None:
        entry, connections = placement.reservation.entry, self._context.connections
        left_ms = self._left_ms(until_s)
        head = request_head(
            self._target,
            self._headers,
            placement,
            self._body,
            left_ms=left_ms,
            secret_line=connections.secret.header_line,
        )
        connection = connections.take_idle(entry.address)
        if connection is None:
            connection = await self._connect(entry)
        self.sent_s = time.perf_counter()
        try:
            try:
                await send_request(connection, head, self._body)
            except PodConnectionLost as lost:
                connection.close()
                connection = await self._resend(lost, entry, head)
            self.response = response = read_response(connection.headers)
            if not is_from_pod(connection, response):
                raise self._queue_proxy_error(
                    await classify_response(connection, connections, entry.address)
                )
            reason = self._context.retries.reason_after(
                response.not_executed, self._failed, placement, placement.decision
            )
            if reason is not None:
                raise self._retry(reason)
        except BaseException:
            connection.close()
            raise
        self.connection = connection

    async def _connect(self, entry: PodState) -> PodConnection:
        try:
            return await self._context.connections.connect(entry.address)
        except PodUnreachable:
            raise self._retry(NotExecuted.UNREACHABLE) from None

    async def _resend(self, lost: PodConnectionLost, entry: PodState, head: bytes) -> PodConnection:
        """Send again over a new connection if the lost one was stale: it may have sent nothing."""
        connections = self._context.connections
        if lost.was_reused:
            try:
                fresh = await connections.connect(entry.address)
            except PodUnreachable:  # the pod's process ended without a response
                raise self._retry(NotExecuted.POD_DIED) from None
            try:
                await send_request(fresh, resent_head(head), self._body)
            except PodConnectionLost:
                fresh.close()
            except BaseException:
                fresh.close()
                raise
            else:
                return fresh
        if await has_died(connections, entry.address):
            raise self._retry(NotExecuted.POD_DIED)
        raise UpstreamLost(
            "the pod closed the connection without a response; it may have executed the request"
        )

    def _retry(self, reason: NotExecuted) -> _RetryElsewhere:
        reservation, reservations = self.placement.reservation, self._context.reservations
        if reason is NotExecuted.SLOTS:
            if reservations.record_collision(reservation):
                return _RetryElsewhere(reason, is_free=True)
            reservations.restore(reservation.entry)
        self.request.load_failed |= reason is NotExecuted.LOAD_FAILED
        self._record_failure(reason)
        return _RetryElsewhere(reason)

    def _record_failure(self, reason: NotExecuted) -> None:
        reservation = self.placement.reservation
        self._context.retries.record_failure(
            self._failures(), reason, entry=reservation.entry, predict=reservation.predict
        )

    def _queue_proxy_error(self, cause: QueueProxyFailure) -> Exception:
        """The error of a response that came from the pod's queue-proxy, not from the pod."""
        if cause is QueueProxyFailure.FULL:
            return self._retry(NotExecuted.SLOTS)
        if cause is QueueProxyFailure.NOT_REACHED:
            return self._retry(NotExecuted.POD_DIED)
        return UpstreamLost(MESSAGES[cause])
