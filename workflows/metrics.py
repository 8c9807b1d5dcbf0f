"""Metrics of the scheduler of workflows."""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)


class SchedulerMetrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.runs = Counter(
            "pilotlight_workflow_runs_total", "Runs that ended", ["status"], registry=self.registry
        )
        self.active = Gauge(
            "pilotlight_workflow_runs_active", "Runs under way", registry=self.registry
        )
        self.seconds = Histogram(
            "pilotlight_workflow_run_seconds",
            "Duration of runs",
            ["scheduling"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.steps = Counter(
            "pilotlight_workflow_steps_total",
            "Steps that ended",
            ["outcome", "predicted"],
            registry=self.registry,
        )
        self.planning = Histogram(
            "pilotlight_workflow_planning_seconds",
            "Time of a plan",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.preloads = Counter(
            "pilotlight_workflow_preloads_total",
            "Loads ahead of steps: begun, used by a step, wasted, withdrawn, failed",
            ["outcome"],
            registry=self.registry,
        )
        self.resumptions = Counter(
            "pilotlight_workflow_resumptions_total",
            "Runs resumed after the end of their runner or scheduler",
            ["cause"],
            registry=self.registry,
        )
