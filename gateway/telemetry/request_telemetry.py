"""Telemetry recorded per request: response headers and metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from gateway.telemetry.metrics import RequestOutcome
from registry.domain.pod import Stage

if TYPE_CHECKING:
    from gateway.errors import GatewayError
    from gateway.http.headers import PodResponse
    from gateway.routing.decision import SendTo
    from gateway.telemetry.metrics import GatewayMetrics, HistogramSeries


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


class StageTimings(NamedTuple):
    """Time of one request by stage, in milliseconds."""

    queue_ms: float
    pod_ms: float
    """From the first byte sent to the pod to the head of its response."""
    load_ms: float
    preprocess_ms: float
    infer_ms: float
    postprocess_ms: float

    @property
    def network_ms(self) -> float:
        """The part of `pod_ms` that the pod does not report."""
        reported_ms = self.load_ms + self.preprocess_ms + self.infer_ms + self.postprocess_ms
        return max(0.0, self.pod_ms - reported_ms)

    def server_timing(self) -> bytes:
        return (
            f"queue;dur={self.queue_ms:.3f}, load;dur={self.load_ms:.3f}, "
            f"preprocess;dur={self.preprocess_ms:.3f}, infer;dur={self.infer_ms:.3f}, "
            f"postprocess;dur={self.postprocess_ms:.3f}, network;dur={self.network_ms:.3f}"
        ).encode()


def stage_timings(queue_s: float, pod_s: float, response: PodResponse) -> StageTimings:
    """Timings by the gateway's clock and the pod's `server-timing`."""
    reported = (response.stages_ms or {}).get
    return StageTimings(
        queue_s * 1000,
        pod_s * 1000,
        reported("load", 0.0),
        reported("preprocess", 0.0),
        reported("infer", 0.0),
        reported("postprocess", 0.0),
    )


@dataclass(frozen=True, slots=True)
class _PolicyHistograms:
    duration: HistogramSeries
    predicted: HistogramSeries
    prediction_error: HistogramSeries


class RequestTelemetry:
    """Writes response headers and metrics, and caches label lookups."""

    def __init__(self, metrics: GatewayMetrics, gateway: str = "gateway") -> None:
        """`gateway`: name of this gateway, for responses."""
        self.gateway = gateway.encode()
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
            b"\r\nx-pilotlight-reason: ", request.decision.reason.encode(),
            b"\r\nx-pilotlight-start: ", request.start.encode(),
            b"\r\nserver-timing: ", timings.server_timing(), b"\r\n",
            self._gateway_line,
        )  # fmt: skip
        if request.version:
            lines += (b"x-pilotlight-version: ", request.version, b"\r\n")
        if request.selection_lines:
            lines.append(request.selection_lines)
        return lines

    def served(self, request: ServedRequest, timings: StageTimings, status: int) -> None:
        decision, policy = request.decision, request.policy
        self._count(
            RequestOutcome(request.model, policy, str(decision.reason), request.start, status)
        )
        self._queue.observe(timings.queue_ms / 1000)
        self._load.observe(timings.load_ms / 1000)
        self._preprocess.observe(timings.preprocess_ms / 1000)
        self._infer.observe(timings.infer_ms / 1000)
        self._postprocess.observe(timings.postprocess_ms / 1000)
        self._network.observe(timings.network_ms / 1000)
        histograms = self._by_policy.get(policy) or self._histograms_of(policy)
        pod_s = timings.pod_ms / 1000
        histograms.duration.observe(timings.queue_ms / 1000 + pod_s)
        forecast = decision.forecast
        if forecast is not None and forecast.is_measured:
            histograms.predicted.observe(forecast.seconds)
            histograms.prediction_error.observe(abs(forecast.seconds - pod_s))

    def answered_by_look(
        self, request_id: str, application: str, policy: str, *, accuracy: float, utility: float
    ) -> list[bytes]:
        """Count a response without a pod; returns parts of its header lines."""
        self._count(RequestOutcome(application, policy, "short-circuit", "", 200))
        text = (
            "content-type: application/json\r\n"
            f"x-request-id: {request_id}\r\nx-pilotlight-policy: {policy}\r\n"
            "x-pilotlight-reason: short-circuit\r\nx-pilotlight-variant: short-circuit\r\n"
            f"x-pilotlight-expected-accuracy: {accuracy:.4f}\r\n"
            f"x-pilotlight-expected-utility: {utility:.4f}\r\n"
        )
        return [text.encode()]

    def failed(self, model: str, policy: str | None, error: GatewayError) -> None:
        """Count an error response of the gateway; `policy` is None if no policy was chosen."""
        reason = str(error.reason)
        self._count(RequestOutcome(model, policy or "none", reason, "", int(error.status)))

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
