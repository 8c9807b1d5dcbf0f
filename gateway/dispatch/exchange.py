"""One inference request: take its body in, place it, talk to the pod, stream the answer back.

Everything a request owns (slot, connection, place in the queue) is given back when its coroutine
ends, however it ends. A request goes to another pod only if the first cannot have produced an
answer, and only while the retry budget lasts.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gateway.dispatch.pod_request import framed, request_head
from gateway.errors import NotTaken, UpstreamLost
from gateway.http.headers import PodResponse, read_response
from gateway.telemetry.request_telemetry import ServedRequest, stage_timings
from gateway.upstream.pod_connection import PodConnectionLost, PodUnreachable
from gateway.upstream.queue_proxy import UNANSWERED, classify_response, is_from_pod
from registry.knative_errors import QueueProxyFailure

if TYPE_CHECKING:
    from gateway.dispatch.dispatcher import Dispatcher, Placement
    from gateway.dispatch.passive_health import PassiveHealth
    from gateway.dispatch.reservations import Reservation, Reservations
    from gateway.dispatch.retries import RetryBudget
    from gateway.errors import BodyTooSlow
    from gateway.http.body import RequestBody
    from gateway.http.client_request import ClientRequest
    from gateway.http.headers import RequestHeaders
    from gateway.routing.route_request import IncomingRequest
    from gateway.telemetry.arrival_counter import ArrivalCounter
    from gateway.telemetry.request_telemetry import RequestTelemetry
    from gateway.upstream.pod_connection import PodConnection, PodPool
    from registry.domain.pod_state import PodState

_MOST_TRIES: Final = 10
_TAKEN_ELSEWHERE: Final = frozenset(("slots", "draining", "device-full"))
"""Refusals that say nothing of the request or its model, only of the pod at the time."""


@dataclass(frozen=True, slots=True)
class ExchangeContext:
    """What every exchange works with."""

    dispatcher: Dispatcher
    doubts: PassiveHealth
    pool: PodPool
    budget: RetryBudget
    recorder: RequestTelemetry
    reservations: Reservations
    arrivals: ArrivalCounter


class _RetryElsewhere(Exception):
    """The pod has not executed the request; another place may be better."""

    def __init__(self, reason: str, *, is_own_doing: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_own_doing = is_own_doing
        """The gateway took a chance and lost: that costs none of the retry budget."""


class Exchange:
    """One inference request on its way through the gateway."""

    def __init__(
        self,
        tools: ExchangeContext,
        client: ClientRequest,
        read: RequestHeaders,
        arrival: IncomingRequest,
        body: RequestBody,
    ) -> None:
        self._tools = tools
        self._client = client
        self._read = read
        self._body = body
        self._loop = client.loop
        self._reservation_open = False
        self._waited_from: str | None = None
        self._refusals_total = 0
        self._had_no_room = False
        self.arrival = arrival
        self.began_s = time.perf_counter()
        self.queue_s = 0.0
        self.placement: Placement | None = None

    async def run(self, until_s: float) -> None:
        """Serve the request; `until_s` is when its time is up, on the loop's clock.

        Raises:
            GatewayError: when it cannot be answered, or not to the end.
        """
        if not self._body.hold_what_is_here():
            await self._body.hold()
        for _ in range(_MOST_TRIES):
            try:
                await self._try_once(until_s)
                return
            except _RetryElsewhere as again:
                self._tools.recorder.retried(again.reason)
                if not again.is_own_doing and not self._tools.budget.spend():
                    raise NotTaken(
                        f"the pod did not take the request ({again.reason}) and the retry budget "
                        "is spent",
                        retry_after_s=1.0,
                    ) from None
        raise NotTaken(f"no pod took the request in {_MOST_TRIES} tries", retry_after_s=1.0)

    @property
    def is_without_body(self) -> bool:
        """Whether nothing of the request's body is here yet."""
        return not self._body.has_begun

    def body_too_slow(self) -> BodyTooSlow:
        """The error of a body that does not come."""
        return self._body.too_slow()

    async def _try_once(self, until_s: float) -> None:
        placement = await self._tools.dispatcher.place(self.arrival)
        self.placement = placement
        self._reservation_open = True
        self._waited_from = self._waited_from or placement.waited_from
        try:
            self.queue_s = time.perf_counter() - self.began_s
            await self._talk(placement, until_s)
        finally:
            self._give_back()

    def _give_back(self) -> None:
        if self._reservation_open and self.placement is not None:
            self._reservation_open = False
            self._tools.reservations.give_back(self.placement.reservation)
            self._tools.dispatcher.kick()

    # Talking to the pod

    async def _talk(self, placement: Placement, until_s: float) -> None:
        entry = placement.reservation.entry
        head = self._head(placement, until_s)
        connection = self._tools.pool.idle(entry.address) if self._body.is_whole else None
        if connection is None:
            connection = await self._connect(entry)
        sent_s = time.perf_counter()
        try:
            try:
                await self._send(connection, head)
            except PodConnectionLost as lost:
                connection.close()
                connection = await self._send_again(lost, entry, head)
            answer = read_response(connection.headers)
            if not is_from_pod(connection, answer):
                why = await classify_response(connection, self._tools.pool, entry.address)
                raise self._not_answered(why, placement.reservation)
            if answer.not_executed in _TAKEN_ELSEWHERE and self._may_go_on(answer.not_executed):
                raise self._refused(answer.not_executed, placement.reservation)
            await self._answer(placement, connection, answer, sent_s)
        except BaseException:
            connection.close()
            raise
        self._tools.pool.release(entry.address, connection)

    async def _connect(self, entry: PodState) -> PodConnection:
        try:
            return await self._tools.pool.connect(entry.address)
        except PodUnreachable:
            self._tools.doubts.suspect(entry)
            raise _RetryElsewhere("unreachable") from None

    async def _send(self, connection: PodConnection, head: bytes) -> None:
        """Send the request and wait for the answer's head. Raises PodConnectionLost."""
        if self._body.is_whole:
            connection.write_all(head, self._body.held)
        else:
            await self._stream(connection, head)
        await connection.head()

    async def _send_again(
        self, lost: PodConnectionLost, entry: PodState, head: bytes
    ) -> PodConnection:
        """Once more over a new connection, if the lost one was stale and may have taken nothing."""
        if not self._body.can_be_sent:
            self._tools.doubts.suspect(entry)
            raise UpstreamLost(f"the pod was lost inside the request: {lost}") from lost
        try:
            fresh = await self._tools.pool.connect(entry.address)
        except PodUnreachable:
            self._tools.doubts.suspect(entry)  # its process is gone, and the answer with it
            raise _RetryElsewhere("pod-died") from None
        if not lost.was_reused:
            fresh.close()
            raise UpstreamLost(
                "the pod closed the connection without an answer; it may have executed the request"
            )
        try:
            await self._send(fresh, head)
        except PodConnectionLost:
            fresh.close()
            self._tools.doubts.suspect(entry)
            raise _RetryElsewhere("pod-died") from lost
        except BaseException:
            fresh.close()
            raise
        return fresh

    async def _stream(self, connection: PodConnection, head: bytes) -> None:
        is_chunked = self._body.declared is None
        connection.on_news = self._client.interrupt  # an answer need not wait for the client
        connection.write_all(head, [framed(chunk, is_chunked) for chunk in self._body.held])
        async for chunk in self._body.rest():
            if connection.has_head:
                connection.is_spent = True  # answered already: it does not want the rest
                return
            if connection.is_closed:
                raise PodConnectionLost("the pod closed the connection inside the request body",
                                        was_reused=False)  # fmt: skip
            connection.write(framed(chunk, is_chunked))
            await connection.drain()
        connection.on_news = None
        if is_chunked:
            connection.write(b"0\r\n\r\n")

    def _may_go_on(self, refusal: str) -> bool:
        """Whether another pod is asked; one that two devices have no room for is too large."""
        if refusal == "device-full" and self._had_no_room:
            return False
        return self._body.can_be_sent

    def _refused(self, reason: str, reservation: Reservation) -> _RetryElsewhere:
        """What a pod's refusal to execute means for the next try, and for other requests."""
        if reason == "draining":
            self._tools.doubts.suspect(reservation.entry)
        elif reason == "device-full":
            self._had_no_room = True
            self._tools.doubts.has_no_room(reservation.predict)
        elif self._tools.reservations.collided(reservation):
            return _RetryElsewhere(reason, is_own_doing=True)
        else:
            self._tools.reservations.hold_on(reservation.entry)
            self._tools.doubts.is_full(reservation.entry, self._refusals_total)
            self._refusals_total += 1
        return _RetryElsewhere(reason)

    def _not_answered(self, why: QueueProxyFailure, reservation: Reservation) -> Exception:
        """What it means that only the queue-proxy before the pod answered."""
        if why is QueueProxyFailure.FULL and self._body.can_be_sent:
            return self._refused("slots", reservation)
        if why is QueueProxyFailure.NOT_REACHED:
            self._tools.doubts.suspect(reservation.entry)
            if self._body.can_be_sent:
                return _RetryElsewhere("pod-died")
        return UpstreamLost(UNANSWERED[why])

    def _head(self, placement: Placement, until_s: float) -> bytes:
        """The head of the request to the pod."""
        left_ms = (until_s - self._loop.time()) * 1000
        return request_head(self._client.target, self._read, placement, self._body, left_ms=left_ms)

    # The answer

    async def _answer(
        self, placement: Placement, connection: PodConnection, answer: PodResponse, sent_s: float
    ) -> None:
        client, recorder = self._client, self._tools.recorder
        if not connection.has_news:
            await connection.more_body()  # until then it can fail with a clear error
        used = stage_timings(self.queue_s, time.perf_counter() - sent_s, answer)
        served = self._served(placement, answer)
        lines = recorder.head_lines(served, answer, used)
        client.begin(connection.status, lines, has_length=answer.has_length)
        is_over = self._pass_on(connection)
        recorder.answered(served, used, connection.status)  # the client need not wait for it
        while not is_over:
            await client.drain()
            await connection.more_body()
            is_over = self._pass_on(connection)

    def _pass_on(self, connection: PodConnection) -> bool:
        """Send the client what is here of the answer's body; whether that was the end."""
        pieces = connection.body_so_far()
        if connection.is_complete:
            self._give_back()  # its next request must find the slot
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._client.write(body, is_last=connection.is_complete)
        return connection.is_complete

    def _served(self, placement: Placement, answer: PodResponse) -> ServedRequest:
        target, reservation = self._client.target, placement.reservation
        return ServedRequest(
            self.arrival.id,
            target.label,
            target.version,
            str(placement.policy),
            placement.decision,
            reservation.entry.name,
            reservation.predict.name,
            answer.start if answer.start != "warm" else self._waited_from or "warm",
        )
