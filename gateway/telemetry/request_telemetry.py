"""Telemetry recorded per request: response headers and metrics."""

from __future__ import annotations

import logging
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from gateway.errors import GatewayError
from gateway.http.client_request import status_line
from gateway.http.pod_response import PodResponse
from gateway.http.targets import ModelTarget
from gateway.telemetry.metrics import UNKNOWN, GatewayMetrics
from gateway.telemetry.recent_requests import (
    FailureLog,
    RecentRequest,
    RecentRequests,
    StageTimings,
)

if TYPE_CHECKING:
    from gateway.telemetry.tracing import Tracer  # it takes memory and time to import

_FIRST_FAILURE: Final = HTTPStatus.INTERNAL_SERVER_ERROR.value
_BEGINNING: Final = b"""\
%bx-pilotlight-pod: %b\r
x-pilotlight-predict-pod: %b\r
x-pilotlight-policy: %b\r
x-pilotlight-reason: %b\r
%b%bx-request-id: """
_MAX_BEGINNINGS: Final = 64
"""Of one kind of response, by pod: most have a line of their own that names it."""

_access_logger = logging.getLogger("gateway.access")


class RequestTelemetry:
    """Writes response headers, metrics and the access log."""

    def __init__(
        self,
        metrics: GatewayMetrics,
        gateway: str = "gateway",
        *,
        logs_requests: bool = False,
        tracer: Tracer | None = None,
    ) -> None:
        """`gateway`: name of this gateway, for responses. `tracer`: None if nothing is traced."""
        self.tracer = tracer
        self.gateway = gateway.encode()
        self.recent = RecentRequests()
        self._logs_requests = logs_requests
        self._gateway_line = b"x-pilotlight-gateway: %b\r\n" % self.gateway
        self._metrics = metrics
        self._failures = FailureLog()

    def head_lines(
        self,
        outcome: RecentRequest,
        response: PodResponse,
        timings: StageTimings,
        entry: str,
        target: ModelTarget,
    ) -> bytes:
        """The header lines of the response to the client, but for its length."""
        lines = b"%b%b\r\nserver-timing: %b\r\n" % (
            self._beginning(
                response, entry, outcome.pod, outcome.policy, outcome.reason, outcome.start
            ),
            outcome.id.encode(),
            timings.server_timing(),
        )
        if target.version:
            lines += b"x-pilotlight-version: %b\r\n" % target.version
        return lines + target.selection_lines

    def _beginning(
        self, response: PodResponse, entry: str, predict: str, policy: str, reason: str, start: str
    ) -> bytes:
        """What like responses have in common."""
        return _BEGINNING % (
            response.forwarded,
            response.pod or entry.encode(),
            response.predict_pod or predict.encode(),
            policy.encode(),
            reason.encode(),
            self._gateway_line,
            b"x-pilotlight-start: %b\r\n" % start.encode() if start else b"",
        )

    def warm_head(
        self,
        response: PodResponse,
        pod: str,
        policy: str,
        reason: str,
        request_id: str,
        timings: StageTimings,
        reported: bytes,
        length: bytes,
    ) -> bytes:
        """The whole head of a usual response, of which most is kept; `reported`: by the pod."""
        key = pod, policy, reason
        beginning = response.heads.get(key)
        if beginning is None:
            if len(response.heads) >= _MAX_BEGINNINGS:
                response.heads.clear()
            beginning = response.heads[key] = status_line(response.status) + self._beginning(
                response, pod, pod, policy, reason, response.start
            )
        return b"%b%b\r\nserver-timing: %b\r\ncontent-length: %b\r\n\r\n" % (
            beginning,
            request_id.encode(),
            timings.server_timing(reported),
            length,
        )

    def answered_by_look(
        self, request_id: str, application: str, policy: str, *, accuracy: float, utility: float
    ) -> bytes:
        """Count a response without a pod; returns its header lines."""
        self._ended_here(request_id, application, policy, "short-circuit", 200)
        text = (
            "content-type: application/json\r\n"
            f"x-request-id: {request_id}\r\nx-pilotlight-policy: {policy}\r\n"
            "x-pilotlight-reason: short-circuit\r\nx-pilotlight-variant: short-circuit\r\n"
            f"x-pilotlight-expected-accuracy: {accuracy:.4f}\r\n"
            f"x-pilotlight-expected-utility: {utility:.4f}\r\n"
        )
        return text.encode()

    def served_by_component(
        self, request_id: str, model: str, component: str, status: int, *, took_s: float
    ) -> bytes:
        """Count a response of a transformer or explainer; returns its header lines.

        The model's own response to the component is counted as that of another request.
        """
        self._metrics.components.labels(component).observe(took_s)
        self._ended_here(request_id, model, "none", component, status)
        text = f"x-request-id: {request_id}\r\nx-pilotlight-reason: {component}\r\n"
        return text.encode() + self._gateway_line

    def failed(
        self,
        model: str,
        policy: str | None,
        error: GatewayError,
        request_id: str = "",
        *,
        took_s: float = 0.0,
    ) -> None:
        """Count an error response of the gateway.

        Args:
            model: metric label; empty if the request was refused before its model was looked up.
            policy: None if no policy was chosen.
            error: the response.
            request_id: empty if it was not read.
            took_s: from the end of the request's head to the response.
        """
        reason, status = str(error.reason), int(error.status)
        self._ended_here(
            request_id, model or UNKNOWN, policy or "none", reason, status, str(error), took_s
        )

    def _ended_here(
        self,
        request_id: str,
        model: str,
        policy: str,
        reason: str,
        status: int,
        error: str = "",
        took_s: float = 0.0,
    ) -> None:
        """Count a response that is of no pod."""
        ended = RecentRequest(request_id, time.time(), model, policy, reason, "", status)
        self.ended(ended._replace(error=error, failed_after_s=took_s))

    def ended(self, request: RecentRequest) -> None:
        """Count a request that was answered."""
        self.recent.add(request)
        self._metrics.end(request)
        if request.status >= _FIRST_FAILURE:
            self._failures.log(request)
        tracer = self.tracer
        if tracer is not None:
            tracer.respond(request)
        if self._logs_requests:
            timings = request.timings
            took_ms = None if timings is None else round(timings.queue_ms + timings.pod_ms, 3)
            _access_logger.info(
                "request",
                extra={
                    "request_id": request.id,
                    "model": request.model,
                    "status": request.status,
                    "policy": request.policy,
                    "reason": request.reason,
                    "start": request.start,
                    "pod": request.pod,
                    "took_ms": took_ms,
                    **({} if tracer is None else {"trace_id": tracer.trace_id(request.id)}),
                },
            )

    def retried(self, reason: str) -> None:
        self._metrics.retries.labels(reason).inc()

    def client_disconnected(self) -> None:
        self._metrics.disconnects.inc()
