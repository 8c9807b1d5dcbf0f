"""The status of a model with a transformer, which KServe writes as well. Pure.

KServe makes the pods of transformer and explainer once `components.predictor.url` is set, passes
its host to them, and writes `url`, `address`, `observedGeneration`, the conditions of both and
IngressReady; Ready follows from PredictorReady and IngressReady at each of its reconciliations. So
these are left as they are: what we write differently, it would write again, without end. The
components' readiness is part of our PredictorReady.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from registry.domain.model import ModelName, ModelSpec
from registry.inference_service.components import component_address

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
