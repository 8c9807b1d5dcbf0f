"""Metrics of the autoscaler. Labels are closed sets."""

from functools import partial
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_PREFIX: Final = "pilotlight_autoscaler_"
_SECONDS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class AutoscalerMetrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter = partial(Counter, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry)
        histogram = partial(Histogram, buckets=_SECONDS, registry=self.registry)
        self.actions = counter(
            _PREFIX + "actions", "Actions by reason and outcome.", ("verb", "reason", "outcome")
        )
        self.skipped = counter(
            _PREFIX + "skipped_actions", "Planned actions that were not started.", ("verb", "cause")
        )
        self.plan_seconds = histogram(
            _PREFIX + "plan_seconds", "Time of one plan, without the actions."
        )
        self.forecast_seconds = histogram(
            _PREFIX + "forecast_seconds", "Time of one forecast of all models."
        )
        self.placement_seconds = histogram(
            _PREFIX + "placement_seconds", "CPU time of one plan of placements."
        )
        self.placements = counter(
            _PREFIX + "placements", "Plans of placements by outcome.", ("outcome",)
        )
        self.failures = counter(
            _PREFIX + "failures", "Failed ticks, plans and forecasts by cause.", ("cause",)
        )
        self.is_leader = gauge(_PREFIX + "is_leader", "1 while this autoscaler leads.")
        self.wanted_pods = gauge(_PREFIX + "wanted_pods", "Number of pods wanted.")
        self.pods = gauge(_PREFIX + "pods", "Pods by use.", ("use",))
        self.scaled_elsewhere = gauge(
            _PREFIX + "pods_left_alone",
            "1 while another scaler scales the pool, by owner.",
            ("owner",),
        )
