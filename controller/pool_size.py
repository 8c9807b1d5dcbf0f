"""Bounds of a pool's size, its other scalers, and the pods that leave it. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import groupby
from typing import Any, Final

from controller.resources import BOUNDS, PodObject, mode_of
from registry.domain.model import ModelName
from registry.domain.pod import PodPhase
from registry.domain.pod_state import PodState

AUTOSCALER_CLASS = "serving.kserve.io/autoscalerClass"
EXTERNAL = "external"
"""Autoscaler class in which KServe creates no autoscaler and keeps the number of replicas."""
STANDARD = "Standard"
_STANDARD_NAMES = (STANDARD, "RawDeployment")
"""KServe 0.15 and older has the second name only."""
_MIB = 1 << 20
_BUSY_COST = 1 << 24
"""More than any pod's weights in MiB: busy pods are deleted after all idle ones."""
_LEAVING_COST = -1
_MAX_COST = (1 << 31) - 1
"""Kubernetes' limit: a 32-bit integer."""


@dataclass(frozen=True, slots=True)
class PoolObject:
    """A pool's InferenceService or Deployment: the fields that scaling uses."""

    namespace: str
    name: str
    deployment: str
    """Name of the Deployment that is scaled."""
    mode: str
    autoscaler_class: str
    min_pods: int
    max_pods: int | None
    uid: str = ""
    reference: tuple[str, str] = ("serving.kserve.io/v1beta1", "InferenceService")
    """API version and kind."""


@dataclass(frozen=True, slots=True)
class CompetingScaler:
    """Another autoscaler in the pool's namespace."""

    kind: str
    name: str
    target: str
    """Name of the scaled Deployment."""
    min_pods: int = 0
    max_pods: int | None = None
    is_made: bool = False
    """True for the autoscaler that KEDA or Knative makes, beside the scaler that asked for it."""
    asks_pilotlight: bool = False
    """Whether it reads figures of Pilotlight's."""


@dataclass(frozen=True, slots=True)
class ScaleTo:
    """The number of pods to set."""

    pods: int
    note: str
    """How the bounds changed the wanted number; empty: unchanged."""


class Owner(StrEnum):
    """What scales a pool in place of Pilotlight's autoscaler; also a metric label."""

    MODE = "mode"
    """The autoscaler of the deployment mode, such as Knative's."""
    CLASS = "class"
    """The autoscaler that KServe creates for the InferenceService's autoscaler class."""
    COMPETING_SCALER = "rival"
    """An autoscaler that targets the Deployment."""


@dataclass(frozen=True, slots=True)
class ScaledElsewhere:
    """Something other than Pilotlight's autoscaler scales the pool."""

    owner: Owner
    reason: str


def read_pool(document: Mapping[str, Any]) -> PoolObject:
    metadata, predictor = document["metadata"], document["spec"]["predictor"]
    annotations = metadata.get("annotations") or {}
    variant = predictor.get("name")
    middle = f"-{variant}" if variant else ""
    return PoolObject(
        namespace=metadata["namespace"],
        name=metadata["name"],
        deployment=f"{metadata['name']}{middle}-predictor",
        mode=mode_of(document),
        autoscaler_class=annotations.get(AUTOSCALER_CLASS, "hpa"),
        min_pods=int(predictor.get("minReplicas", 1)),
        max_pods=int(predictor.get("maxReplicas", 0)) or None,
        uid=metadata.get("uid", ""),
    )


def read_deployment_pool(document: Mapping[str, Any]) -> PoolObject:
    """A pool without KServe, with its bounds in annotations. Raises ValueError."""
    annotations = document["metadata"].get("annotations") or {}
    bounds = {field: int(annotations[key]) for field, key in BOUNDS.items() if key in annotations}
    pool = read_pool({**document, "spec": {"predictor": bounds}})
    return replace(
        pool,
        deployment=pool.name,
        mode=STANDARD,
        autoscaler_class=EXTERNAL,
        reference=("apps/v1", "Deployment"),
    )


