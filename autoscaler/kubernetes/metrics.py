"""What the controller counts."""

from __future__ import annotations

from prometheus_client import Counter, Gauge

STATUS_WRITES = Counter(
    "pilotlight_controller_status_writes_total", "Statuses of models that were written"
)
FAILURES = Counter(
    "pilotlight_controller_failures_total",
    "Attempts that failed, by what was in the way",
    ["cause"],
)
IS_LEADING = Gauge("pilotlight_controller_leading", "1 where this replica acts")
MODELS = Gauge("pilotlight_controller_models", "InferenceServices that are models of a pool")
