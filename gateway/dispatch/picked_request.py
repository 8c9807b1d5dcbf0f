"""A request that a proxy sends: placed here, and followed by what the proxy tells of its response.

The proxy may try the other pods of its list; nothing is sent again from here.
"""

import time
from functools import partial
from http import HTTPStatus
from typing import Any, Final

from common.http_headers import HOP_BY_HOP, Headers, read_lines
from common.pod_responses import FAILURE_STATUSES
from gateway.dispatch.pod_request import head_beginning, head_rest
from gateway.dispatch.request import Request
from gateway.dispatch.reservations import Placement
from gateway.dispatch.retries import NotExecuted
from gateway.errors import Rejected
from gateway.http.headers import PILOTLIGHT
from gateway.http.pod_connection import is_from_pod
from gateway.http.pod_response import PodResponse, read_response, stage_times_ms
from gateway.http.prompts import read_prompt
from gateway.routing.decision import Reason
from gateway.telemetry.recent_requests import StageTimings
from registry.domain.estimates import size_class

_KEPT: Final = HOP_BY_HOP | {b"host", b"content-length", b"expect", b"x-request-id"}
"""Not forwarded by the gateway, which writes its own; a proxy's are right."""


class PickedRequest(Request):
    async def _receive(self) -> None:
        """Return at once: the proxy has the body, and looks after it."""

    async def run(self, until_s: float) -> None:
        """Place the request until loop time `until_s`; then the proxy's own limits hold.

        Raises GatewayError before the proxy has got its answer.
        """
        proxy, length = self._client.proxy, self._headers.content_length
        if length is None:
            length = self._body.received_bytes
        self.arrival.size_class = size_class(length)
        if self.has_prompt and self._body.buffered:
            self.arrival.take_prompt(read_prompt(self._body.buffered, length), length)
        placement = self.placement = await self._place()
        self._holds_slot, self._awaited_tier = True, placement.awaited_tier
        is_over = False
        try:
            self._queue_s = time.perf_counter() - self._started_s
            left_ms = self._left_ms(until_s)
            self._client.run.unlimit()
            self._sent_s = time.perf_counter()
            others = self._context.placer.alternatives(placement, placement.decision)
            proxy.pick(
                [placement.reservation.entry.address, *[pod.address for pod in others]],
                self._lines(placement, length, left_ms),
                self._dropped(),
                partial(self._take_response, placement, proxy),
            )
            await proxy.wait_end()
            is_over = True
        finally:
            self._release(placement, is_cancelled=not is_over)

    async def _place(self) -> Placement:
        placement = Placement(self.arrival, self._headers.place_at)
        placement.only = self._client.proxy.subset
        try:
            return await placement.place(self._context.placer)
        except Rejected as error:
            if error.reason is Reason.QUEUE_TIMEOUT:  # by the protocol: no endpoint was ready
                error.status = HTTPStatus.SERVICE_UNAVAILABLE
            raise

    def _lines(self, placement: Placement, length: int, left_ms: float) -> Headers:
        """Headers for the pod, as on a connection of the gateway's own."""
        reservation, secret = placement.reservation, self._context.connections.secret
        head = head_beginning(
            self._target, b"", placement.spec, reservation.entry.address, secret.header_line, length
        ) + head_rest(reservation, self._headers.request_id, left_ms)
        return [(b":path", self._target.pod_path), *read_lines(head)[2:]]

    def _dropped(self) -> list[bytes]:
        """Names of the client's headers that pods must not get."""
        forwarded = b"\r\n" + self._headers.forwarded
        return [
            name
            for name, _ in self._client.headers
            if name not in _KEPT and b"\r\n%b: " % name not in forwarded
        ]

    def _take_response(self, placement: Placement, proxy: Any) -> None:
        """Settle what the response's head tells, and give the proxy the client's headers."""
        timing = dict(proxy.response_headers).get(b"server-timing", b"")
        pod_ms = (time.perf_counter() - self._sent_s) * 1000
        timings = StageTimings(self._queue_s * 1000, pod_ms, *stage_times_ms(timing))
        response = read_response(proxy.response_status, proxy.response_headers)
        entry = placement.reservation.entry
        is_elsewhere = proxy.served not in ("", entry.address)
        self._settle(placement, response, is_elsewhere=is_elsewhere)
        outcome = self._outcome(placement, response, timings)
        if is_elsewhere and response.pod:
            outcome = outcome._replace(pod=response.pod.decode("latin-1"))
        telemetry = self._context.telemetry
        forwarded, response.forwarded = response.forwarded, b""
        lines = telemetry.head_lines(outcome, response, timings, entry.name, self._client.target)
        written = read_lines(lines)
        names = {name for name, _ in written}
        proxy.answer_response(
            written,
            [
                name
                for name, _ in response.headers
                if name.startswith(PILOTLIGHT)
                and name not in names
                and b"%b: " % name not in forwarded
            ],
        )
        telemetry.ended(outcome)

    def _settle(self, placement: Placement, response: PodResponse, *, is_elsewhere: bool) -> None:
        """Avoid a pod that did not execute the request, whoever did."""
        retries = self._context.retries
        reason = None
        if is_elsewhere or (response.status in FAILURE_STATUSES and not is_from_pod(response)):
            reason = NotExecuted.UNREACHABLE
        elif response.not_executed is not None:
            reason = retries.reason_after(
                response.not_executed, self._failed, placement, placement.decision
            )
        if reason is not None:
            self._retry(placement, reason)
            self._context.telemetry.retried(reason)
