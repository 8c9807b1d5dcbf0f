"""Status of an InferenceApplication: ready if a variant can be chosen, why others cannot. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from registry.domain.application_variants import named_variants

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autoscaler.kubernetes.cluster.application_objects import ApplicationObject
    from registry.domain.cluster import ClusterState


def application_status(
    application: ApplicationObject, state: ClusterState | None, problems: Sequence[str], now: str
) -> dict[str, Any]:
    """`state` None: the pool is unknown; `problems`: why the application is not served.

    The times of unchanged conditions stay. `now`: RFC 3339.
    """
    if problems:
        return _status(application, [], _ready("False", "Invalid", "; ".join(problems)), now)
    if state is None or application.spec is None:
        text = f"there is no pool {application.pool!r}"
        return _status(application, [], _ready("False", "NoPool", text), now)
    found = named_variants(application.spec, state)
    variants = [
        {"name": spec.name.name, "usable": problem is None, "message": problem or ""}
        for spec, problem in found
    ]
    usable = [each["name"] for each in variants if each["usable"]]
    left_out = [f"{each['name']}: {each['message']}" for each in variants if not each["usable"]]
    if usable:
        text = "; ".join([f"variants: {', '.join(map(str, usable))}", *left_out])
        condition = _ready("True", "VariantsUsable", text)
    elif left_out:
        condition = _ready("False", "NoUsableVariant", "; ".join(left_out))
    else:
        condition = _ready(
            "False", "NoVariants",
            "no InferenceService of the namespace has the annotation "
            f"pilotlight.io/application: {application.name.name}",
        )  # fmt: skip
    return _status(application, variants, condition, now)


def _ready(status: str, reason: str, message: str) -> dict[str, str]:
    return {"type": "Ready", "status": status, "reason": reason, "message": message}


def _status(
    application: ApplicationObject, variants: Sequence[Mapping[str, Any]],
    condition: dict[str, str], now: str,
) -> dict[str, Any]:  # fmt: skip
    conditions: Sequence[Mapping[str, str]] = application.status.get("conditions") or ()
    before = next((each for each in conditions if each["type"] == "Ready"), condition)
    is_same = before["status"] == condition["status"]
    changed = before.get("lastTransitionTime", now) if is_same else now
    return {
        "observedGeneration": application.generation,
        "conditions": [{**condition, "lastTransitionTime": changed}],
        "variants": list(variants),
    }
