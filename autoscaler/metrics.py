"""Metrics of the autoscaler. Labels are closed sets."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class AutoscalerMetrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.actions = Counter(
            "pilotlight_autoscaler_actions",
            "Actions by reason and outcome.",
            ("verb", "reason", "outcome"),
            registry=self.registry,
        )
        self.skipped = Counter(
            "pilotlight_autoscaler_skipped_actions",
            "Planned actions that were not started.",
            ("verb", "cause"),
            registry=self.registry,
        )
        self.plan_seconds = Histogram(
            "pilotlight_autoscaler_plan_seconds",
            "Time of one plan, without the actions.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.forecast_seconds = Histogram(
            "pilotlight_autoscaler_forecast_seconds",
            "Time of one forecast of all models.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.placement_seconds = Histogram(
            "pilotlight_autoscaler_placement_seconds",
            "CPU time of one plan of placements.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.placements = Counter(
            "pilotlight_autoscaler_placements",
            "Plans of placements by outcome.",
            ("outcome",),
            registry=self.registry,
        )
        self.failures = Counter(
            "pilotlight_autoscaler_failures",
            "Failed ticks, plans and forecasts by cause.",
            ("cause",),
            registry=self.registry,
        )
        self.is_leader = Gauge(
            "pilotlight_autoscaler_is_leader",
            "1 while this autoscaler leads.",
            registry=self.registry,
        )
        self.wanted_pods = Gauge(
            "pilotlight_autoscaler_wanted_pods", "Number of pods wanted.", registry=self.registry
        )
        self.pods = Gauge(
            "pilotlight_autoscaler_pods", "Pods by use.", ("use",), registry=self.registry
        )
        self.scaled_elsewhere = Gauge(
            "pilotlight_autoscaler_pods_left_alone",
            "1 while another scaler scales the pool, by owner.",
            ("owner",),
            registry=self.registry,
        )
