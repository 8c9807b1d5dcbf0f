"""The status of a model's InferenceService, and when it is written. Pure.

Ready means that the model can be served, cold if need be; not that it is warm, which would change
with every eviction. Every write costs KServe a reconcile, so what is not about readiness is
gathered: at most one write in `GATHER_S`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autoscaler.kubernetes.models.inference_services import MODEL_MODE
from registry.domain.canaries import TOTAL_PERCENT
from registry.domain.model import Tier

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from autoscaler.kubernetes.models.inference_services import ServiceObject
    from registry.domain.model import LoadFailure, ModelSpec
    from registry.domain.residency_index import Residency

GATHER_S = 5.0
FIRST_S = 1.0
"""KServe writes its first, empty status in this time; ours comes after it, so none is lost."""


@dataclass(frozen=True, slots=True)
class Copies:
    """In how many pods a model is where."""

    device: int = 0
    host: int = 0
    disk: int = 0
    loading: int = 0

    def __str__(self) -> str:
        return (
            f"pods that hold it: {self.device} on the device, {self.host} in host memory, "
            f"{self.disk} on disk; loading in {self.loading}"
        )


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What is known of a model when its status is made."""

    pool_is_known: bool
    serving: ModelSpec | None
    """The generation that serves; None: the registry does not know the model yet."""
    failure: LoadFailure | None
    copies: Copies
    url: str
    address: str
    canaries: Sequence[CanaryVersion] = ()


@dataclass(frozen=True, slots=True)
class CanaryVersion:
    """A model that takes so many of a hundred of the requests."""

    serving: ModelSpec
    percent: int


def count_copies(residencies: Iterable[Residency]) -> Copies:
    """Count where a model is. A load under way counts as loading alone."""
    found = list(residencies)
    tiers = [each.tier for each in found if not each.is_warming]
    return Copies(
        device=tiers.count(Tier.DEVICE),
        host=tiers.count(Tier.HOST),
        disk=tiers.count(Tier.DISK),
        loading=sum(each.is_warming for each in found),
    )


@dataclass(frozen=True, slots=True)
class ReadyCondition:
    """Whether a model can be served, and why."""

    is_ready: bool | None
    """None: not known yet."""
    reason: str
    message: str


def evaluate(service: ServiceObject, facts: ModelFacts) -> ReadyCondition:
    """Whether a model can be served."""
    if service.problems:
        return ReadyCondition(False, "InvalidModel", "; ".join(service.problems))
    if not facts.pool_is_known:
        return ReadyCondition(
            False,
            "PoolNotFound",
            f"there is no pool {service.pool!r}: no InferenceService has the label "
            f"pilotlight.io/pool={service.pool}",
        )
    if facts.serving is None:
        return ReadyCondition(None, "Registering", "the registry does not know the model yet")
    failure = facts.failure
    if failure is not None and failure.key == facts.serving.key and not facts.copies.device:
        return ReadyCondition(
            False, failure.reason, f"attempt {failure.attempts}: {failure.message}"
        )
    return ReadyCondition(True, "Served", f"pool {service.pool!r} serves it")


def make_status(service: ServiceObject, facts: ModelFacts, now: str) -> dict[str, Any]:
    """The whole status of a model; `now` is RFC 3339, used where a condition changes."""
    verdict = evaluate(service, facts)
    ready = {None: "Unknown", True: "True", False: "False"}[verdict.is_ready]
    conditions = [
        _condition(kind, ready, verdict.reason, verdict.message)
        for kind in ("PredictorReady", "IngressReady", "Ready")
    ]
    warm = _condition(
        "Warm",
        "True" if facts.copies.device else "False",
        "OnDevice" if facts.copies.device else "NotOnDevice",
        str(facts.copies),
    )
    conditions.append({**warm, "severity": "Info"})
    status: dict[str, Any] = {
        "observedGeneration": service.generation,
        "deploymentMode": MODEL_MODE,
        "conditions": _with_times(conditions, service.status.get("conditions") or [], now),
        "modelStatus": _model_status(verdict, facts),
    }
    if not service.problems:
        status["url"] = facts.url
        status["address"] = {"url": facts.address}
        status["components"] = {"predictor": _predictor(facts)}
    return status


