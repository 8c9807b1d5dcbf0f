"""An inference request from its body to the end of its response: placed, sent, streamed, settled.

It holds a slot, a connection and a place in the queue, and releases them however it ends. Retries
are decided in `retries`.
"""

import asyncio
import time
from http import HTTPStatus
from typing import Final

from common.http_headers import Headers
from common.pod_responses import FAILURE_STATUSES
from gateway.dispatch.pod_request import (
    RequestContext,
    head_beginning,
    head_rest,
    resent_head,
    send_request,
)
from gateway.dispatch.reservations import Placement
from gateway.dispatch.retries import (
    BY_QUEUE_PROXY,
    DEVICE_FULL_S,
    FailedAttempts,
    NotExecuted,
    RetryElsewhere,
)
from gateway.dispatch.warm_request import WarmRequest
from gateway.errors import NoPodAccepted, UpstreamLost
from gateway.http.body import IncomingBody
from gateway.http.error_responses import InferenceClient, wait_for_reader
from gateway.http.headers import RequestHeaders
from gateway.http.pod_connection import (
    MESSAGES,
    PodConnection,
    PodConnectionLost,
    PodUnreachable,
    classify_response,
    has_died,
    is_from_pod,
)
from gateway.http.pod_response import FIRST_ERROR, PodResponse
from gateway.http.prompts import read_prompt
from gateway.routing.route_request import IncomingRequest
from gateway.telemetry.event_log import LoggedRequest
from gateway.telemetry.recent_requests import RecentRequest, StageTimings, error_message
from registry.domain.estimates import size_class
from registry.domain.pod_state import PodState

MAX_ERROR_BYTES: Final = 2048
"""Of an error's response, kept for its explanation."""


