"""Prometheus metrics of a pod, beside the four histograms that KServe's SDK declares itself."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)

LOADS = Counter(
    "pilotlight_loads_total", "Model loads by the tier they started from.", ["tier", "outcome"]
)
LOAD_SECONDS = Histogram(
    "pilotlight_load_seconds", "Time of successful loads.", ["tier"], buckets=SECONDS
)
TIER_BYTES = Gauge("pilotlight_tier_bytes", "Bytes of models held in each tier.", ["tier"])
EVICTIONS = Counter("pilotlight_evictions_total", "Models taken off the device.", ["reason"])
STAGE_SECONDS = Histogram(
    "pilotlight_stage_seconds", "Time of each stage of a request.", ["stage"], buckets=SECONDS
)
REQUESTS = Counter("pilotlight_pod_requests_total", "Requests answered.", ["stage", "status"])
SLOTS_USED = Gauge("pilotlight_pod_slots_used", "Request slots taken.")
DEVICE_WAITING = Gauge("pilotlight_device_waiting", "Inferences waiting for the device.")
DOWNLOADED_BYTES = Counter("pilotlight_downloaded_bytes_total", "Bytes read from model storage.")
HEARTBEATS = Counter("pilotlight_heartbeats_total", "Heartbeats to the registry.", ["outcome"])