def _condition(kind: str, status: str, reason: str, message: str) -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": reason, "message": message}


def _with_times(
    conditions: Sequence[dict[str, Any]], before: Sequence[Mapping[str, Any]], now: str
) -> list[dict[str, Any]]:
    since = {(each.get("type"), each.get("status")): each.get("lastTransitionTime") or now
             for each in before}  # fmt: skip
    return [
        {**each, "lastTransitionTime": since.get((each["type"], each["status"]), now)}
        for each in conditions
    ]


def _predictor(facts: ModelFacts) -> dict[str, Any]:
    predictor: dict[str, Any] = {"url": facts.url, "address": {"url": facts.address}}
    if facts.serving is not None:
        predictor.update(_traffic(facts.serving, facts.canaries))
    return predictor


def _traffic(stable: ModelSpec, canaries: Sequence[CanaryVersion]) -> dict[str, Any]:
    """Who gets how much, in the words KServe has for it: the first canary is the latest revision.

    `kubectl get isvc` shows `latestRevision` under LATEST and the tag `prev` under PREV.
    """
    revision = _revision(stable)
    left = TOTAL_PERCENT - sum(each.percent for each in canaries)
    if not canaries:
        only = {"latestRevision": True, "percent": left, "revisionName": revision}
        return {"latestReadyRevision": revision, "traffic": [only]}
    traffic: list[dict[str, Any]] = [
        {"latestRevision": number == 0, "percent": each.percent,
         "revisionName": _revision(each.serving)}
        for number, each in enumerate(canaries)
    ]  # fmt: skip
    stays = {"latestRevision": False, "percent": left, "revisionName": revision, "tag": "prev"}
    return {
        "latestReadyRevision": _revision(canaries[0].serving),
        "previousRolledoutRevision": revision,
        "traffic": [*traffic, stays],
    }


def _revision(spec: ModelSpec) -> str:
    return f"{spec.name.name}-{spec.generation}"


def _model_status(verdict: ReadyCondition, facts: ModelFacts) -> dict[str, Any]:
    copies = facts.copies
    has_failed = verdict.is_ready is False and facts.failure is not None
    if copies.device:
        state = "Loaded"
    elif copies.loading:
        state = "Loading"
    elif has_failed:
        state = "FailedToLoad"
    else:
        state = "Standby" if copies.host or copies.disk else "Pending"
    result: dict[str, Any] = {
        "states": {"activeModelState": state, "targetModelState": state},
        "copies": {"failedCopies": int(has_failed), "totalCopies": copies.device},
        "transitionStatus": "UpToDate",
    }
    if verdict.reason == "InvalidModel":
        result["transitionStatus"] = "InvalidSpec"
        result["lastFailureInfo"] = {"reason": "InvalidPredictorSpec", "message": verdict.message}
    elif has_failed and facts.failure is not None:
        result["transitionStatus"] = "BlockedByFailedLoad"
        result["lastFailureInfo"] = {"reason": "ModelLoadFailed", "message": facts.failure.message}
    elif verdict.is_ready is None or copies.loading:
        result["transitionStatus"] = "InProgress"
    return result


def seconds_until_write(
    service: ServiceObject,
    status: Mapping[str, Any],
    *,
    age_s: float,
    since_last_s: float,
) -> float | None:
    """How long to wait with a status; 0: write now; None: the object has it already.

    `age_s`: of the object; `since_last_s`: since our last write for it.
    """
    before = service.status
    if before == status:
        return None
    if not service.status.get("conditions") and age_s < FIRST_S:
        return FIRST_S - age_s
    if _headline(before) != _headline(status):
        return 0.0
    return max(0.0, GATHER_S - since_last_s)


def _headline(status: Mapping[str, Any]) -> tuple[object, ...]:
    """What a user waits for."""
    conditions = status.get("conditions") or []
    ready = [(each["status"], each.get("reason"), each.get("message")) for each in conditions
             if each["type"] == "Ready"]  # fmt: skip
    return (*ready, status.get("observedGeneration"), status.get("deploymentMode"),
            status.get("url"))  # fmt: skip
