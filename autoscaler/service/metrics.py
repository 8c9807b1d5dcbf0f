"""What the autoscaler counts. Labels are closed sets."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class AutoscalerMetrics:
    """The autoscaler's metrics, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.actions = Counter(
            "pilotlight_autoscaler_actions", "Actions by their reason and what became of them.",
            ("verb", "reason", "outcome"), registry=self.registry,
        )  # fmt: skip
        self.skipped = Counter(
            "pilotlight_autoscaler_skipped_actions", "Planned actions that were not begun.",
            ("verb", "cause"), registry=self.registry,
        )  # fmt: skip
        self.plan_seconds = Histogram(
            "pilotlight_autoscaler_plan_seconds", "Time of one plan, without the actions.",
            buckets=_SECONDS, registry=self.registry,
        )  # fmt: skip
        self.forecast_seconds = Histogram(
            "pilotlight_autoscaler_forecast_seconds", "Time of one forecast of all models.",
            buckets=_SECONDS, registry=self.registry,
        )  # fmt: skip
        self.failures = Counter(
            "pilotlight_autoscaler_failures", "Ticks or forecasts that went wrong, and why.",
            ("cause",), registry=self.registry,
        )  # fmt: skip
        self.is_leader = Gauge(
            "pilotlight_autoscaler_is_leader", "1 while this one plans.", registry=self.registry
        )
        self.wanted_pods = Gauge(
            "pilotlight_autoscaler_wanted_pods", "Pods that are wanted.", registry=self.registry
        )
        self.pods = Gauge(
            "pilotlight_autoscaler_pods", "Pods by what they do for their models.", ("use",),
            registry=self.registry,
        )  # fmt: skip
        self.left_alone = Gauge(
            "pilotlight_autoscaler_pods_left_alone",
            "1 while the number of pods is somebody else's, by whose it is.", ("owner",),
            registry=self.registry,
        )  # fmt: skip