def read_scalers(
    autoscalers: Iterable[Mapping[str, Any]], scaled_objects: Iterable[Mapping[str, Any]]
) -> list[CompetingScaler]:
    """Those of Deployments, of the two kinds; ScaledObjects first."""
    found = [_read_scaler(each, "ScaledObject", "ReplicaCount", 0, 100) for each in scaled_objects]
    found += [
        _read_scaler(each, "HorizontalPodAutoscaler", "Replicas", 1, None) for each in autoscalers
    ]
    return [each for each in found if each is not None]


def _read_scaler(
    document: Mapping[str, Any], kind: str, suffix: str, least: int, most: int | None
) -> CompetingScaler | None:
    """`least` and `most`: the kind's defaults. None: it scales no Deployment."""
    metadata, spec = document["metadata"], document["spec"]
    if spec["scaleTargetRef"].get("kind", "Deployment") != "Deployment":
        return None
    owners = [each["kind"] for each in metadata.get("ownerReferences") or ()]
    return CompetingScaler(
        kind,
        metadata["name"],
        spec["scaleTargetRef"]["name"],
        int(spec.get(f"min{suffix}", least)),
        spec.get(f"max{suffix}", most),
        "ScaledObject" in owners or "PodAutoscaler" in owners,
        any(map(_is_ours, (*spec.get("triggers", ()), *(spec.get("metrics") or ())))),
    )


def _is_ours(source: Mapping[str, Any]) -> bool:
    """Of a ScaledObject's trigger or an autoscaler's metric: its figures are Pilotlight's."""
    if "external" in source:
        return str(source["external"]["metric"]["name"]).startswith("pilotlight-")
    metadata = source.get("metadata") or {}
    is_external = source.get("type") in ("external", "external-push")
    return is_external and "pilotlight" in metadata.get("scalerAddress", "")


def bounds_of(pool: PoolObject, scalers: Sequence[CompetingScaler]) -> PoolObject:
    """The pool with the bounds of the scaler that owns it, if there is one."""
    owner = next((each for each in scalers if each.target == pool.deployment), None)
    return replace(pool, min_pods=owner.min_pods, max_pods=owner.max_pods) if owner else pool


def rivals(pool: PoolObject, scalers: Iterable[CompetingScaler]) -> list[CompetingScaler]:
    """Other scalers of the pool's Deployments."""
    is_knative = pool.mode not in _STANDARD_NAMES  # which names a Deployment after each Revision

    def is_its(name: str) -> bool:
        return name == pool.deployment or (is_knative and name.startswith(f"{pool.deployment}-"))

    return [each for each in scalers if not each.is_made and is_its(each.target)]


def find_owner(pool: PoolObject, scalers: Sequence[CompetingScaler]) -> ScaledElsewhere | None:
    """What else scales the pool; None: nothing."""
    where = f"{pool.reference[1]} {pool.namespace}/{pool.name}"
    if pool.mode not in _STANDARD_NAMES:
        return ScaledElsewhere(
            Owner.MODE,
            f"{where} is in mode {pool.mode or 'unknown'!r}, which has its own autoscaler; a pool "
            f"that Pilotlight scales needs serving.kserve.io/deploymentMode: {STANDARD}",
        )
    if pool.autoscaler_class != EXTERNAL:
        return ScaledElsewhere(
            Owner.CLASS,
            f"{where} has autoscaler class {pool.autoscaler_class!r}; a pool that Pilotlight "
            f"scales needs {AUTOSCALER_CLASS}: {EXTERNAL}",
        )
    others = rivals(pool, scalers)
    if others:
        listed = ", ".join(f"{each.kind} {each.name}" for each in others)
        return ScaledElsewhere(
            Owner.COMPETING_SCALER,
            f"{listed} in namespace {pool.namespace} scales Deployment {pool.deployment}; "
            "Pilotlight's autoscaler only advises it: docs/scaling.md",
        )
    return None


def within_bounds(pool: PoolObject, wanted: int) -> ScaleTo:
    """The wanted number within the pool's bounds."""
    max_pods = wanted if pool.max_pods is None else pool.max_pods
    pods = max(pool.min_pods, min(wanted, max_pods))
    note = (
        ""
        if pods == wanted
        else (
            f"{wanted} pods were wanted; minReplicas {pool.min_pods} and maxReplicas "
            f"{pool.max_pods or 'unset'} allow {pods}"
        )
    )
    return ScaleTo(pods, note)


