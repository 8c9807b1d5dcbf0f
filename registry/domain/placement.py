"""The plan of which models share which accelerators, as autoscalers record it, and its pods.

A placed pod serves one model on one accelerator. Written under the leader's fencing token. On one
machine the platform starts and drains the pods that the record lists; on a cluster they are places,
which pods of the pool take. Pods read their batch cap from it.
"""

from dataclasses import asdict, dataclass
from typing import Any, Final

import orjson

from registry.domain.codec import known

START_TIMEOUT_S: Final = 120.0
"""A placed pod must be warm by then: importing torch takes a minute on a busy machine."""


@dataclass(frozen=True, slots=True)
class PlacedReplica:
    """A copy of a model on an accelerator."""

    model: str
    """`namespace/name`."""
    accelerator: str
    """UUID of a GPU, or a name of a group of cores such as `cpu-0`."""
    batch_size: int
    """The most requests in one batch."""
    share_pct: float | None = None
    """Limit of its compute, in % of the accelerator; None: none."""
    rate_rps: float = 0.0
    """Its part of the model's rate."""


@dataclass(frozen=True, slots=True)
class PlacedPod:
    """A pod that runs one replica, or on a cluster the place of one."""

    name: str
    replica: PlacedReplica
    since_s: float
    """Registry time at which it was wanted."""


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """What the plan expects for one model."""

    model: str
    rate_rps: float
    slo_s: float
    goodput_rps: float
    reason: str = ""
    """Why the goodput is below the rate, or why the model is not placed; empty: neither."""
    latency_scale: float = 1.0
    """By how much its batches took longer than profiled and predicted, which plans reckon with."""


@dataclass(frozen=True, slots=True)
class PlacementRecord:
    """The plan that is carried out, and the pods that are wanted now."""

    planner: str
    reason: str
    """Why it was planned."""
    planned_at_s: float
    accelerators: tuple[str, ...] = ()
    """Those that it was planned for."""
    models: tuple[PlannedModel, ...] = ()
    target: tuple[PlacedReplica, ...] = ()
    """The replicas of the plan."""
    pods: tuple[PlacedPod, ...] = ()
    """On the way to the target: pods come and leave by one move per accelerator at a time."""
    next_number: int = 0
    """Of the next pod: names are never used again."""

    @property
    def latency_scales(self) -> dict[str, float]:
        """By model, where it is not 1."""
        return {each.model: each.latency_scale for each in self.models if each.latency_scale != 1}

    def pod(self, name: str) -> PlacedPod | None:
        return next((each for each in self.pods if each.name == name), None)


def encode_placement(record: PlacementRecord) -> str:
    return orjson.dumps(asdict(record)).decode()


def decode_placement(text: str) -> PlacementRecord:
    """Fields that a newer version wrote are ignored. Raises ValueError, TypeError, LookupError."""
    stored: dict[str, Any] = orjson.loads(text)
    return PlacementRecord(
        **known(PlacementRecord, stored)
        | {
            "accelerators": tuple(stored.get("accelerators", ())),
            "models": tuple(PlannedModel(**known(PlannedModel, each)) for each in stored["models"]),
            "target": tuple(_replica(each) for each in stored["target"]),
            "pods": tuple(_pod(each) for each in stored["pods"]),
        }
    )


def decode_place(text: str) -> PlacedPod:
    """One entry of a record's pods. Raises as `decode_placement`."""
    return _pod(orjson.loads(text))


def _pod(stored: dict[str, Any]) -> PlacedPod:
    return PlacedPod(stored["name"], _replica(stored["replica"]), stored["since_s"])


def _replica(stored: dict[str, Any]) -> PlacedReplica:
    return PlacedReplica(**known(PlacedReplica, stored))
