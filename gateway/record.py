"""What is told of each request: the answer's headers, the metrics, the retries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from registry.pod import Stage

if TYPE_CHECKING:
    from prometheus_client import Counter

    from gateway.errors import GatewayError
    from gateway.exchange import Exchange
    from gateway.headers import PodAnswer
    from gateway.histograms import Series
    from gateway.metrics import GatewayMetrics

_POD_STAGES = (Stage.LOAD, Stage.PREPROCESS, Stage.INFER, Stage.POSTPROCESS)


@dataclass(frozen=True, slots=True)
class _Series:
    """Everything counted for one combination of labels, looked up once per request."""

    requests: Counter
    decisions: Counter
    starts: Counter
    duration: Series
    predicted: Series
    prediction_error: Series


class Recorder:
    """Writes `server-timing` and counts, with the label lookups done once per label set."""

    def __init__(self, metrics: GatewayMetrics) -> None:
        self._metrics = metrics
        self._queue = metrics.stages.labels(Stage.QUEUE)
        self._network = metrics.stages.labels(Stage.NETWORK)
        self._pod_stages = [(stage.value, metrics.stages.labels(stage)) for stage in _POD_STAGES]
        self._series: dict[tuple[str, ...], _Series] = {}

    def answered(
        self, exchange: Exchange, answer: PodAnswer, status: int, pod_s: float
    ) -> list[bytes]:
        """Count a pod's answer; returns the header lines it goes out with, in pieces."""
        placement = exchange.placement
        if placement is None:
            raise ValueError("an answer needs a placement")
        decision = placement.decision
        start = exchange.start(answer)
        series = self._labelled(
            exchange.model_text, placement.policy, decision.reason, start, str(status)
        )
        series.requests.inc()
        series.decisions.inc()
        series.starts.inc()
        series.duration.observe(exchange.queue_s + pod_s)
        forecast = decision.forecast
        if forecast is not None and forecast.is_measured:
            series.predicted.observe(forecast.seconds)
            series.prediction_error.observe(abs(forecast.seconds - pod_s))
        reservation = placement.reservation
        lines = answer.passed
        lines += (
            b"x-request-id: ", exchange.arrival.id.encode(),
            b"\r\nx-pilotlight-pod: ", answer.pod or reservation.entry.name.encode(),
            b"\r\nx-pilotlight-predict-pod: ",
            answer.predict_pod or reservation.predict.name.encode(),
            b"\r\nx-pilotlight-policy: ", placement.policy.encode(),
            b"\r\nx-pilotlight-reason: ", decision.reason.encode(),
            b"\r\nx-pilotlight-start: ", start.encode(),
            b"\r\nserver-timing: ", self._timing(exchange, answer, pod_s), b"\r\n",
        )  # fmt: skip
        return lines

    def _timing(self, exchange: Exchange, answer: PodAnswer, pod_s: float) -> bytes:
        """The `server-timing` header; what the pod does not account for is time on the network."""
        told = answer.stages_ms or {}
        self._queue.observe(exchange.queue_s)
        parts = [f"queue;dur={exchange.queue_s * 1000:.3f}"]
        accounted_ms = 0.0
        for stage, series in self._pod_stages:
            value_ms = told.get(stage, 0.0)
            accounted_ms += value_ms
            series.observe(value_ms / 1000)
            parts.append(f"{stage};dur={value_ms:.3f}")
        network_ms = max(0.0, pod_s * 1000 - accounted_ms)
        self._network.observe(network_ms / 1000)
        parts.append(f"network;dur={network_ms:.3f}")
        return ", ".join(parts).encode()

    def failed(self, exchange: Exchange, error: GatewayError) -> None:
        """Count a request that the gateway answered itself."""
        policy = exchange.placement.policy.value if exchange.placement else "none"
        code = str(int(error.status))
        self._metrics.requests.labels(exchange.model_text, policy, code).inc()
        self._metrics.decisions.labels(policy, str(error.reason)).inc()

    def retried(self, reason: str) -> None:
        """Count a request that goes to another pod."""
        self._metrics.retries.labels(reason).inc()

    def client_left(self) -> None:
        """Count a client that left before its answer."""
        self._metrics.disconnects.inc()

    def _labelled(self, model: str, policy: str, reason: str, start: str, code: str) -> _Series:
        key = (model, policy, reason, start, code)
        series = self._series.get(key)
        if series is None:
            metrics = self._metrics
            series = self._series[key] = _Series(
                requests=metrics.requests.labels(model, policy, code),
                decisions=metrics.decisions.labels(policy, reason),
                starts=metrics.starts.labels(model, start),
                duration=metrics.durations.labels(policy),
                predicted=metrics.predicted.labels(policy),
                prediction_error=metrics.prediction_errors.labels(policy),
            )
        return series
