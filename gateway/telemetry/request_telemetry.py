"""Telemetry recorded per request: response headers and metrics."""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from prometheus_client.samples import Exemplar

from gateway.telemetry.histograms import UNKNOWN, ModelSeries
from gateway.telemetry.metrics import RequestOutcome
from gateway.telemetry.recent_requests import (
    FailureLog,
    RecentRequest,
    RecentRequests,
    error_message,
)
from registry.domain.pod import Stage

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from gateway.errors import GatewayError
    from gateway.http.headers import PodResponse
    from gateway.routing.decision import SendTo
    from gateway.telemetry.histograms import HistogramSeries
    from gateway.telemetry.metrics import GatewayMetrics
    from gateway.telemetry.recent_requests import StageTimings
    from gateway.telemetry.tracing import Tracer

MAX_CACHED_MODELS: Final = 10_000
_access_logger = logging.getLogger("gateway.access")


@dataclass(slots=True)
class ServedRequest:
    """A request with a response from a pod, as response headers and metrics show it."""

    id: str
    model: str
    """Metric label `NAMESPACE/NAME`."""
    version: bytes
    """The version that responded, if the model has canaries."""
    policy: str
    decision: SendTo
    entry: str
    predict: str
    start: str
    """`warm`, or the tier that the model was loaded from while the request waited."""
    selection_lines: bytes = b""
    """Header lines about the variant, if the request was to an application."""
    error: str = ""
    """The name of the error that the pod responded with, such as `load-failed`."""


@dataclass(frozen=True, slots=True)
class _PolicyHistograms:
    duration: HistogramSeries
    predicted: HistogramSeries
    prediction_error: HistogramSeries


