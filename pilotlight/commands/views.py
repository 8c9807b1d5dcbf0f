"""What `get` and `describe` show of each kind: its objects as documents, and the cells of tables.

The documents are those of `gateway.management`, which the web console shows as
well; here are what only the command line reads, and the words of tables.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final
from urllib.parse import quote

from gateway.management import (
    Document,
    application_document,
    model_document,
    model_status,
    pod_document,
    traffic_text,
)
from pilotlight.commands.target import PlatformTarget, read_response
from pilotlight.output import format_age, format_bytes
from registry.domain.canaries import Canaries
from registry.domain.cluster import ClusterState, load_snapshot
from registry.domain.demand import CountWindow
from registry.domain.graph import KIND as GRAPH
from registry.domain.model import ModelName, name_of_key
from registry.domain.records import ActionOutcome, ActionRecord, WantedPods, action_document
from registry.redis.client import Registry
from registry.redis.reports import ArrivalLog, AutoscalerLog, read_declared_times, read_gpu_readings
from registry.redis.workflow_log import WorkflowLog

_MAX_PODS: Final = 2
"""Named in a table per tier of a model; `-o wide` names all."""
_SCALED_TO_ZERO: Final = (
    "no pods: none is needed, as no request came for a while (`pilotlight up --min-pods 0"
    " --pod-idle SECONDS`); the next request starts one and waits for it"
)


@dataclass(frozen=True, slots=True)
class View:
    """All objects of a kind, as they are now."""

    documents: Mapping[str, Callable[[], Document]]
    """By name, in order."""
    when_empty: str
    details: Callable[[str, Document], Document] = field(default=lambda _, document: document)
    """What `describe` adds to the document with this name, as JSON."""
    readable: Callable[[Document], Document] = field(default=lambda document: document)
    """The details in the order of a reader's questions."""


async def view_models(target: PlatformTarget, registry: Registry, _: str) -> View:
    state, records, declared = await asyncio.gather(
        registry.cluster(), AutoscalerLog(registry).records(), read_declared_times(registry)
    )
    canaries, base = Canaries(state), target.known_gateway_url
    can_start_pods = records.ongoing.wanted is not None and records.leader is not None

    def document(name: ModelName) -> Document:
        action = records.last_by_model.get(str(name))
        found = model_document(
            state, state.models[name], canaries, action=action, can_start_pods=can_start_pods
        )
        url = f"{base}/serving/{name.namespace}/{name.name}"
        return found | {"created": declared.get(str(name)), "url": url}

    def details(name: str, document: Document) -> Document:
        spec = state.models[ModelName.parse(name)].spec
        policy = {key: value for key, value in asdict(spec.policy).items() if value is not None}
        actions = [action_document(each) for each in records.history if each.subject == name]
        annotations = dict(spec.annotations)
        return document | {"policy": policy, "annotations": annotations, "actions": actions}

    def readable(document: Document) -> Document:
        name = f"{document['namespace']}/{document['name']}"
        actions = [each for each in records.history if each.subject == name]
        return _readable_model(document, [_event(each, records.read_at_s) for each in actions])

    return View(
        {str(name): partial(document, name) for name in sorted(state.models)},
        "no models; create some with `pilotlight apply -f manifests/samples/`",
        details,
        readable,
    )


def _readable_model(model: Document, events: list[str]) -> Document:
    """Without what is empty."""
    is_new = model["serving_generation"] == model["generation"]
    found = {
        "namespace": model["namespace"],
        "name": model["name"],
        "ready": model["ready"],
        "status": "" if model["failure"] else model_status(model),
        "pods": {tier: ", ".join(pods) for tier, pods in _pods_by_tier(model).items()}
        or "none; the model is in storage only",
        "traffic": traffic_text(model["traffic"]),
        "failure": model["failure"],
        "url": model["url"],
        "age": _age(model),
        "storage_uri": model["storage_uri"],
        "task": model["task"],
        "generation": model["generation"],
        "serving_generation": "" if is_new else model["serving_generation"],
        "annotations": model["annotations"],
        "policy": model["policy"],
        "autoscaler": events or "no action on this model yet",
    }
    return {key: value for key, value in found.items() if value not in ("", None, {})}


def _event(action: ActionRecord, now_s: float) -> str:
    """Such as `3m20s ago: load at pod-1, forecast: 12 requests expected in 60 s: done`."""
    at = f" at {action.pod}" if action.pod else ""
    return (
        f"{format_age(now_s - action.at_s)} ago: {action.verb}{at}, {action.reason}: "
        f"{action.detail}: {action.outcome} {action.error}".rstrip()
    )


