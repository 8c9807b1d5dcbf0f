"""The cluster's state as documents: one per object, which `pilotlight` and the web console show.

Plain values, as JSON has them. What takes a look at more than the object is an argument. The
endpoints beside inference are in this package's files.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from registry.domain.application import ApplicationSpec
from registry.domain.canaries import Canaries, Traffic
from registry.domain.cluster import ClusterState
from registry.domain.model import ModelName, ModelRecord, Tier
from registry.domain.pod_index import Residency
from registry.domain.pod_state import PodState
from registry.domain.records import ActionRecord, action_document
from registry.inference_service.predictors import needs_in_pool

Document = dict[str, Any]


def model_document(
    state: ClusterState,
    record: ModelRecord,
    canaries: Canaries,
    *,
    action: ActionRecord | None = None,
    can_start_pods: bool = False,
) -> Document:
    """A model that is ready can be served; it need not be warm. `action`: the latest on it."""
    spec, failure = record.spec, record.failure
    holders = dict(sorted(state.holders(spec.key).items()))
    needs = needs_in_pool(spec, has_server=state.has_server)
    has_pods = can_start_pods or any(pod.is_accepting for pod in state.pods.values())
    return {
        "namespace": spec.name.namespace,
        "name": spec.name.name,
        "ready": failure is None and not needs and has_pods,
        "needs": needs,
        "policy": str(spec.policy.routing),
        "storage_uri": spec.storage_uri,
        "task": None if spec.task is None else str(spec.task),
        "generation": spec.generation,
        "serving_generation": record.serving.generation,
        "warm_on": [pod for pod, held in holders.items() if held.is_warm],
        "tiers": {pod: str(held.tier) for pod, held in holders.items()},
        "loading": {
            pod: str(held.loading_from)
            for pod, held in holders.items()
            if held.loading_from is not None
        },
        "autoscaler": None if action is None else action_document(action),
        "traffic": traffic_document(canaries.traffic(spec)),
        "failure": failure
        and {
            name: getattr(failure, name)
            for name in ("reason", "message", "attempts", "http_status")
        },
    }


def traffic_document(traffic: Traffic) -> Document:
    return {
        "percent": traffic.percent,
        "canary_of": None if traffic.canary_of is None else str(traffic.canary_of),
        "canaries": {each.model.name: each.percent for each in traffic.canaries},
        "problem": traffic.problem,
    }


def traffic_text(traffic: Document) -> str:
    """Such as `90 %, iris-v2 10 %` of a model, `10 % of iris` of its canary."""
    of = traffic["canary_of"]
    parts = [f"{traffic['percent']} %" + (f" of {ModelName.parse(of).name}" if of else "")]
    parts += [f"{name} {percent} %" for name, percent in traffic["canaries"].items()]
    return ", ".join(parts) + (f" ({traffic['problem']})" if traffic["problem"] else "")


def model_status(document: Document) -> str:
    """Why a model is not ready, or not as declared; empty: it is."""
    failure = document["failure"]
    if failure is not None:
        return f"{failure['reason']}: {failure['message']}"
    if document["needs"]:
        return f"cannot be served: {document['needs']}"
    if document["serving_generation"] != document["generation"]:
        return "the previous generation serves until the new one is warm"
    return "" if document["ready"] else "no pod accepts requests"


def places(holders: Mapping[str, Residency]) -> dict[str, str]:
    """`device`, `host` or `loading from disk` by pod, of those that have a model or load it."""
    return {
        pod: str(held.tier) if held.loading_from is None else f"loading from {held.loading_from}"
        for pod, held in holders.items()
        if held.tier is not Tier.REMOTE or held.loading_from is not None
    }


def pod_document(pod: PodState, *, use: str = "") -> Document:
    """A pod by itself. `use`: what it is in use for, where that is known."""
    return {
        "name": pod.name,
        "node": pod.node,
        "address": pod.address,
        "pid": pod.info.process_id,
        "phase": str(pod.phase),
        "use": use,
        "slots": pod.slots,
        "slots_used": pod.slots_used,
        "ongoing": pod.ongoing,
        "memory_bytes": pod.memory_bytes,
        "used_bytes": dict(pod.used_bytes),
        "loads_total": pod.loads_total,
        "accelerator": asdict(pod.info.accelerator),
        "share": pod.info.share,
        "slowness": pod.slowness,
    }


def application_document(spec: ApplicationSpec, state: ClusterState) -> Document:
    """An application that is ready has a variant that can be chosen."""
    from variants.live_window import variants_of  # takes 0.1 s

    variants = variants_of(spec, state)
    return {
        "namespace": spec.name.namespace,
        "name": spec.name.name,
        "ready": bool(variants.usable),
        "classes": list(spec.classes),
        "deadline_s": spec.deadline_s,
        "late": "refuse" if spec.refuses_late else "serve",
        "policy": str(spec.policy),
        "variants": [
            {
                "name": profile.name,
                "accuracy": round(profile.accuracy, 4),
                "recalls": [round(each, 4) for each in profile.recalls],
                "warm_on": [pod.name for pod in state.warm(model.key)],
            }
            for model, profile in variants.usable
        ],
        "left_out": list(variants.problems),
    }
