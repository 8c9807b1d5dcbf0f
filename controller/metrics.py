"""Metrics of the controller."""

from prometheus_client import Counter, Gauge

STATUS_WRITES = Counter("pilotlight_controller_status_writes_total", "Statuses of models written")
FAILURES = Counter(
    "pilotlight_controller_failures_total", "Failed operations by error class", ["cause"]
)
IS_LEADING = Gauge("pilotlight_controller_leading", "1 while this replica leads")
MODELS = Gauge("pilotlight_controller_models", "InferenceServices that are models of a pool")
