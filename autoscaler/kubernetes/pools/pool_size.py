"""How many pods a pool may get, who else decides about it, and which pods go first. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from registry.domain.pod_state import PodState

AUTOSCALER_CLASS = "serving.kserve.io/autoscalerClass"
EXTERNAL = "external"
"""The class in which KServe makes no autoscaler and leaves the number of pods alone."""
STANDARD = "Standard"
_MIB = 1 << 20
_BUSY = 1 << 24
"""More than any pod's weights in MiB: a pod that serves goes after every idle one."""
_LEAVES = -1
_MOST = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class PoolObject:
    """A pool's InferenceService, reduced to what scaling needs."""

    namespace: str
    name: str
    deployment: str
    """The Deployment that KServe makes for it."""
    mode: str
    autoscaler_class: str
    least: int
    most: int | None
    uid: str = ""


@dataclass(frozen=True, slots=True)
class CompetingScaler:
    """Something else that sets the number of a pool's pods."""

    kind: str
    name: str
    target: str
    """Name of the Deployment it scales."""


@dataclass(frozen=True, slots=True)
class ScaleTo:
    """Set this many pods."""

    pods: int
    note: str
    """What the bounds changed about the wish; empty: nothing."""


class Owner(StrEnum):
    """Whose the number of pods is where it is not ours; also a metric label."""

    MODE = "mode"
    """Of the deployment mode's own autoscaler, such as Knative's."""
    CLASS = "class"
    """Of the autoscaler class that KServe was told."""
    RIVAL = "rival"
    """Of an autoscaler that has the Deployment as its target."""
    UNKNOWN = "unknown"
    """Of whoever changes it after us again and again."""


@dataclass(frozen=True, slots=True)
class ScaledElsewhere:
    """The number of pods is somebody else's."""

    owner: Owner
    reason: str


def read_pool(document: Mapping[str, Any]) -> PoolObject:
    """Read a pool's InferenceService."""
    metadata, predictor = document["metadata"], document["spec"]["predictor"]
    annotations = metadata.get("annotations") or {}
    status = document.get("status") or {}
    variant = predictor.get("name")
    middle = f"-{variant}" if variant else ""
    return PoolObject(
        namespace=metadata["namespace"],
        name=metadata["name"],
        deployment=f"{metadata['name']}{middle}-predictor",
        mode=status.get("deploymentMode")
        or annotations.get("serving.kserve.io/deploymentMode", ""),
        autoscaler_class=annotations.get(AUTOSCALER_CLASS, "hpa"),
        least=int(predictor.get("minReplicas", 1)),
        most=int(predictor.get("maxReplicas", 0)) or None,
        uid=metadata.get("uid", ""),
    )


def find_owner(pool: PoolObject, rivals: Sequence[CompetingScaler]) -> ScaledElsewhere | None:
    """Who else decides about the number of pods; None: nobody."""
    where = f"InferenceService {pool.namespace}/{pool.name}"
    if pool.mode != STANDARD:
        return ScaledElsewhere(
            Owner.MODE,
            f"{where} is in mode {pool.mode or 'unknown'!r}, whose own autoscaler decides; a pool "
            f"that Pilotlight scales needs serving.kserve.io/deploymentMode: {STANDARD}",
        )
    if pool.autoscaler_class != EXTERNAL:
        return ScaledElsewhere(
            Owner.CLASS,
            f"{where} has autoscaler class {pool.autoscaler_class!r}; a pool that Pilotlight "
            f"scales needs {AUTOSCALER_CLASS}: {EXTERNAL}",
        )
    others = [each for each in rivals if each.target == pool.deployment]
    if others:
        listed = ", ".join(f"{each.kind} {each.name}" for each in others)
        return ScaledElsewhere(
            Owner.RIVAL,
            f"{listed} in namespace {pool.namespace} also scales Deployment {pool.deployment}; "
            "delete it, or leave the scaling to it",
        )
    return None


def within_bounds(pool: PoolObject, wanted: int) -> ScaleTo:
    """As many of the wanted pods as the pool allows."""
    most = wanted if pool.most is None else pool.most
    pods = max(pool.least, min(wanted, most))
    note = "" if pods == wanted else (
        f"{wanted} pods were wanted; minReplicas {pool.least} and maxReplicas "
        f"{pool.most or 'unset'} allow {pods}"
    )  # fmt: skip
    return ScaleTo(pods, note)


def pods_to_drain(leaving: Sequence[str], standing: Sequence[str], *, pods: int) -> list[str]:
    """Which of the pods that were named are to finish what they have, before the number falls.

    `standing` are the pods that serve; those that do not yet go first, and have nothing to finish.
    """
    surplus = max(0, len(standing) - pods)
    return [name for name in leaving if name in standing][:surplus]


def deletion_costs(pods: Mapping[str, PodState], leaving: Sequence[str] = ()) -> dict[str, int]:
    """Per pod, what its end would cost: the cheapest go first when a ReplicaSet shrinks.

    Those that are to leave first, busy pods last, then by MiB of weights on the device, which would
    have to be loaded again.
    """
    return {
        name: _LEAVES
        if name in leaving
        else min(_MOST, _BUSY * pod.slots_used + pod.used_bytes.get("device", 0) // _MIB)
        for name, pod in pods.items()
    }
