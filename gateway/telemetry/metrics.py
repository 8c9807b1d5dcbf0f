"""Metrics of the gateway. Labels are closed sets and models, never pods or requests."""

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
            "Time from arrival to the response.",
            "policy",
        )
        self.predicted = self._histogram(
            "pilotlight_gateway_predicted_seconds",
            "Measured forecast of the decision.",
            "policy",
        )
        self.prediction_errors = self._histogram(
            "pilotlight_gateway_prediction_error_seconds",
            "Absolute difference between a measured forecast and the actual time.",
            "policy",
        )
        self.retries = Counter(
            "pilotlight_gateway_retries", "Requests retried at another pod.", ("reason",),
            registry=self.registry,
        )  # fmt: skip
        self.disconnects = Counter(
            "pilotlight_gateway_client_disconnects", "Clients that left before the response.",
            registry=self.registry,
        )  # fmt: skip
        self.waiting = Gauge(
            "pilotlight_gateway_waiting_requests", "Requests in the queue.",
            registry=self.registry,
        )  # fmt: skip
        self.reserved = Gauge(
            "pilotlight_gateway_reservations", "Reservations held now.", registry=self.registry
        )
        self.registry_age = Gauge(
            "pilotlight_gateway_registry_age_seconds", "Age of the local cluster state.",
            registry=self.registry,
        )  # fmt: skip
        self.registry_repairs = Gauge(
            "pilotlight_gateway_registry_repairs", "Snapshots taken because updates were missed.",
            registry=self.registry,
        )  # fmt: skip

    def _histogram(self, name: str, documentation: str, label: str) -> LatencyHistogram:
        return LatencyHistogram(name, documentation, label, _STAGE_BUCKETS, self.registry)