class RequestTelemetry:
    """Writes response headers, metrics and the access log, and caches label lookups."""

    def __init__(
        self, metrics: GatewayMetrics, gateway: str = "gateway", *, logs_requests: bool = False,
        tracer: Tracer | None = None,
    ) -> None:  # fmt: skip
        """`gateway`: name of this gateway, for responses. `tracer`: None if nothing is traced."""
        self.tracer = tracer
        self.gateway = gateway.encode()
        self.recent = RecentRequests()
        self._logs_requests = logs_requests
        self._gateway_line = b"x-pilotlight-gateway: %b\r\n" % self.gateway
        self._metrics = metrics
        self._count = metrics.outcomes.add
        stage = metrics.stages.labels
        self._queue, self._network, self._load = map(
            stage, (Stage.QUEUE, Stage.NETWORK, Stage.LOAD)
        )
        self._preprocess, self._infer, self._postprocess = map(
            stage, (Stage.PREPROCESS, Stage.INFER, Stage.POSTPROCESS)
        )
        self._by_policy: dict[str, _PolicyHistograms] = {}
        self._by_model: dict[str, ModelSeries] = {}
        self._failures = FailureLog()
        metrics.labels.on_gone.append(self._forget)

    def head_lines(
        self, request: ServedRequest, response: PodResponse, timings: StageTimings
    ) -> list[bytes]:
        """Parts of the header lines of the response to the client."""
        lines = response.forwarded
        lines += (
            b"x-request-id: ", request.id.encode(),
            b"\r\nx-pilotlight-pod: ", response.pod or request.entry.encode(),
            b"\r\nx-pilotlight-predict-pod: ", response.predict_pod or request.predict.encode(),
            b"\r\nx-pilotlight-policy: ", request.policy.encode(),
            b"\r\nx-pilotlight-reason: ", (request.error or request.decision.reason).encode(),
            b"\r\nserver-timing: ", timings.server_timing(), b"\r\n",
            self._gateway_line,
        )  # fmt: skip
        if not request.error:
            lines += (b"x-pilotlight-start: ", request.start.encode(), b"\r\n")
        if request.version:
            lines += (b"x-pilotlight-version: ", request.version, b"\r\n")
        if request.selection_lines:
            lines.append(request.selection_lines)
        return lines

    def served(
        self, request: ServedRequest, timings: StageTimings, status: int, error_body: bytes = b""
    ) -> None:
        """Count a pod's response; `error_body`: the beginning of an error's."""
        decision, policy = request.decision, request.policy
        reason = request.error or str(decision.reason)
        start = "" if request.error else request.start
        self._count(RequestOutcome(request.model, policy, reason, start, status))
        self._queue.observe(timings.queue_ms / 1000)
        self._load.observe(timings.load_ms / 1000)
        self._preprocess.observe(timings.preprocess_ms / 1000)
        self._infer.observe(timings.infer_ms / 1000)
        self._postprocess.observe(timings.postprocess_ms / 1000)
        self._network.observe(timings.network_ms / 1000)
        histograms = self._by_policy.get(policy) or self._histograms_of(policy)
        pod_s = timings.pod_ms / 1000
        histograms.duration.observe(timings.queue_ms / 1000 + pod_s)
        series = self._by_model.get(request.model) or self._series_of(request.model)
        _observe(series, timings)
        if self.tracer is not None and (trace_id := self.tracer.trace_id(request.id)):
            _keep_exemplar(trace_id, timings, histograms.duration, series)
        expected_s, forecast = None, decision.forecast
        if forecast is not None and forecast.is_measured:
            expected_s = forecast.seconds
            histograms.predicted.observe(expected_s)
            histograms.prediction_error.observe(abs(expected_s - pod_s))
        self._ended(
            RecentRequest(
                request.id, time.time(), request.model, policy, reason, start,
                status, request.predict, timings, expected_s, error_message(error_body),
            )
        )  # fmt: skip

    def answered_by_look(
        self, request_id: str, application: str, policy: str, *, accuracy: float, utility: float
    ) -> list[bytes]:
        """Count a response without a pod; returns parts of its header lines."""
        self._count(RequestOutcome(application, policy, "short-circuit", "", 200))
        self._ended(
            RecentRequest(
                request_id, time.time(), application, policy, "short-circuit", "", 200, "", None,
                None,
            )
        )  # fmt: skip
        text = (
            "content-type: application/json\r\n"
            f"x-request-id: {request_id}\r\nx-pilotlight-policy: {policy}\r\n"
            "x-pilotlight-reason: short-circuit\r\nx-pilotlight-variant: short-circuit\r\n"
            f"x-pilotlight-expected-accuracy: {accuracy:.4f}\r\n"
            f"x-pilotlight-expected-utility: {utility:.4f}\r\n"
        )
        return [text.encode()]

    def served_by_component(
        self, request_id: str, model: str, component: str, status: int, *, took_s: float
    ) -> list[bytes]:
        """Count a response of a transformer or explainer; returns parts of its header lines.

        The model's own response to the component is counted as that of another request.
        """
        self._count(RequestOutcome(model, "none", component, "", status))
        self._metrics.components.labels(component).observe(took_s)
        self._ended(
            RecentRequest(
                request_id, time.time(), model, "none", component, "", status, "", None, None
            )
        )
        return [
            b"x-request-id: ", request_id.encode(),
            b"\r\nx-pilotlight-reason: ", component.encode(), b"\r\n", self._gateway_line,
        ]  # fmt: skip

    def failed(
        self, model: str, policy: str | None, error: GatewayError, request_id: str = "",
        *, took_s: float = 0.0,
    ) -> None:  # fmt: skip
        """Count an error response of the gateway.

        Args:
            model: metric label; empty if the request was refused before its model was looked up.
            policy: None if no policy was chosen.
            error: the response.
            request_id: empty if it was not read.
            took_s: from the end of the request's head to the response.
        """
        reason, model, policy = str(error.reason), model or UNKNOWN, policy or "none"
        status = int(error.status)
        self._count(RequestOutcome(model, policy, reason, "", status))
        self._ended(
            RecentRequest(
                request_id,
                time.time(),
                model,
                policy,
                reason,
                "",
                status,
                "",
                None,
                None,
                str(error),
                took_s,
            )
        )

    def _ended(self, request: RecentRequest) -> None:
        self.recent.add(request)
        if request.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
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
                    "request_id": request.id, "model": request.model, "status": request.status,
                    "policy": request.policy, "reason": request.reason, "start": request.start,
                    "pod": request.pod, "took_ms": took_ms,
                    **({} if tracer is None else {"trace_id": tracer.trace_id(request.id)}),
                },
            )  # fmt: skip

    def _forget(self, gone: AbstractSet[str]) -> None:
        for model in gone:
            self._by_model.pop(model, None)

    def _series_of(self, model: str) -> ModelSeries:
        series = self._metrics.models.of(model)
        if len(self._by_model) < MAX_CACHED_MODELS:
            self._by_model[model] = series
        return series

    def retried(self, reason: str) -> None:
        self._metrics.retries.labels(reason).inc()

    def client_disconnected(self) -> None:
        self._metrics.disconnects.inc()

    def _histograms_of(self, policy: str) -> _PolicyHistograms:
        metrics = self._metrics
        histograms = self._by_policy[policy] = _PolicyHistograms(
            duration=metrics.durations.labels(policy),
            predicted=metrics.predicted.labels(policy),
            prediction_error=metrics.prediction_errors.labels(policy),
        )
        return histograms


def _keep_exemplar(trace_id: str, timings: StageTimings, *histograms: HistogramSeries) -> None:
    took_s = (timings.queue_ms + timings.pod_ms) / 1000
    exemplar = Exemplar({"trace_id": trace_id}, took_s, time.time())
    for each in histograms:
        each.exemplars[bisect_left(each.bounds, took_s)] = exemplar


def _observe(series: ModelSeries, timings: StageTimings) -> None:
    total_s = (timings.queue_ms + timings.pod_ms) / 1000
    series.counts[bisect_left(series.bounds, total_s)] += 1
    series.total += total_s
    stages_ms = series.stages_ms
    stages_ms[0] += timings.queue_ms
    stages_ms[1] += timings.load_ms
    stages_ms[2] += timings.preprocess_ms
    stages_ms[3] += timings.infer_ms
    stages_ms[4] += timings.postprocess_ms
    stages_ms[5] += timings.network_ms