def _age(model: Document) -> str:
    """Time since the model was declared; empty: not recorded."""
    if model["created"] is None:
        return ""
    age = datetime.now(UTC) - datetime.fromisoformat(model["created"])
    return format_age(age.total_seconds())


def model_row(model: Document) -> tuple[str, ...]:
    return (
        f"{model['namespace']}/{model['name']}",
        str(model["ready"]),
        _tiers(model, most=_MAX_PODS),
        traffic_text(model["traffic"]),
        _age(model) or "-",
        model_status(model),
        model["policy"],
        _tiers(model, most=len(model["tiers"])),
        _last_action(model),
        model["url"],
    )


def _pods_by_tier(document: Document) -> dict[str, list[str]]:
    """The pods that hold a model, by `warm`, `loading`, `host` and `disk`; without empty ones."""
    loading = document["loading"]
    found = {"warm": list(document["warm_on"]), "loading": list(loading)}
    for tier in ("host", "disk"):
        held = document["tiers"].items()
        found[tier] = [pod for pod, its in held if its == tier and pod not in loading]
    return {tier: pods for tier, pods in found.items() if pods}


def _tiers(document: Document, *, most: int) -> str:
    """Such as `warm on pod-1, pod-3; disk on 6 pods`: names of `most` pods of a tier."""
    parts = [
        f"{tier} on {', '.join(pods) if len(pods) <= most else f'{len(pods)} pods'}"
        for tier, pods in _pods_by_tier(document).items()
    ]
    return "; ".join(parts) or "remote"


def _last_action(document: Document) -> str:
    """Such as `load at pod-1: forecast (P(arrival within 60 s) 0.9, …)`."""
    action = document["autoscaler"]
    if action is None:
        return "-"
    at = f" at {action['pod']}" if action["pod"] else ""
    outcome = "" if action["outcome"] == ActionOutcome.DONE else f", {action['outcome']}"
    return f"{action['verb']}{at}: {action['reason']} ({action['words']}){outcome}"


async def view_pods(_: PlatformTarget, registry: Registry, __: str) -> View:
    """With how each pod is used according to the arrivals of the last minute."""
    from autoscaler.desired_pods import IN_USE_S, pod_uses  # takes 0.1 s
    from autoscaler.observe import read_pool

    (versions, now_ms, snapshot), gpus, ongoing = await asyncio.gather(
        registry.transactions.snapshot(is_kept_up=False),
        read_gpu_readings(registry),
        AutoscalerLog(registry).ongoing(),
    )
    state = ClusterState()
    load_snapshot(state, versions.changes, snapshot)
    now_s = now_ms / 1000
    counted = await ArrivalLog(registry).read(CountWindow.SECOND, now_s - IN_USE_S, now_s)
    last_s = {each.model: float(each.start_s) for each in counted}  # in order of time
    uses = pod_uses(read_pool(state, now_s, last_arrival_s=last_s))

    def document(name: str) -> Document:
        pod, gpu = state.pods[name], gpus.get(name)
        placed = state.placement.pod(pod.info.place) if state.placement else None
        tiers = {
            key: holders[name].tier
            for key, holders in sorted(state.residency.items())
            if name in holders
        }
        return pod_document(pod, use=str(uses.get(name, ""))) | {
            "gpu": None if gpu is None else asdict(gpu),
            "placed": None if placed is None else asdict(placed.replica),
            "warm_models": [str(name_of_key(key)) for key, at in tiers.items() if at == "device"],
            "models": {str(name_of_key(key)): str(at) for key, at in tiers.items()},
        }

    documents = {name: partial(document, name) for name in sorted(state.pods)}
    return View(documents, _why_no_pods(ongoing.wanted))


def _why_no_pods(wanted: WantedPods | None) -> str:
    if wanted is None:
        return "no pods; `pilotlight logs` names the processes whose logs say why"
    return f"no pods yet: {wanted.pods} are starting" if wanted.pods else _SCALED_TO_ZERO


