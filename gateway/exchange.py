"""One inference request: take its body in, place it, talk to the pod, stream the answer back.

Everything a request owns (slot, connection, place in the queue) is given back when its coroutine
ends, however it ends. A request goes to another pod only if the first cannot have produced an
answer, and only while the retry budget lasts.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gateway.errors import NotTaken, UpstreamLost
from gateway.headers import PodAnswer, read_answer, request_head
from gateway.upstream import PodConnectionLost, PodUnreachable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from gateway.body import RequestBody
    from gateway.decide import Arrival
    from gateway.dispatcher import Dispatcher, Placement
    from gateway.errors import BodyTooSlow
    from gateway.headers import RequestHeaders
    from gateway.record import Recorder
    from gateway.retries import RetryBudget
    from gateway.routes import Target
    from gateway.upstream import PodConnection, PodPool
    from registry.cluster import PodState

    Send = Callable[[dict[str, Any]], Awaitable[None]]

logger = logging.getLogger(__name__)

_BUSY_FIRST_S: Final = 0.02
_BUSY_LONGEST_S: Final = 0.5
_SUSPECT_S: Final = 1.0
_MOST_TRIES: Final = 10


@dataclass(frozen=True, slots=True)
class Tools:
    """What every exchange works with."""

    dispatcher: Dispatcher
    pool: PodPool
    budget: RetryBudget
    recorder: Recorder
    give_back: Callable[[Any], None]


class _TryAgain(Exception):
    """The pod has not executed the request; another place may be better."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Exchange:
    """One inference request on its way through the gateway."""

    def __init__(
        self,
        tools: Tools,
        target: Target,
        read: RequestHeaders,
        headers: Iterable[tuple[bytes, bytes]],
        arrival: Arrival,
        body: RequestBody,
    ) -> None:
        self._tools = tools
        self._target = target
        self._read = read
        self._headers = headers
        self._arrival = arrival
        self._body = body
        self._loop = asyncio.get_running_loop()
        self.began_s = time.perf_counter()
        self.queue_s = 0.0
        self.placement: Placement | None = None
        self._reservation_open = False
        self._waited_from: str | None = None
        self._busy_total = 0
        self.has_answered = False

    async def run(self, send: Send, until_s: float) -> None:
        """Serve the request; `until_s` is when its time is up, on the loop's clock.

        Raises:
            GatewayError: when it cannot be answered; nothing was sent then unless `has_answered`.
        """
        await self._body.hold()
        await self._try_pods(send, until_s)

    @property
    def is_without_body(self) -> bool:
        """Whether nothing of the request's body is here yet."""
        return not self._body.has_begun

    def body_too_slow(self) -> BodyTooSlow:
        """The error of a body that does not come."""
        return self._body.too_slow()

    async def _try_pods(self, send: Send, until_s: float) -> None:
        for _ in range(_MOST_TRIES):
            try:
                await self._try_once(send, until_s)
                return
            except _TryAgain as again:
                self._tools.recorder.retried(again.reason)
                if not self._tools.budget.spend():
                    raise NotTaken(
                        f"the pod did not take the request ({again.reason}) and the retry budget "
                        "is spent",
                        retry_after_s=1.0,
                    ) from None
        raise NotTaken(f"no pod took the request in {_MOST_TRIES} tries", retry_after_s=1.0)

    async def _try_once(self, send: Send, until_s: float) -> None:
        placement = await self._tools.dispatcher.place(self._arrival)
        self.placement = placement
        self._reservation_open = True
        self._waited_from = self._waited_from or placement.waited_from
        try:
            self.queue_s = time.perf_counter() - self.began_s
            await self._talk(placement, send, until_s)
        finally:
            self._give_back()

    def _give_back(self) -> None:
        if self._reservation_open and self.placement is not None:
            self._reservation_open = False
            self._tools.give_back(self.placement.reservation)
            self._tools.dispatcher.kick()

    # Talking to the pod

    async def _talk(self, placement: Placement, send: Send, until_s: float) -> None:
        entry = placement.reservation.entry
        head = self._head(placement, until_s)
        connection = await self._connected(entry)
        sent_s = time.perf_counter()
        try:
            connection = await self._send(connection, entry, head)
            answer = read_answer(connection.headers)
            if answer.not_executed in ("slots", "draining") and self._body.can_be_sent:
                if answer.not_executed == "draining":
                    self._suspect(entry)
                else:
                    self._is_full(entry)
                raise _TryAgain(answer.not_executed)
            await self._answer(connection, answer, send, sent_s)
        except BaseException:
            connection.close()
            raise
        self._tools.pool.release(entry.address, connection)

    async def _connected(self, entry: PodState) -> PodConnection:
        try:
            if self._body.is_whole:
                return await self._tools.pool.acquire(entry.address)
            return await self._tools.pool.connect(entry.address)  # no second try if it were stale
        except PodUnreachable:
            self._suspect(entry)
            raise _TryAgain("unreachable") from None

    async def _send(self, connection: PodConnection, entry: PodState, head: bytes) -> PodConnection:
        """Send the request and wait for the answer's head; once more over a stale connection."""
        try:
            await self._send_over(connection, head)
            return connection
        except PodConnectionLost as lost:
            connection.close()
            if not self._body.can_be_sent:
                self._suspect(entry)
                raise UpstreamLost(f"the pod was lost inside the request: {lost}") from lost
            was_reused = lost.was_reused
        try:
            fresh = await self._tools.pool.connect(entry.address)
        except PodUnreachable:
            self._suspect(entry)  # its process is gone, and the answer with it
            raise _TryAgain("pod-died") from None
        if not was_reused:
            fresh.close()
            raise UpstreamLost(
                "the pod closed the connection without an answer; it may have executed the request"
            )
        try:
            await self._send_over(fresh, head)
        except PodConnectionLost as lost:
            fresh.close()
            self._suspect(entry)
            raise _TryAgain("pod-died") from lost
        except BaseException:
            fresh.close()
            raise
        return fresh

    async def _send_over(self, connection: PodConnection, head: bytes) -> None:
        if self._body.is_whole:
            connection.write_all(head, self._body.held)
        else:
            await self._stream(connection, head)
        await connection.head()

    async def _stream(self, connection: PodConnection, head: bytes) -> None:
        is_chunked = self._body.declared is None
        connection.write_all(head, [_framed(chunk, is_chunked) for chunk in self._body.held])
        async for chunk in self._body.rest():
            if connection.has_head:
                connection.is_spent = True  # answered already: it does not want the rest
                return
            if connection.is_closed:
                raise PodConnectionLost("the pod closed the connection inside the request body",
                                        was_reused=False)  # fmt: skip
            connection.write(_framed(chunk, is_chunked))
            await connection.drain()
        if is_chunked:
            connection.write(b"0\r\n\r\n")

    def _suspect(self, pod: PodState) -> None:
        """Send nothing there until it is heard of again, or a while has passed."""
        pod.is_suspect = True

        def forgive() -> None:
            pod.is_suspect = False
            self._tools.dispatcher.kick()

        self._loop.call_later(_SUSPECT_S, forgive)

    def _is_full(self, pod: PodState) -> None:
        """The pod has no slot, whatever the copy says: count it as full for a while."""
        slots = pod.slots
        pod.slots_pending += slots

        def recount() -> None:
            pod.slots_pending -= slots
            self._tools.dispatcher.kick()

        self._loop.call_later(min(_BUSY_FIRST_S * 2**self._busy_total, _BUSY_LONGEST_S), recount)
        self._busy_total += 1

    def _head(self, placement: Placement, until_s: float) -> bytes:
        reservation = placement.reservation
        ours = [
            (b"x-request-id", self._arrival.id.encode()),
            (b"x-pilotlight-model-name", self._target.name.encode()),
            (b"x-pilotlight-generation", placement.spec.generation.encode()),
            (b"x-pilotlight-reservation", reservation.id.encode()),
            (b"x-pilotlight-deadline-ms", b"%d" % max(1, (until_s - self._loop.time()) * 1000)),
        ]
        if reservation.load_token:
            ours.append((b"x-pilotlight-load-token", b"%d" % reservation.load_token))
        if reservation.predict is not reservation.entry:
            ours.append((b"x-pilotlight-predict", reservation.predict.address.encode()))
        if self._body.is_whole:
            ours.append((b"content-length", b"%d" % self._body.seen_bytes))
        elif self._body.declared is not None:
            ours.append((b"content-length", b"%d" % self._body.declared))
        else:
            ours.append((b"transfer-encoding", b"chunked"))
        address = reservation.entry.address
        return request_head(self._target.pod_path, address, self._headers, ours)

    # The answer

    async def _answer(
        self, connection: PodConnection, answer: PodAnswer, send: Send, sent_s: float
    ) -> None:
        await connection.more_body()  # until then it can fail with a clear error
        chunks = connection.body_so_far()
        if connection.is_complete:
            self._give_back()  # before the client can know, so that its next request finds the slot
        pod_s = time.perf_counter() - sent_s
        headers = self._tools.recorder.answered(self, answer, connection.status, pod_s)
        self.has_answered = True
        await send({"type": "http.response.start", "status": connection.status, "headers": headers})
        while not connection.is_complete:
            for chunk in chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await connection.more_body()
            chunks = connection.body_so_far()
        self._give_back()
        last = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        await send({"type": "http.response.body", "body": last, "more_body": False})

    # What the recorder asks

    @property
    def model_text(self) -> str:
        """The model as a label."""
        return self._target.label

    @property
    def arrival(self) -> Arrival:
        """The request as it came in."""
        return self._arrival

    def start(self, answer: PodAnswer) -> str:
        """`warm`, or the tier this request had to wait from, in the queue or at the pod."""
        return answer.start if answer.start != "warm" else self._waited_from or "warm"


def _framed(chunk: bytes, is_chunked: bool) -> bytes:
    if not is_chunked:
        return chunk
    return b"%x\r\n%b\r\n" % (len(chunk), chunk) if chunk else b""