def pods_to_drain(leaving: Sequence[str], serving: Sequence[str], *, pods: int) -> list[str]:
    """Which of the pods in `leaving` must drain before a pool shrinks to `pods`.

    Pods that do not serve yet are deleted first and have nothing to drain.
    """
    surplus = max(0, len(serving) - pods)
    return [name for name in leaving if name in serving][:surplus]


def deletion_costs(pods: Mapping[str, PodState], leaving: Sequence[str] = ()) -> dict[str, int]:
    """The `pod-deletion-cost` by pod: a ReplicaSet that shrinks deletes the lowest first.

    Leaving pods first, busy pods last; otherwise by the MiB of weights on the device, which would
    have to be loaded again.
    """
    return {
        name: _LEAVING_COST
        if name in leaving
        else min(_MAX_COST, _BUSY_COST * pod.slots_used + pod.used_bytes.get("device", 0) // _MIB)
        for name, pod in pods.items()
    }


UNTRACKED_DRAIN_S: Final = 60.0
"""After this time a drain that was not started here counts as left over from an earlier leader: a
process that is shutting down drains for less."""


@dataclass(frozen=True, slots=True)
class _StartedDrain:
    epoch: int
    at_s: float


class DrainTracker:
    """The drains of one pool that were started here. Used by one task only."""

    def __init__(self) -> None:
        self._started: dict[str, _StartedDrain] = {}
        self._draining_since_s: dict[str, float] = {}
        """When each draining pod was first observed draining."""

    def observe(self, pods: Mapping[str, PodState], now_s: float) -> None:
        """Update the pods' phases; drops drains of pods that are gone or registered again."""
        self._draining_since_s = {
            name: self._draining_since_s.get(name, now_s)
            for name, pod in pods.items()
            if pod.phase is PodPhase.DRAINING
        }
        self._started = {
            name: drain
            for name, drain in self._started.items()
            if name in pods and pods[name].epoch == drain.epoch
        }

    def start(self, pod: PodState, now_s: float) -> None:
        self._started[pod.name] = _StartedDrain(pod.epoch, now_s)

    def cancel(self, name: str) -> None:
        self._started.pop(name, None)

    def started_s(self, name: str) -> float | None:
        """When its drain was started here; None: it was not."""
        drain = self._started.get(name)
        return None if drain is None else drain.at_s

    def is_shutting_down(self, name: str) -> bool:
        """True if the pod drains and the drain was not started here."""
        return name in self._draining_since_s and name not in self._started

    def cancellable(self, now_s: float) -> list[str]:
        """Draining pods that may be set ready again if they are needed."""
        return [
            name
            for name, since_s in self._draining_since_s.items()
            if name in self._started or now_s - since_s > UNTRACKED_DRAIN_S
        ]


def replaced_pods(
    pods: Iterable[PodObject], status_of: Mapping[ModelName, Mapping[str, Any]]
) -> set[PodObject]:
    """Pods older than every Revision to which Knative routes traffic of their service.

    `status_of`: status of each pool's InferenceService. Pods of newer Revisions are kept: Knative
    routes to them once they are ready. So are those of an older Revision after a rollback.
    """
    in_knative_mode = sorted((pod for pod in pods if pod.revision), key=_service)
    found: set[PodObject] = set()
    for service, group in groupby(in_knative_mode, _service):
        members = list(group)
        routed = _routed(status_of.get(service, {}))
        oldest = min((pod.generation for pod in members if pod.revision in routed), default=0)
        found |= {pod for pod in members if pod.generation < oldest}
    return found


def _service(pod: PodObject) -> ModelName:
    return ModelName(pod.namespace, pod.service)


def _routed(status: Mapping[str, Any]) -> set[str]:
    predictor = (status.get("components") or {}).get("predictor") or {}
    return {
        target.get("revisionName", "")
        for target in predictor.get("traffic") or ()
        if target.get("percent")
    }
