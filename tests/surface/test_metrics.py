"""Metrics of the processes: name, type and labels."""

from collections.abc import Iterator
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry

import controller.api
import runtime.metrics
from autoscaler.metrics import AutoscalerMetrics
from gateway.telemetry.metrics import GatewayMetrics
from tests.surface.recorded import assert_recorded
from workflows.metrics import SchedulerMetrics


def _families(registry: CollectorRegistry) -> Iterator[str]:
    """Also those that have no sample yet, which no exposition shows."""
    for collector in dict.fromkeys(registry._collector_to_names):
        wrapper: Any = collector
        if hasattr(wrapper, "_labelnames"):
            yield _described(wrapper._name, wrapper._type, wrapper._labelnames)
        else:
            for family in wrapper.collect():
                yield _described(family.name, family.type, getattr(family, "_labelnames", ()))


def _described(name: str, kind: str, labels: tuple[str, ...]) -> str:
    return f"{name}, {kind}, {' '.join(labels) or 'no labels'}"


def _lines() -> Iterator[str]:
    assert runtime.metrics, controller.api  # which register theirs
    registries = {
        "gateway": GatewayMetrics().registry,
        "autoscaler": AutoscalerMetrics().registry,
        "workflows": SchedulerMetrics().registry,
        "pod and controller": REGISTRY,
    }
    for process, registry in registries.items():
        found = {line for line in _families(registry) if line.startswith("pilotlight_")}
        yield process
        yield from (f"    {line}" for line in sorted(found))


def test_metrics_are_as_recorded() -> None:
    assert_recorded("metrics", _lines())
