"""The status of a model's InferenceService, and when to write it. Pure.

Ready means that the model can be served, perhaps after a cold start. It does not mean warm, which
would change with every eviction. Every write makes KServe reconcile, so changes that do not affect
readiness are batched: at most one write in `WRITE_INTERVAL_S`.

A model with a transformer has no `components.predictor.url`: KServe would make pods of the
transformer and explainer (in Knative alone), and write conditions of its own, once it is set.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from controller.resources import WARM, Kind, ServiceObject
from registry.domain.canaries import TOTAL_PERCENT
from registry.domain.model import STOPPED, LoadFailure, ModelSpec, Tier
from registry.domain.pod_index import Residency
from registry.inference_service.components import TRANSFORMER, component_address
from registry.inference_service.model_resource import MODEL_MODE
from registry.inference_service.predictors import needs_in_pool


def component_condition(component: str, deployment: Mapping[str, Any]) -> "ReadyCondition":
    """By the Deployment's own conditions."""
    found = {each["type"]: each for each in deployment.get("status", {}).get("conditions", ())}
    available = found.get("Available", {})
    if available.get("status") == "True":
        return ReadyCondition(True, "Available", "")
    failing = next((each for each in found.values() if each["status"] == "False"), available)
    detail = failing.get("message") or "its pods are starting"
    reason, text = f"{component.capitalize()}NotReady", f"the {component} is not ready: {detail}"
    return ReadyCondition(False if available else None, reason, text)


WRITE_INTERVAL_S = 5.0
FIRST_WRITE_DELAY_S = 1.0
"""KServe writes its first, empty status within this time and would overwrite an earlier one."""


@dataclass(frozen=True, slots=True)
class Copies:
    """Number of pods that hold a model, by its nearest tier there."""

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
    """The state of a model that its status shows."""

    pool_is_known: bool
    serving: ModelSpec | None
    """The generation that serves; None: not in the registry yet."""
    failure: LoadFailure | None
    copies: Copies
    url: str
    address: str
    canaries: Sequence[tuple[ModelSpec, int]] = ()
    """Each in the generation that serves, and its percentage of the requests."""
    has_server: bool = False
    """Whether a pod of the pool has a model server, which reads formats without an engine here."""
    components: "Mapping[str, ReadyCondition]" = field(default_factory=dict)
    """The readiness of transformer and explainer."""
    kserve_problem: str = ""
    """What is wrong with KServe's version, which decides what it does beside us."""
    is_open: bool = False
    """Whether gateways ask nobody for a credential."""


def count_copies(residencies: Iterable[Residency]) -> Copies:
    """A pod with a running load counts under `loading` only."""
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
    is_ready: bool | None
    """None: unknown yet."""
    reason: str
    message: str


def evaluate(service: ServiceObject, facts: ModelFacts) -> ReadyCondition:
    if service.problems:
        return ReadyCondition(False, "InvalidModel", "; ".join(service.problems))
    if service.spec is not None and service.spec.is_stopped:
        return ReadyCondition(False, "Stopped", STOPPED)
    if not facts.pool_is_known:
        return ReadyCondition(
            False,
            "PoolNotFound",
            f"there is no pool {service.pool!r}: no InferenceService or Deployment has the label "
            f"pilotlight.io/pool={service.pool}",
        )
    if facts.serving is None:
        return ReadyCondition(None, "Registering", "the model is not in the registry yet")
    failure = facts.failure
    if failure is not None and failure.key == facts.serving.key and not facts.copies.device:
        attempt = f"attempt {failure.attempts}: " if failure.attempts else ""
        return ReadyCondition(False, failure.reason, f"{attempt}{failure.message}")
    if needs := needs_in_pool(facts.serving, has_server=facts.has_server):
        return ReadyCondition(False, "NoSupportingRuntime", needs)
    for condition in facts.components.values():
        if not condition.is_ready:
            return condition
    message = f"pool {service.pool!r} serves the model"
    if facts.kserve_problem:
        message += f"; {facts.kserve_problem}"
    if service.spec is not None and service.spec.warnings:
        message += f"; {'; '.join(service.spec.warnings)}"
    if facts.is_open:
        message += "; everyone who reaches the gateway may call it (PILOTLIGHT_AUTH=open)"
    return ReadyCondition(True, "Served", message)


def make_status(service: ServiceObject, facts: ModelFacts, now: str) -> dict[str, Any]:
    """The whole status of a model; `now` (RFC 3339) becomes the time of changed conditions."""
    condition = evaluate(service, facts)
    of_components = {f"{name.capitalize()}Ready": of for name, of in facts.components.items()}
    kinds = dict.fromkeys(("PredictorReady", "IngressReady", "Ready"), condition) | of_components
    conditions = [
        _condition(kind, _STATUS[each.is_ready], each.reason, each.message)
        for kind, each in kinds.items()
    ]
    warm = _condition(
        WARM,
        "True" if facts.copies.device else "False",
        "OnDevice" if facts.copies.device else "NotOnDevice",
        str(facts.copies),
    )
    conditions.append({**warm, "severity": "Info"})
    if condition.reason == "Stopped":
        conditions.append(_condition("Stopped", "True", "Stopped", ""))
    status: dict[str, Any] = {
        "observedGeneration": service.generation,
        **({"deploymentMode": MODEL_MODE} if service.kind is Kind.SERVICE else {}),
        "conditions": _with_transition_times(
            conditions, service.status.get("conditions") or [], now
        ),
        "modelStatus": _model_status(condition, facts),
    }
    if not service.problems and condition.reason != "Stopped":
        status["url"] = facts.url
        status["address"] = {"url": facts.address}
        status["components"] = {"predictor": _predictor(facts)} | {
            name: {"url": f"http://{component_address(service.name, name)}"}
            for name in facts.components
        }
        if TRANSFORMER in facts.components:
            del status["components"]["predictor"]["url"]
    elif "components" in service.status:  # of the last good declaration, which serves on
        status["components"] = service.status["components"]
    return status