class Request:
    awaited = "pod"
    """Who responds, for messages."""

    placement: Placement | None = None
    """Of the last attempt; None: it was not placed."""
    connection: PodConnection
    """Of the last attempt, with its response."""
    _sent_s = 0.0
    _queue_s = 0.0
    """Time from the start to the placement."""
    _awaited_tier: str | None = None
    """Source tier of the load that the queued request waited for; None: no load."""
    has_prompt = False
    _holds_slot = _is_forwarded = False
    """`_is_forwarded`: the client was sent the last of the response."""
    _begun_placement: Placement | None = None
    """Of an attempt that was placed before this object was made."""
    _begun_connection: PodConnection | None = None
    """Over which that was sent."""
    _begun_head = b""
    _losses = 0
    """`RequestQuarantine.losses` when the current attempt was sent."""
    _logged: LoggedRequest | None = None
    _error_body = b""
    """The first bytes of an error's response."""

    def __init__(
        self,
        context: RequestContext,
        client: InferenceClient,
        headers: RequestHeaders,
        arrival: IncomingRequest,
        body: IncomingBody,
    ) -> None:
        self.arrival = arrival
        self._context = context
        self._client = client
        self._target = client.target
        self._path = client.target.pod_path
        """By which lost pods are remembered: as asked for, whatever serves it."""
        self._headers = headers
        self._body = body
        self._started_s = time.perf_counter()
        self._failed = FailedAttempts()
        if client.begun is not None:
            self._go_on(client.begun)
            return
        self._count_arrival()
        context.retries.budget.earn()

    def _go_on(self, begun: WarmRequest) -> None:
        """Take over what was placed, and perhaps sent, by callbacks alone."""
        self.placement = self._begun_placement = begun.placement(self.arrival)
        self._begun_connection, self._begun_head = begun.pod_connection, begun.sent_head
        self._sent_s = begun.sent_s
        self._queue_s = (begun.sent_s or self._started_s) - begun.started_s
        self._losses, self._holds_slot = begun.losses, True

    @property
    def policy(self) -> str | None:
        """The policy of the last placement; None if the request was not placed."""
        return None if self.placement is None else self.placement.policy

    async def run(self, until_s: float) -> None:
        """Serve the request until loop time `until_s`.

        Raises GatewayError if there is no response, or only the beginning of one.
        """
        await self._receive()
        placement = await self._place_and_send(until_s)
        try:
            await self._respond(placement)
        except BaseException:
            self.connection.close()
            self._release(placement, is_cancelled=True)
            raise
        self._context.connections.release(placement.reservation.entry.address, self.connection)
        self._release(placement)

    async def _receive(self) -> None:
        if not self._body.receive_now():
            await self._body.receive()

    # Placed and sent, perhaps several times

    async def _place_and_send(self, until_s: float) -> Placement:
        """Place and send the request until a pod responds. Raises GatewayError."""
        quarantine, path, body = self._context.quarantine, self._path, self._body
        self.arrival.size_class = size_class(body.received_bytes)
        if self.has_prompt and self._begun_placement is None:
            prompt = read_prompt(body.buffered, body.received_bytes)
            self.arrival.take_prompt(prompt, body.received_bytes)
        if quarantine.records and self._begun_placement is None:
            quarantine.check(path, body.buffered, body.received_bytes)
        while True:
            placement = self.placement = await self._place()
            self._holds_slot = True
            self._awaited_tier = self._awaited_tier or placement.awaited_tier
            if self._begun_connection is None:
                self._queue_s = time.perf_counter() - self._started_s
                self._losses = quarantine.losses
            try:
                await self._send(placement, until_s)
            except RetryElsewhere as retry:
                self._release(placement)
                self._take_retry(placement, retry)
            except BaseException:
                self._release(placement, is_cancelled=True)
                raise
            else:
                if quarantine.records:
                    quarantine.acquit(path, body.buffered, body.received_bytes)
                return placement

    def _count_arrival(self) -> None:
        self._context.arrival_counter.count(self.arrival.model)

    async def _place(self) -> Placement:
        """Place the next attempt. Raises GatewayError."""
        placer = self._context.placer
        begun, self._begun_placement = self._begun_placement, None
        if begun is not None:
            return await begun.placed(placer)
        placement = Placement(self.arrival, self._headers.place_at)
        full = self._failed.full_pod
        if full is None:
            return await placement.place(placer)
        await asyncio.sleep(DEVICE_FULL_S)
        with self._context.retries.health.without(full):
            placement.error = placer.place(placement)
        return await placement.placed(placer)

    def _left_ms(self, until_s: float) -> float:
        """The time until the deadline that the pod is told."""
        return (until_s - self._context.loop.time()) * 1000

    async def _send(self, placement: Placement, until_s: float) -> None:
        """One attempt, to the head of the response. Raises RetryElsewhere, GatewayError."""
        entry, connections = placement.reservation.entry, self._context.connections
        begun, self._begun_connection = self._begun_connection, None
        connection = begun or connections.take_idle(entry.address)
        if connection is None:
            connection = await self._connect(placement, entry)
        head = (
            self._begun_head
            if begun
            else head_beginning(
                self._target,
                self._headers.forwarded,
                placement.spec,
                entry.address,
                connections.secret.header_line,
                self._body.received_bytes,
            )
            + head_rest(placement.reservation, self._headers.request_id, self._left_ms(until_s))
        )
        try:
            try:
                if begun is not None:
                    await connection.wait_head()
                else:
                    self._sent_s = time.perf_counter()
                    await send_request(connection, head, self._body)
            except PodConnectionLost as lost:
                connection.close()
                connection = await self._resend(lost, placement, head)
            response = connection.response
            if response.status in FAILURE_STATUSES and not is_from_pod(response):
                cause = await classify_response(connection, connections, entry.address)
                if cause not in BY_QUEUE_PROXY:
                    raise UpstreamLost(MESSAGES[cause])
                raise self._retry(placement, BY_QUEUE_PROXY[cause])
            if response.not_executed is not None:
                reason = self._context.retries.reason_after(
                    response.not_executed, self._failed, placement, placement.decision
                )
                if reason is not None:
                    raise self._retry(placement, reason)
        except BaseException:
            connection.close()
            raise
        self.connection = connection

    async def _connect(self, placement: Placement, entry: PodState) -> PodConnection:
        try:
            return await self._context.connections.connect(entry.address)
        except PodUnreachable:
            raise self._retry(placement, NotExecuted.UNREACHABLE) from None

    async def _resend(
        self, lost: PodConnectionLost, placement: Placement, head: bytes
    ) -> PodConnection:
        """Send again over a new connection if the lost one was stale: it may have sent nothing."""
        connections, address = self._context.connections, placement.reservation.entry.address
        if lost.was_reused:
            try:
                fresh = await connections.connect(address)
            except PodUnreachable:  # the pod's process ended without a response
                raise self._retry(placement, NotExecuted.POD_DIED) from None
            try:
                await send_request(fresh, resent_head(head), self._body)
            except PodConnectionLost:
                fresh.close()
            except BaseException:
                fresh.close()
                raise
            else:
                return fresh
        if await has_died(connections, address):
            raise self._retry(placement, NotExecuted.POD_DIED)
        raise UpstreamLost(f"{lost}; the pod may have executed the request")

    # Retries

    def _retry(self, placement: Placement, reason: NotExecuted) -> RetryElsewhere:
        """The pod has not executed the request: avoid it for a while."""
        context, reservation = self._context, placement.reservation
        if reason is NotExecuted.SLOTS:
            if context.reservations.record_collision(reservation):
                return RetryElsewhere(reason, is_free=True)
            context.reservations.restore(reservation.entry)
        self.arrival.load_failed |= reason is NotExecuted.LOAD_FAILED
        context.retries.record_failure(
            self._failed, reason, entry=reservation.entry, predict=reservation.predict
        )
        return RetryElsewhere(reason)

    def _take_retry(self, placement: Placement, retry: RetryElsewhere) -> None:
        """Raises GatewayError where there is no other attempt."""
        context = self._context
        if retry.reason is NotExecuted.POD_DIED:
            entry, body = placement.reservation.entry, self._body
            context.quarantine.record(
                self._path,
                body.buffered,
                body.received_bytes,
                pod=f"{entry.name}/{entry.epoch}",
                begun=self._losses,
            )
        context.telemetry.retried(retry.reason)
        error = context.retries.take_retry(self._failed, retry.reason, is_free=retry.is_free)
        if error is not None:
            raise NoPodAccepted(error, retry_after_s=1.0) from None

    def _release(self, placement: Placement, *, is_cancelled: bool = False) -> None:
        """Free the slot, if it is still held; `is_cancelled`: see `PendingPlacement.end_work`."""
        if self._holds_slot:
            self._holds_slot = False
            self._context.placer.release(placement, is_cancelled=is_cancelled)

    # The response

    async def _respond(self, placement: Placement) -> None:
        client, connection = self._client, self.connection
        response = connection.response
        telemetry = self._context.telemetry
        if not connection.has_body:
            await connection.wait_body()  # an error until here still gets a clear response
        pod_s = time.perf_counter() - self._sent_s
        timings = StageTimings(self._queue_s * 1000, pod_s * 1000, *connection.times_ms)
        outcome = self._outcome(placement, response, timings)
        if placement.spec.logger is not None:
            self._log_request(placement)
        self._body.close()  # it is not sent again
        entry = placement.reservation.entry.name
        lines = telemetry.head_lines(outcome, response, timings, entry, client.target)
        client.start_response(response.status, lines, connection.length)
        self._forward_body()
        # After the write: off its path.
        telemetry.ended(outcome._replace(error=error_message(self._error_body)))
        if connection.length:  # it is complete at the pod: a slow client holds no slot
            self._release(placement)
        while not self._is_forwarded:
            await wait_for_reader(client, self._context.stall_s)
            await connection.stream(self._forward_body)

    def _forward_body(self) -> bool:
        """Send the client what came of the response; returns whether more is wanted now."""
        connection, placement = self.connection, self.placement
        assert placement is not None
        chunks = connection.take_body()
        if connection.is_complete:
            self._is_forwarded = True
            self._release(placement)  # before the client can send its next request
        body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        if connection.status >= FIRST_ERROR and not self._error_body:
            self._error_body = body[:MAX_ERROR_BYTES]
        if self._logged is not None:
            self._logged.response_part(body)
            if connection.is_complete:
                self._logged.response_end(connection.response.content_type)
        self._client.write_body(body, is_last=connection.is_complete)
        return not (connection.is_complete or self._client.is_behind)

    def _log_request(self, placement: Placement) -> None:
        """As events, if the model has a logger; responses only with status 200, as KServe does."""
        spec, headers, body = placement.spec, self._client.headers, self._body
        assert spec.logger is not None
        pod = placement.reservation.predict.name
        logged = self._context.events.logged(spec, spec.logger, self.arrival.id, pod, headers)
        if logged is not None:
            logged.request(body.buffered, body.received_bytes, _content_type(headers))
            self._logged = logged if self.connection.status == HTTPStatus.OK else None

    def _outcome(
        self, placement: Placement, response: PodResponse, timings: StageTimings
    ) -> RecentRequest:
        decision = placement.decision
        reason, start, status = str(decision.reason), response.start, response.status
        if start == "warm" and self._awaited_tier:
            start = self._awaited_tier
        if status >= FIRST_ERROR:
            # an error of a server behind the pod has no name of its own
            reason, start = response.error.decode("latin-1") or "error", ""
        forecast = decision.forecast
        if forecast is not None and not forecast.is_measured:
            forecast = None
        return RecentRequest(
            self.arrival.id,
            time.time(),
            self._client.target.label,
            str(placement.policy),
            reason,
            start,
            status,
            placement.reservation.predict.name,
            timings,
            None if forecast is None else forecast.seconds,
        )


def _content_type(headers: Headers) -> bytes:
    return next((value for name, value in headers if name == b"content-type"), b"")
