"""Metrics of the scheduler of workflows."""

from functools import partial
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)


class SchedulerMetrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter = partial(Counter, registry=self.registry)
        histogram = partial(Histogram, buckets=_SECONDS, registry=self.registry)
        self.runs = counter("pilotlight_workflow_runs_total", "Runs that ended", ["status"])
        self.active = Gauge(
            "pilotlight_workflow_runs_active", "Runs under way", registry=self.registry
        )
        self.seconds = histogram(
            "pilotlight_workflow_run_seconds", "Duration of runs", ["scheduling"]
        )
        self.steps = counter(
            "pilotlight_workflow_steps_total", "Steps that ended", ["outcome", "predicted"]
        )
        self.planning = histogram("pilotlight_workflow_planning_seconds", "Time of a plan")
        self.preloads = counter(
            "pilotlight_workflow_preloads_total",
            "Loads ahead of steps: begun, used by a step, wasted, withdrawn, failed",
            ["outcome"],
        )
        self.resumptions = counter(
            "pilotlight_workflow_resumptions_total",
            "Runs resumed after the end of their runner or scheduler",
            ["cause"],
        )
