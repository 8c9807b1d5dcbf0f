"""Prometheus metrics of a pod, in addition to the four histograms of KServe's SDK."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Final

from kserve.metrics import POST_HIST_TIME, PRE_HIST_TIME, PREDICT_HIST_TIME
from prometheus_client import REGISTRY, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from registry.domain.model import ModelName
from registry.domain.pod import Stage

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)

LOADS = Counter(
    "pilotlight_loads_total", "Model loads by the tier they started from.", ["tier", "outcome"]
)
LOAD_SECONDS = Histogram(
    "pilotlight_load_seconds", "Time of successful loads.", ["tier"], buckets=SECONDS
)
ENGINE_START_SECONDS = Histogram(
    "pilotlight_engine_start_seconds",
    "Time of the starts of vLLM's engines, by stage: imports (once for all), process, weights,"
    " warm-up; and of wakes.",
    ["stage"],
    buckets=SECONDS,
)


class FunctionCounter(Collector):
    """A counter whose value is read from a function at each scrape."""

    def __init__(self, name: str, documentation: str) -> None:
        self._name = name
        self._documentation = documentation
        self._read: Callable[[], float] = lambda: 0.0
        REGISTRY.register(self)

    def set_function(self, read: Callable[[], float]) -> None:
        self._read = read

    def collect(self) -> Iterable[CounterMetricFamily]:
        yield CounterMetricFamily(self._name, self._documentation, value=self._read())


IDLE_MEMORY = FunctionCounter(
    "pilotlight_idle_memory_byte_seconds_total",
    "Bytes of models on the device that no request uses, times seconds.",
)
TIER_BYTES = Gauge("pilotlight_tier_bytes", "Bytes of models held in each tier.", ["tier"])
KEPT_TENSOR_BYTES = Gauge(
    "pilotlight_kept_tensor_bytes", "Bytes of workflow steps' outputs that the pod keeps."
)
KEPT_TENSOR_READS = Counter(
    "pilotlight_kept_tensor_reads_total",
    "Steps' inputs that a pod keeps, by how they came: same-pod, shared-memory, raw-bytes.",
    ["tier"],
)
EVICTIONS = Counter(
    "pilotlight_evictions_total", "Models that left a tier, and why.", ["tier", "reason"]
)
DEMOTIONS = Counter(
    "pilotlight_demotions_total",
    "Models copied to host: evicted ones, and those loaded to a GPU.",
    ["outcome"],
)
STAGE_SECONDS = Histogram(
    "pilotlight_stage_seconds", "Time of each stage of a request.", ["stage"], buckets=SECONDS
)
REQUESTS = Counter("pilotlight_pod_requests_total", "Requests answered.", ["stage", "status"])
SERVER_UP = Gauge("pilotlight_model_server_up", "1 while the pod's model server answers.")
SLOTS_USED = Gauge("pilotlight_pod_slots_used", "Request slots taken.")
STEPS_QUEUED = Gauge("pilotlight_pod_steps_queued", "Steps of workflows in the step queue.")
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)

BATCH_SIZE = Histogram(
    "pilotlight_batch_size", "Items of requests in one inference.", ["model"], buckets=ROWS
)
BATCHES = Counter(
    "pilotlight_batches_total", "Inferences, by how they ended.", ["model", "outcome"]
)
QUEUE_SECONDS = Histogram(
    "pilotlight_queue_seconds", "Time a request waited for the device.", ["model"], buckets=SECONDS
)
GPU_BUSY = Gauge("pilotlight_gpu_busy_ratio", "Part of the time in which a kernel ran.", ["gpu"])
GPU_USED_BYTES = Gauge("pilotlight_gpu_used_bytes", "Memory that all processes use.", ["gpu"])
GPU_TEMPERATURE = Gauge("pilotlight_gpu_temperature_celsius", "Of the GPU's core.", ["gpu"])
GPU_XID = Gauge("pilotlight_gpu_last_xid", "The driver's last error since the start.", ["gpu"])
STUCK_THREADS = Gauge(
    "pilotlight_device_stuck_threads", "Threads left behind in inferences that do not end."
)
EXPRESSIONS = Counter(
    "pilotlight_expressions_total", "Evaluated chat templates and tokenizers.", ["outcome"]
)
DEVICE_WAITING = Gauge("pilotlight_device_waiting", "Inferences waiting for the device.")
DOWNLOADED_BYTES = Counter("pilotlight_downloaded_bytes_total", "Bytes read from model storage.")
RANGE_RETRIES = Counter(
    "pilotlight_range_retries_total", "Reads of model storage tried again after a fault."
)
DISK_EVICTIONS = Counter(
    "pilotlight_disk_evictions_total", "Models deleted from the node's disk cache.", ["reason"]
)
DISK_EVICTED_BYTES = Counter(
    "pilotlight_disk_evicted_bytes_total", "Bytes deleted from the node's disk cache to make room."
)
HEARTBEATS = Counter("pilotlight_heartbeats_total", "Heartbeats to the registry.", ["outcome"])
GENERATIONS = Gauge("pilotlight_generations", "Requests that are making tokens.")
GENERATED_TOKENS = Counter("pilotlight_generated_tokens_total", "Tokens made.")
FIRST_TOKEN_SECONDS = Histogram(
    "pilotlight_first_token_seconds",
    "Time to a choice's first token on a warm model.",
    buckets=SECONDS,
)


KSERVE_HISTOGRAMS: Final = {
    Stage.PREPROCESS: PRE_HIST_TIME,
    Stage.INFER: PREDICT_HIST_TIME,
    Stage.POSTPROCESS: POST_HIST_TIME,
}
request_counter: Final = cache(REQUESTS.labels)
"""By stage and status."""


@cache
def batch_series(model: str) -> tuple[Counter, Histogram, Histogram]:
    """Of batches that ended well: their number, size and waiting time."""
    return BATCHES.labels(model, "ok"), BATCH_SIZE.labels(model), QUEUE_SECONDS.labels(model)


@cache
def stage_histograms(stage: Stage, model: ModelName) -> tuple[Histogram, ...]:
    """Those that record a stage of a request, looked up once: that takes as long as a sample."""
    ours: Histogram = STAGE_SECONDS.labels(stage)
    kserves = KSERVE_HISTOGRAMS.get(stage)
    return (ours,) if kserves is None else (ours, kserves.labels(model.path_segment))


_OURS: Final = (BATCH_SIZE, BATCHES, QUEUE_SECONDS)


def drop_series(model: ModelName) -> None:
    """Forget all series of a model; a later request starts them again from zero.

    A histogram's series takes 4 KB; a pod that sees thousands of models come and go would keep
    them.
    """
    for ours in _OURS:
        ours.remove_by_labels({"model": str(model)})
    for histogram in KSERVE_HISTOGRAMS.values():
        histogram.remove_by_labels({"model_name": model.path_segment})
    batch_series.cache_clear()
    stage_histograms.cache_clear()
