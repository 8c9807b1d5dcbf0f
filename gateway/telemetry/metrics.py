"""What the gateway counts. Labels are closed sets; a model is a label, a pod or request never."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

from gateway.telemetry.histograms import LatencyHistogram
from gateway.telemetry.request_counts import RequestCounts

_STAGE_BUCKETS = (
    0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip


class GatewayMetrics:
    """The gateway's metrics, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.outcomes = RequestCounts(self.registry)
        self.stages = self._histogram(
            "pilotlight_gateway_stage_seconds", "Time of each stage of a request.", "stage"
        )
        self.durations = self._histogram(
            "pilotlight_gateway_request_seconds",
            "Time from arrival to the end of the answer.",
            "policy",
        )
        self.predicted = self._histogram(
            "pilotlight_gateway_predicted_seconds",
            "Measured forecast of the decision that was taken.",
            "policy",
        )
        self.prediction_errors = self._histogram(
            "pilotlight_gateway_prediction_error_seconds",
            "Absolute difference between a measured forecast and what happened.",
            "policy",
        )
        self.retries = Counter(
            "pilotlight_gateway_retries", "Requests tried again on another pod.", ("reason",),
            registry=self.registry,
        )  # fmt: skip
        self.disconnects = Counter(
            "pilotlight_gateway_client_disconnects", "Clients that left before their answer.",
            registry=self.registry,
        )  # fmt: skip
        self.waiting = Gauge(
            "pilotlight_gateway_waiting_requests", "Requests in the waiting room.",
            registry=self.registry,
        )  # fmt: skip
        self.reserved = Gauge(
            "pilotlight_gateway_reservations", "Reservations held now.", registry=self.registry
        )
        self.registry_age = Gauge(
            "pilotlight_gateway_registry_age_seconds", "Age of the copy of the registry.",
            registry=self.registry,
        )  # fmt: skip
        self.registry_repairs = Gauge(
            "pilotlight_gateway_registry_repairs", "Snapshots taken since pushes were missed.",
            registry=self.registry,
        )  # fmt: skip

    def _histogram(self, name: str, documentation: str, label: str) -> LatencyHistogram:
        return LatencyHistogram(name, documentation, label, _STAGE_BUCKETS, self.registry)
