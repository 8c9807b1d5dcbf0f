"""What is told of each request: the answer's headers, the metrics, the retries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.request_counts import Outcome
from registry.pod import Stage

if TYPE_CHECKING:
    from gateway.errors import GatewayError
    from gateway.exchange import Exchange
    from gateway.headers import PodAnswer
    from gateway.histograms import Series
    from gateway.metrics import GatewayMetrics


@dataclass(frozen=True, slots=True)
class _Times:
    """The histograms of one policy."""

    duration: Series
    predicted: Series
    prediction_error: Series


class Recorder:
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
        self._times: dict[str, _Times] = {}

    def answered(
        self, exchange: Exchange, answer: PodAnswer, status: int, pod_s: float
    ) -> list[bytes]:
        """Count a pod's answer; returns the header lines it goes out with, in pieces."""
        placement = exchange.placement
        if placement is None:
            raise ValueError("an answer needs a placement")
        decision = placement.decision
        start = exchange.start(answer)
        policy = placement.policy
        self._count(Outcome(exchange.model_text, policy, decision.reason, start, status))
        times = self._times.get(policy) or self._times_of(policy)
        times.duration.observe(exchange.queue_s + pod_s)
        forecast = decision.forecast
        if forecast is not None and forecast.is_measured:
            times.predicted.observe(forecast.seconds)
            times.prediction_error.observe(abs(forecast.seconds - pod_s))
        reservation = placement.reservation
        lines = answer.passed
        lines += (
            b"x-request-id: ", exchange.arrival.id.encode(),
            b"\r\nx-pilotlight-pod: ", answer.pod or reservation.entry.name.encode(),
            b"\r\nx-pilotlight-predict-pod: ",
            answer.predict_pod or reservation.predict.name.encode(),
            b"\r\nx-pilotlight-policy: ", policy.encode(),
            b"\r\nx-pilotlight-reason: ", decision.reason.encode(),
            b"\r\nx-pilotlight-start: ", start.encode(),
            b"\r\nserver-timing: ", self._timing(exchange, answer, pod_s), b"\r\n",
        )  # fmt: skip
        return lines

    def _timing(self, exchange: Exchange, answer: PodAnswer, pod_s: float) -> bytes:
        """The `server-timing` header; what the pod does not account for is time on the network."""
        told = (answer.stages_ms or {}).get
        load_ms, infer_ms = told("load", 0.0), told("infer", 0.0)
        before_ms, after_ms = told("preprocess", 0.0), told("postprocess", 0.0)
        network_ms = max(0.0, pod_s * 1000 - load_ms - before_ms - infer_ms - after_ms)
        self._queue.observe(exchange.queue_s)
        self._load.observe(load_ms / 1000)
        self._preprocess.observe(before_ms / 1000)
        self._infer.observe(infer_ms / 1000)
        self._postprocess.observe(after_ms / 1000)
        self._network.observe(network_ms / 1000)
        return (
            f"queue;dur={exchange.queue_s * 1000:.3f}, load;dur={load_ms:.3f}, "
            f"preprocess;dur={before_ms:.3f}, infer;dur={infer_ms:.3f}, "
            f"postprocess;dur={after_ms:.3f}, network;dur={network_ms:.3f}"
        ).encode()

    def failed(self, exchange: Exchange, error: GatewayError) -> None:
        """Count a request that the gateway answered itself."""
        policy = exchange.placement.policy.value if exchange.placement else "none"
        reason = str(error.reason)
        self._count(Outcome(exchange.model_text, policy, reason, "", int(error.status)))

    def retried(self, reason: str) -> None:
        """Count a request that goes to another pod."""
        self._metrics.retries.labels(reason).inc()

    def client_left(self) -> None:
        """Count a client that left before its answer."""
        self._metrics.disconnects.inc()

    def _times_of(self, policy: str) -> _Times:
        metrics = self._metrics
        times = self._times[policy] = _Times(
            duration=metrics.durations.labels(policy),
            predicted=metrics.predicted.labels(policy),
            prediction_error=metrics.prediction_errors.labels(policy),
        )
        return times
