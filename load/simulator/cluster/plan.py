"""Description of a simulated cluster as values; `cluster_file` reads them from YAML.

Times in seconds, sizes in bytes, rates in bytes per second (infinity: no limit).
"""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

from registry.domain.application import ApplicationSpec
from registry.domain.model import ModelSpec, Tier
from registry.domain.pod import ProfilePoint, default_slots


@dataclass(frozen=True, slots=True)
class ApplicationExamples:
    """What requests carry; a list has an entry per example."""

    labels: list[int]
    predicted: Mapping[str, list[int]] = field(default_factory=dict)
    """By variant."""
    evidence: list[tuple[float, ...]] = field(default_factory=list)
    """What the look sees; empty: there is none."""


@dataclass(frozen=True, slots=True)
class ApplicationPlan:
    spec: ApplicationSpec
    confusions: Mapping[str, tuple[tuple[int, ...], ...]]
    """By variant; rows are true classes."""
    examples: ApplicationExamples | None = None
    look_accuracy: float | None = None
    """Profiled, of the look at the data."""


@dataclass(frozen=True, slots=True)
class PodPlan:
    """One pod: a process with one device."""

    name: str
    slots: int = default_slots()
    memory_bytes: int = 16 * 10**9
    speed: float = 1.0
    """Factor by which stages are faster than in the profiles."""
    device_bytes_per_s: float = 12e9
    """From host memory to the device, shared by the pod's loads."""
    start_s: float = 0.0
    """When it starts; infinity: only if the autoscaler starts it."""
    kill_s: float | None = None
    """When its process dies; None: never."""
    drain_s: float | None = None
    """When the pod starts to drain; it stops after its last response."""
    gpu: str = ""
    """GPU of its node, which it shares with the pods that name the same one; empty: its own."""
    share_pct: float | None = None
    """Limit of its compute; None: none."""
    placed_model: str = ""
    """`namespace/name` of the only model that it serves; empty: all."""
    batch_cap: int | None = None
    """Largest batch of the placed model."""


@dataclass(frozen=True, slots=True)
class NodePlan:
    """One machine, and the resources that its pods share."""

    name: str
    pods: tuple[PodPlan, ...]
    object_storage_bytes_per_s: float = 1e9
    disk_bytes_per_s: float = 2e9
    disk_bytes: float = inf
    host_memory_bytes: int = 0
    """Budget of tier `host`; 0: none."""
    machine: str = ""
    """Nodes with the same machine share its cores and its disk; empty: a machine of its own."""
    cores: float = inf
    """Of the machine, less what other processes always use; infinity: work never slows down."""
    all_cores_speed: float = 1.0
    """Of a core while all are busy, against one that is busy alone: they share caches, memory
    bandwidth, and with hyper-threads more."""


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """One model as declared, and the times of its stages at a pod of speed 1."""

    spec: ModelSpec
    size_bytes: int = 250 * 10**6
    memory_bytes: int = 250 * 10**6
    """Memory that the model takes on the device."""
    infer: tuple[ProfilePoint, ...] = ()
    """Time of one inference by rows, ascending."""
    infer_per_token: tuple[ProfilePoint, ...] = ()
    """Additional time per generated token, by rows, ascending; a single one holds for all rows."""
    preprocess_s: float = 0.001
    postprocess_s: float = 0.001
    assets_s: float = 0.1
    """Time for an entry pod to fetch the tokenizer, the first time; 0: there is none."""
    load_fixed_s: float = 0.05
    """Time of a load in addition to the transfers."""
    load_s: Mapping[Tier, float] = field(default_factory=dict)
    """Total time of a load by its source tier, in place of sizes and rates."""
    network_s: float = 0.0
    """Time from the entry pod to another predict pod, in addition to `pod_hop_s`; as `network` of
    the header `x-pilotlight-simulate`."""
    at: Mapping[str, Tier] = field(default_factory=dict)
    """Its tier at the start, by pod."""
    is_batched: bool = True
    is_continuous: bool = False
    """Requests join and leave between tokens; else a batch lasts for its longest output."""
    infer_cores: tuple[tuple[int, float], ...] = ()
    """Cores that a batch keeps busy by rows, ascending; empty: one."""
    load_cpu_s: Mapping[Tier, float] = field(default_factory=dict)
    """CPU time of a load by its source tier; missing: `load_s` or `load_fixed_s`, as one core's."""
    sm_utilization: tuple[tuple[int, float], ...] = ()
    """Multiprocessors in use by rows, ascending, in %; empty: all of them."""
    prefill_s: float = 0.0
    """Additional time per token of a prompt that is not in the pod's cache."""
    cache_tokens: int = 0
    """Tokens of earlier prompts that a pod's cache keeps; 0: none."""
    counts_tokens: bool = False
    """A trace's input size is the number of tokens of one item, not a number of items."""

    def infer_s(self, rows: int) -> float:
        """Time of a batch, interpolated between the measured numbers of rows."""
        return _time_s(self.infer, rows)

    def used_pct(self, rows: int) -> float:
        """Multiprocessors that a batch uses: of the smallest measured one that is as large."""
        known = self.sm_utilization
        return next((used for at, used in known if at >= rows), known[-1][1] if known else 100.0)

    def cores(self, rows: int) -> float:
        """Cores that a batch keeps busy: of the smallest measured one that is as large."""
        known = self.infer_cores
        return next((cores for at, cores in known if at >= rows), known[-1][1] if known else 1.0)

    def token_s(self, rows: int) -> float:
        """Time of one token for each row of a batch."""
        points = self.infer_per_token
        return points[0].latency_s if len(points) == 1 else _time_s(points, rows)


def _time_s(points: tuple[ProfilePoint, ...], rows: int) -> float:
    place = bisect_left(points, rows, key=lambda point: point.rows)
    if place < len(points) and points[place].rows == rows:
        return points[place].latency_s
    if place == 0:
        return points[0].latency_s
    before = points[place - 1]
    if place == len(points):
        return before.latency_s * rows / before.rows
    after = points[place]
    share = (rows - before.rows) / (after.rows - before.rows)
    return before.latency_s + share * (after.latency_s - before.latency_s)


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """A cluster, its models and its network."""

    nodes: tuple[NodePlan, ...]
    models: tuple[ModelPlan, ...]
    gateway_hop_s: float = 0.0002
    """Time from gateway to pod, and again back."""
    pod_hop_s: float = 0.002
    """Time from an entry pod to another predict pod and back, together."""
    eviction: str = "greedy-dual"
    """One of the policies of `runtime.tiers.eviction`."""
    heartbeat_s: float = 1.0
    interference: str = "none"
    """How pods of one GPU slow each other down: `none` or `overlap`."""
    applications: tuple[ApplicationPlan, ...] = ()
    jitter: float = 0.0
    """Standard deviation of the logarithm of inference times; 0: none."""
