"""What is told of each request: the answer's headers, the metrics, the retries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from registry.pod import Stage

if TYPE_CHECKING:
    from gateway.errors import GatewayError
    from gateway.exchange import Exchange
    from gateway.headers import Headers, PodAnswer
    from gateway.metrics import GatewayMetrics

_POD_STAGES = (Stage.LOAD, Stage.PREPROCESS, Stage.INFER, Stage.POSTPROCESS)


class Recorder:
    """Writes `server-timing` and counts, with the label lookups done once per label set."""

    def __init__(self, metrics: GatewayMetrics) -> None:
        self._metrics = metrics
        self._stages = {stage: metrics.stages.labels(stage) for stage in Stage}
        self._children: dict[tuple[Any, ...], Any] = {}

    def answered(self, exchange: Exchange, answer: PodAnswer, status: int, pod_s: float) -> Headers:
        """Count a pod's answer; returns the headers it goes out with."""
        placement = exchange.placement
        if placement is None:
            raise ValueError("an answer needs a placement")
        stages_ms = self._stage_times(exchange, answer, pod_s)
        start = exchange.start(answer)
        model, policy = str(exchange.arrival.model), placement.policy.value
        reason = placement.decision.reason.value
        self._child(self._metrics.requests, model, policy, str(status)).inc()
        self._child(self._metrics.decisions, policy, reason).inc()
        self._child(self._metrics.starts, model, start).inc()
        total_s = exchange.queue_s + pod_s
        self._child(self._metrics.durations, policy).observe(total_s)
        forecast = placement.decision.forecast
        if forecast is not None and forecast.is_measured:
            self._child(self._metrics.predicted, policy).observe(forecast.seconds)
            error_s = abs(forecast.seconds - pod_s)
            self._child(self._metrics.prediction_errors, policy).observe(error_s)
        timing = ", ".join([f"{stage};dur={value:.3f}" for stage, value in stages_ms])
        return [
            *answer.passed,
            (b"x-request-id", exchange.arrival.id.encode()),
            (b"x-pilotlight-pod", answer.pod or placement.reservation.entry.name.encode()),
            (
                b"x-pilotlight-predict-pod",
                answer.predict_pod or placement.reservation.predict.name.encode(),
            ),
            (b"x-pilotlight-policy", policy.encode()),
            (b"x-pilotlight-reason", reason.encode()),
            (b"x-pilotlight-start", start.encode()),
            (b"server-timing", timing.encode()),
        ]

    def _stage_times(
        self, exchange: Exchange, answer: PodAnswer, pod_s: float
    ) -> list[tuple[str, float]]:
        """Milliseconds per stage; what the pod does not account for is time on the network."""
        told = answer.stages_ms or {}
        stages_ms = [(Stage.QUEUE.value, exchange.queue_s * 1000)]
        self._stages[Stage.QUEUE].observe(exchange.queue_s)
        accounted_ms = 0.0
        for stage in _POD_STAGES:
            value_ms = told.get(stage.value, 0.0)
            accounted_ms += value_ms
            stages_ms.append((stage.value, value_ms))
            self._stages[stage].observe(value_ms / 1000)
        network_ms = max(0.0, pod_s * 1000 - accounted_ms)
        stages_ms.append((Stage.NETWORK.value, network_ms))
        self._stages[Stage.NETWORK].observe(network_ms / 1000)
        return stages_ms

    def failed(self, exchange: Exchange, error: GatewayError) -> None:
        """Count a request that the gateway answered itself."""
        policy = exchange.placement.policy.value if exchange.placement else "none"
        code = str(int(error.status))
        self._child(self._metrics.requests, str(exchange.arrival.model), policy, code).inc()
        self._child(self._metrics.decisions, policy, str(error.reason)).inc()

    def retried(self, reason: str) -> None:
        """Count a request that goes to another pod."""
        self._child(self._metrics.retries, reason).inc()

    def client_left(self) -> None:
        """Count a client that left before its answer."""
        self._metrics.disconnects.inc()

    def _child(self, metric: Any, *labels: str) -> Any:
        key = (metric, *labels)
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = metric.labels(*labels)
        return child
