"""What a simulated cluster is made of: values only. Reading them from YAML is `cluster_file`.

Times in seconds, sizes in bytes, rates in bytes per second (infinity: no limit).
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from registry.domain.model import ModelSpec, Tier
    from registry.domain.profile import ProfilePoint


@dataclass(frozen=True, slots=True)
class PodPlan:
    """One pod: a process with one device."""

    name: str
    slots: int = 1
    memory_bytes: int = 16 * 10**9
    speed: float = 1.0
    """How many times as fast as the profiles say."""
    device_bytes_per_s: float = 12e9
    """From host memory to the device, shared by its loads."""
    start_s: float = 0.0
    """When it comes; infinity: not until somebody starts it."""
    kill_s: float | None = None
    """When its process dies; None: never."""
    drain_s: float | None = None
    """When it takes no more requests, and leaves once it has answered those it has."""


@dataclass(frozen=True, slots=True)
class NodePlan:
    """One machine: what its pods share."""

    name: str
    pods: tuple[PodPlan, ...]
    object_storage_bytes_per_s: float = 1e9
    disk_bytes_per_s: float = 2e9
    disk_bytes: float = inf
    host_memory_bytes: int = 0
    """Budget of tier `host`; 0: none."""


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """One model as declared, and what its stages cost at a pod of speed 1."""

    spec: ModelSpec
    size_bytes: int = 250 * 10**6
    memory_bytes: int = 250 * 10**6
    """On the device."""
    infer: tuple[ProfilePoint, ...] = ()
    """Time of one inference by rows, ascending."""
    infer_per_token: tuple[ProfilePoint, ...] = ()
    """Further time per token to generate, by rows, ascending; a single one holds for all."""
    preprocess_s: float = 0.001
    postprocess_s: float = 0.001
    assets_s: float = 0.1
    """Time an entry pod takes to get the tokenizer, the first time; 0: there is none."""
    load_fixed_s: float = 0.05
    """What a load costs beside moving bytes."""
    load_s: Mapping[Tier, float] = field(default_factory=dict)
    """Whole time of a load by the tier it starts from, in place of sizes and rates."""
    network_s: float = 0.0
    """Beside the cluster's hop, on the way to another predict pod; as `network` of the header
    `x-pilotlight-simulate`."""
    at: Mapping[str, Tier] = field(default_factory=dict)
    """Where it is at the start, by pod."""
    is_batched: bool = True
    is_continuous: bool = False
    """Requests join and leave between tokens; else a batch stays together to its longest answer."""
    counts_tokens: bool = False
    """Whether a trace's input size is the tokens of one item, not a number of items."""

    def infer_s(self, rows: int) -> float:
        """Time of a batch of so many rows: between two that were measured, in proportion."""
        return _time_s(self.infer, rows)

    def token_s(self, rows: int) -> float:
        """Time of one token for each of so many rows."""
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
    """A whole cluster, its models and its network."""

    nodes: tuple[NodePlan, ...]
    models: tuple[ModelPlan, ...]
    gateway_hop_s: float = 0.0002
    """From gateway to pod, and the same back."""
    pod_hop_s: float = 0.002
    """From an entry pod to another predict pod and back, together."""
    eviction: str = "greedy-dual"
    """A rule of `runtime.tiers.eviction`."""
    heartbeat_s: float = 1.0
    jitter: float = 0.0
    """Standard deviation of the logarithm of inference times; 0: none."""