def pod_row(pod: Document) -> tuple[str, ...]:
    used = pod["used_bytes"]
    device = format_bytes(used.get("device", 0))
    return (
        pod["name"],
        pod["node"],
        pod["phase"],
        pod["use"],
        f"{pod['slots_used']}/{pod['slots']}",
        ", ".join(pod["warm_models"]) or "-",
        f"{device} of {format_bytes(pod['memory_bytes'])}",
        format_bytes(used.get("host", 0)),
        format_bytes(used.get("disk", 0)),
        str(pod["loads_total"]),
        _accelerator(pod),
        _gpu(pod["gpu"]),
        _placed(pod["placed"]),
    )


def _accelerator(document: Document) -> str:
    """Such as `NVIDIA H200, 50 %`."""
    product, share = document["accelerator"]["product"] or "-", document["share"]
    return product if share == 1 else f"{product}, {share * 100:.3g} %"


def _gpu(reading: Document | None) -> str:
    """Such as `37 %, 12 GB, 61 °C`; after an error of the driver also `XID 31`."""
    if reading is None:
        return "-"
    busy, used, heat = reading["busy_pct"], reading["used_bytes"], reading["temperature_c"]
    parts = [
        "" if busy is None else f"{busy:.0f} %",
        "" if used is None else format_bytes(used),
        "" if heat is None else f"{heat:.0f} °C",
        f"XID {reading['xid']}" if reading["xid"] else "",
    ]
    return ", ".join(part for part in parts if part) or "-"


def _placed(placed: Document | None) -> str:
    """Such as `default/embed on cpu-0: batch 8, share 50 %, 12.3 req/s`."""
    if placed is None:
        return "-"
    share = "" if placed["share_pct"] is None else f", share {placed['share_pct']:.3g} %"
    return (
        f"{placed['model']} on {placed['accelerator']}: batch {placed['batch_size']}{share}, "
        f"{placed['rate_rps']:.1f} req/s"
    )


async def view_applications(_: PlatformTarget, registry: Registry, __: str) -> View:
    state = await registry.cluster()
    return View(
        {
            str(name): partial(application_document, spec, state)
            for name, spec in sorted(state.applications.items())
        },
        "no applications; create one with `pilotlight apply -f FILE`",
    )


def application_row(document: Document) -> tuple[str, ...]:
    variants = [f"{each['name']} ({each['accuracy']:.2f})" for each in document["variants"]]
    return (
        f"{document['namespace']}/{document['name']}",
        "True" if document["ready"] else "False",
        f"{document['deadline_s'] * 1000:g} ms",
        document["policy"],
        ", ".join(variants) or "-",
        "; ".join(document["left_out"]),
    )


async def view_graphs(_: PlatformTarget, registry: Registry, __: str) -> View:
    found = await WorkflowLog(registry).workflows()

    def document(name: ModelName) -> Document:
        nodes = {
            node: {
                "router": each["router"],
                "steps": [step["model"] or step["node"] for step in each["steps"]],
            }
            for node, each in found[name]["graph"].items()
        }
        names = {"namespace": name.namespace, "name": name.name}
        return names | {"deadline_s": found[name]["deadline_s"], "nodes": nodes}

    graphs = sorted(name for name, each in found.items() if each["kind"] == GRAPH)
    return View(
        {str(name): partial(document, name) for name in graphs},
        "no graphs; create one with `pilotlight apply -f FILE`",
    )


def graph_row(document: Document) -> tuple[str, ...]:
    nodes = [
        f"{name}: {each['router']} of {', '.join(each['steps'])}"
        for name, each in document["nodes"].items()
    ]
    return (f"{document['namespace']}/{document['name']}", _deadline(document), "; ".join(nodes))


async def view_workflows(target: PlatformTarget, _: Any, namespace: str) -> View:
    """Of one namespace, as the gateway lists them to whoever has its key."""
    path = f"/serving/{quote(namespace)}/all/v1/workflows"
    found = read_response(await target.request_gateway("GET", path), namespace)["workflows"]
    return View(
        {f"{each['namespace']}/{each['name']}": partial(dict, each) for each in found},
        "no workflows; deploy one with `pilotlight workflow deploy FILE`",
    )


def workflow_row(document: Document) -> tuple[str, ...]:
    parameters: Sequence[Document] = document["parameters"] or ()
    named = [each["name"] + ("" if each["required"] else "?") for each in parameters]
    return (
        document["namespace"],
        document["name"],
        document["kind"],
        ", ".join(named) or "-",
        _deadline(document),
    )


def _deadline(document: Document) -> str:
    return f"{document['deadline_s']:g} s" if document["deadline_s"] else "-"