def withdrawn_status(service: ServiceObject, message: str, now: str) -> dict[str, Any]:
    """Of an object that no pool serves any more."""
    kinds = ("PredictorReady", "IngressReady", "Ready")
    conditions = [_condition(kind, "False", "Withdrawn", message) for kind in kinds]
    before = service.status.get("conditions") or []
    return {
        "observedGeneration": service.generation,
        **({"deploymentMode": MODEL_MODE} if service.kind is Kind.SERVICE else {}),
        "conditions": _with_transition_times(conditions, before, now),
    }


_STATUS: Final = {None: "Unknown", True: "True", False: "False"}


def _condition(kind: str, status: str, reason: str, message: str) -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": reason, "message": message}


def _with_transition_times(
    conditions: Sequence[dict[str, Any]], before: Sequence[Mapping[str, Any]], now: str
) -> list[dict[str, Any]]:
    since = {
        (each.get("type"), each.get("status")): each.get("lastTransitionTime") or now
        for each in before
    }
    return [
        {**each, "lastTransitionTime": since.get((each["type"], each["status"]), now)}
        for each in conditions
    ]


def _predictor(facts: ModelFacts) -> dict[str, Any]:
    predictor: dict[str, Any] = {"url": facts.url, "address": {"url": facts.address}}
    if facts.serving is not None:
        predictor.update(_traffic(facts.serving, facts.canaries))
    return predictor


def _traffic(stable: ModelSpec, canaries: Sequence[tuple[ModelSpec, int]]) -> dict[str, Any]:
    """Shares of the traffic in KServe's format: the first canary is the latest revision.

    `kubectl get isvc` shows `latestRevision` under LATEST and the tag `prev` under PREV.
    """
    remaining = TOTAL_PERCENT - sum(percent for _, percent in canaries)
    if not canaries:
        only = _target(stable, remaining, is_latest=True)
        return {"latestReadyRevision": _revision(stable), "traffic": [only]}
    traffic = [
        _target(serving, percent, is_latest=number == 0)
        for number, (serving, percent) in enumerate(canaries)
    ]
    return {
        "latestReadyRevision": _revision(canaries[0][0]),
        "previousRolledoutRevision": _revision(stable),
        "traffic": [*traffic, {**_target(stable, remaining, is_latest=False), "tag": "prev"}],
    }


def _target(spec: ModelSpec, percent: int, *, is_latest: bool) -> dict[str, Any]:
    return {"latestRevision": is_latest, "percent": percent, "revisionName": _revision(spec)}


def _revision(spec: ModelSpec) -> str:
    return f"{spec.name.name}-{spec.generation}"


def _model_status(condition: ReadyCondition, facts: ModelFacts) -> dict[str, Any]:
    copies = facts.copies
    has_failed = condition.is_ready is False and facts.failure is not None
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
    if condition.reason == "InvalidModel":
        result["transitionStatus"] = "InvalidSpec"
        result["lastFailureInfo"] = {"reason": "InvalidPredictorSpec", "message": condition.message}
    elif has_failed and facts.failure is not None:
        result["transitionStatus"] = "BlockedByFailedLoad"
        result["lastFailureInfo"] = {"reason": "ModelLoadFailed", "message": facts.failure.message}
    elif condition.is_ready is None or copies.loading:
        result["transitionStatus"] = "InProgress"
    return result


def seconds_until_write(
    service: ServiceObject, status: Mapping[str, Any], *, age_s: float, since_last_s: float
) -> float | None:
    """Seconds until the status is written; 0: now; None: never, the object has this status.

    `age_s`: age of the object; `since_last_s`: time since the last write for it.
    """
    before = service.status
    if before == status:
        return None
    if not service.status.get("conditions") and age_s < FIRST_WRITE_DELAY_S:
        return FIRST_WRITE_DELAY_S - age_s
    if _readiness(before) != _readiness(status):
        return 0.0
    return max(0.0, WRITE_INTERVAL_S - since_last_s)


def _readiness(status: Mapping[str, Any]) -> tuple[object, ...]:
    """The parts of a status that are written at once."""
    conditions = status.get("conditions") or []
    ready = [
        (each["status"], each.get("reason"), each.get("message"))
        for each in conditions
        if each["type"] in ("PredictorReady", "Ready")
    ]
    return (*ready, *map(status.get, ("observedGeneration", "deploymentMode", "url")))
