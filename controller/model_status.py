"""The status of a model's InferenceService, and when to write it. Pure.

Ready means that the model can be served, perhaps after a cold start. It does not mean warm, which
would change with every eviction. Every write makes KServe reconcile, so changes that do not affect
readiness are batched: at most one write in `WRITE_INTERVAL_S`.

KServe writes the status of a model with a transformer as well. It makes the pods of transformer and
explainer once `components.predictor.url` is set, passes its host to them, and writes `url`,
`address`, `observedGeneration`, the conditions of both and IngressReady; Ready follows from
PredictorReady and IngressReady at each of its reconciliations. So these are left as they are: what
we write differently, it would write again, without end. The components' readiness is part of our
PredictorReady.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from controller.resources import MODEL_MODE, Kind, ServiceObject
from registry.domain.canaries import TOTAL_PERCENT
from registry.domain.model import STOPPED, LoadFailure, ModelName, ModelSpec, Tier
from registry.domain.pod_index import Residency
from registry.inference_service.components import component_address
from registry.inference_service.predictors import needs_in_pool

PREDICTOR: Final = "predictor"
_READY_OF: Final = {"transformer": "TransformerReady", "explainer": "ExplainerReady"}
_OURS: Final = ("PredictorReady", "Warm")
_KSERVES: Final = ("IngressReady", "Ready")
"""Written by us only where they are missing: KServe expects Ready in every list."""


def has_components(spec: ModelSpec | None) -> bool:
    return spec is not None and bool(spec.transformer)


def predictor_url(name: ModelName, address: str) -> str:
    """What KServe passes to transformers as `--predictor_host`: a name of the gateway.

    KServe passes no path, so the Host names the model. `address`: a URL of the gateway.
    """
    host = component_address(name, PREDICTOR).partition(":")[0]
    port = urlsplit(address).port
    return f"http://{host}" if port is None else f"http://{host}:{port}"


def unready_component(
    spec: ModelSpec, status: Mapping[str, Any]
) -> tuple[bool | None, str, str] | None:
    """Readiness (None: unknown), reason and message of a component that is not ready; None: none.

    By the conditions that KServe wrote.
    """
    conditions = {each.get("type"): each for each in status.get("conditions") or ()}
    for component, kind in _READY_OF.items():
        if not getattr(spec, component):
            continue
        found = conditions.get(kind) or {}
        if found.get("status") == "True":
            continue
        detail = found.get("message") or found.get("reason") or "KServe has not reported it yet"
        is_false = found.get("status") == "False"
        reason = f"{component.capitalize()}NotReady"
        return False if is_false else None, reason, f"the {component} is not ready: {detail}"
    return None


def shared_status(before: Mapping[str, Any], own: Mapping[str, Any], url: str) -> dict[str, Any]:
    """`own` as a status that has no other writer, put into the one that KServe writes as well."""
    predictor = {**own.get("components", {}).get(PREDICTOR, {}), "url": url}
    merged = dict(before)
    merged.update(
        deploymentMode=own["deploymentMode"],
        modelStatus=_as_kserve_writes(own["modelStatus"]),
        conditions=_merged(before.get("conditions") or (), own["conditions"]),
        components={**(before.get("components") or {}), PREDICTOR: predictor},
    )
    return merged


def _as_kserve_writes(model_status: Mapping[str, Any]) -> dict[str, Any]:
    """Without a number of copies that is 0, which KServe leaves out when it writes the status."""
    copies = {
        key: value for key, value in model_status["copies"].items() if value or key != "totalCopies"
    }
    return {**model_status, "copies": copies}


def _merged(
    before: Sequence[Mapping[str, Any]], own: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    ours = {each["type"]: each for each in own}
    present = {each.get("type") for each in before}
    merged = [dict(ours[each["type"]] if each.get("type") in _OURS else each) for each in before]
    merged += [dict(ours[kind]) for kind in _OURS if kind not in present]
    for kind in _KSERVES:
        if kind not in present:
            since = ours[kind]["lastTransitionTime"]
            merged.append({"type": kind, "status": "Unknown", "lastTransitionTime": since})
    return merged


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
    canaries: "Sequence[CanaryVersion]" = ()
    has_server: bool = False
    """Whether a pod of the pool has a model server, which reads formats without an engine here."""
    component_problem: str = ""
    """Why the Service is missing at which transformer and explainer call the model."""
    kserve_problem: str = ""
    """What is wrong with KServe's version, which decides what it does beside us."""
    is_open: bool = False
    """Whether gateways ask no client for a credential."""


@dataclass(frozen=True, slots=True)
class CanaryVersion:
    """A canary of a model and its percentage of the requests."""

    serving: ModelSpec
    percent: int


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
    if facts.component_problem:
        return ReadyCondition(False, "PredictorServiceFailed", facts.component_problem)
    if service.spec is not None and (unready := unready_component(service.spec, service.status)):
        return ReadyCondition(*unready)
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
    ready = {None: "Unknown", True: "True", False: "False"}[condition.is_ready]
    conditions = [
        _condition(kind, ready, condition.reason, condition.message)
        for kind in ("PredictorReady", "IngressReady", "Ready")
    ]
    warm = _condition(
        "Warm",
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
        status["components"] = {"predictor": _predictor(facts)}
    if has_components(service.spec):
        return shared_status(service.status, status, predictor_url(service.name, facts.address))
    return status


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


def _traffic(stable: ModelSpec, canaries: Sequence[CanaryVersion]) -> dict[str, Any]:
    """Shares of the traffic in KServe's format: the first canary is the latest revision.

    `kubectl get isvc` shows `latestRevision` under LATEST and the tag `prev` under PREV.
    """
    revision = _revision(stable)
    remaining = TOTAL_PERCENT - sum(each.percent for each in canaries)
    if not canaries:
        only = {"latestRevision": True, "percent": remaining, "revisionName": revision}
        return {"latestReadyRevision": revision, "traffic": [only]}
    traffic: list[dict[str, Any]] = [
        {
            "latestRevision": number == 0,
            "percent": each.percent,
            "revisionName": _revision(each.serving),
        }
        for number, each in enumerate(canaries)
    ]
    previous = {
        "latestRevision": False,
        "percent": remaining,
        "revisionName": revision,
        "tag": "prev",
    }
    return {
        "latestReadyRevision": _revision(canaries[0].serving),
        "previousRolledoutRevision": revision,
        "traffic": [*traffic, previous],
    }


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
    return (
        *ready,
        status.get("observedGeneration"),
        status.get("deploymentMode"),
        status.get("url"),
    )
