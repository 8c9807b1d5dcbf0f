"""What is told of each request: the answer's headers, the metrics, the retries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from gateway.telemetry.request_counts import RequestOutcome
from registry.domain.pod import Stage

if TYPE_CHECKING:
    from gateway.dispatch.exchange import Exchange
    from gateway.errors import GatewayError
    from gateway.http.headers import PodResponse
    from gateway.telemetry.histograms import HistogramSeries
    from gateway.telemetry.metrics import GatewayMetrics


class StageTimings(NamedTuple):
    """Where the time of one request went, in milliseconds."""

    queue_ms: float
    pod_ms: float
    """From the request's first byte to the pod to the head of its answer."""
    load_ms: float
    preprocess_ms: float
    infer_ms: float
    postprocess_ms: float

    @property
    def network_ms(self) -> float:
        """What the pod does not account for."""
        told_ms = self.load_ms + self.preprocess_ms + self.infer_ms + self.postprocess_ms
        return max(0.0, self.pod_ms - told_ms)

    def server_timing(self) -> bytes:
        """The value of the `server-timing` header."""
        return (
            f"queue;dur={self.queue_ms:.3f}, load;dur={self.load_ms:.3f}, "
            f"preprocess;dur={self.preprocess_ms:.3f}, infer;dur={self.infer_ms:.3f}, "
            f"postprocess;dur={self.postprocess_ms:.3f}, network;dur={self.network_ms:.3f}"
        ).encode()


def stage_timings(queue_s: float, pod_s: float, answer: PodResponse) -> StageTimings:
    """Where the time went, by the gateway's clock and the pod's own `server-timing`."""
    told = (answer.stages_ms or {}).get
    return StageTimings(
        queue_s * 1000,
        pod_s * 1000,
        told("load", 0.0),
        told("preprocess", 0.0),
        told("infer", 0.0),
        told("postprocess", 0.0),
    )


@dataclass(frozen=True, slots=True)
class _StageHistograms:
    """The histograms of one policy."""

    duration: HistogramSeries
    predicted: HistogramSeries
    prediction_error: HistogramSeries


class RequestTelemetry:
    """Writes `server-timing` and counts, with the label lookups done once per label set."""

    def __init__(self, metrics: GatewayMetrics) -> None:
        self._metrics = metrics
        self._count = metrics.outcomes.add
        stage = metrics.stages.labels
        self._queue, self._network, self._load = map(
            stage, (Stage.QUEUE, Stage.NETWORK, Stage.LOAD)
        )
        self._preprocess, self._infer, self._postprocess = map(
            stage, (Stage.PREPROCESS, Stage.INFER, Stage.POSTPROCESS)
        )
        self._times: dict[str, _StageHistograms] = {}

    def head_lines(
        self, exchange: Exchange, answer: PodResponse, stage_timings: StageTimings
    ) -> list[bytes]:
        """The header lines that a pod's answer goes out with, in pieces."""
        placement = exchange.placed
        reservation = placement.reservation
        lines = answer.passed
        lines += (
            b"x-request-id: ", exchange.arrival.id.encode(),
            b"\r\nx-pilotlight-pod: ", answer.pod or reservation.entry.name.encode(),
            b"\r\nx-pilotlight-predict-pod: ",
            answer.predict_pod or reservation.predict.name.encode(),
            b"\r\nx-pilotlight-policy: ", placement.policy.encode(),
            b"\r\nx-pilotlight-reason: ", placement.decision.reason.encode(),
            b"\r\nx-pilotlight-start: ", exchange.start(answer).encode(),
            b"\r\nserver-timing: ", stage_timings.server_timing(), b"\r\n",
        )  # fmt: skip
        if exchange.version:
            lines += (b"x-pilotlight-version: ", exchange.version, b"\r\n")
        return lines

    def answered(
        self, exchange: Exchange, answer: PodResponse, stage_timings: StageTimings, status: int
    ) -> None:
        """Count a pod's answer."""
        placement = exchange.placed
        decision, policy = placement.decision, str(placement.policy)
        start = exchange.start(answer)
        self._count(
            RequestOutcome(exchange.model_text, policy, str(decision.reason), start, status)
        )
        self._queue.observe(stage_timings.queue_ms / 1000)
        self._load.observe(stage_timings.load_ms / 1000)
        self._preprocess.observe(stage_timings.preprocess_ms / 1000)
        self._infer.observe(stage_timings.infer_ms / 1000)
        self._postprocess.observe(stage_timings.postprocess_ms / 1000)
        self._network.observe(stage_timings.network_ms / 1000)
        times = self._times.get(policy) or self._times_of(policy)
        pod_s = stage_timings.pod_ms / 1000
        times.duration.observe(stage_timings.queue_ms / 1000 + pod_s)
        forecast = decision.forecast
        if forecast is not None and forecast.is_measured:
            times.predicted.observe(forecast.seconds)
            times.prediction_error.observe(abs(forecast.seconds - pod_s))

    def failed(self, exchange: Exchange, error: GatewayError) -> None:
        """Count a request that the gateway answered itself."""
        policy = exchange.placement.policy.value if exchange.placement else "none"
        reason = str(error.reason)
        self._count(RequestOutcome(exchange.model_text, policy, reason, "", int(error.status)))

    def retried(self, reason: str) -> None:
        """Count a request that goes to another pod."""
        self._metrics.retries.labels(reason).inc()

    def client_left(self) -> None:
        """Count a client that left before its answer."""
        self._metrics.disconnects.inc()

    def _times_of(self, policy: str) -> _StageHistograms:
        metrics = self._metrics
        times = self._times[policy] = _StageHistograms(
            duration=metrics.durations.labels(policy),
            predicted=metrics.predicted.labels(policy),
            prediction_error=metrics.prediction_errors.labels(policy),
        )
        return times
