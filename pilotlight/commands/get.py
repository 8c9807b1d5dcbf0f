"""`get models`, `get applications` and `get pods`: the registry's state, as tables or JSON."""

import asyncio
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from autoscaler.planning.desired_pods import IN_USE_S, PodUse, pod_uses
from autoscaler.planning.pool_view import Observations, read_pool
from pilotlight.commands import flags
from pilotlight.commands.listing import Listing, print_applications, show
from pilotlight.commands.object_names import parse_model_names
from pilotlight.commands.target import PlatformTarget, require_known
from pilotlight.commands.workflow import print_workflows
from pilotlight.output import Output, format_age, format_bytes
from registry.domain.canaries import Found, Traffic, find_canaries, traffic_of
from registry.domain.cluster import ClusterState, load_snapshot
from registry.domain.demand import CountWindow
from registry.domain.model import ModelName, ModelRecord, name_of_key
from registry.domain.pod import GpuReading
from registry.domain.pod_state import PodState
from registry.domain.records import ActionOutcome, AutoscalerRecords, WantedPods, action_document
from registry.inference_service.predictors import needs_in_pool
from registry.redis.autoscaler_log import AutoscalerLog
from registry.redis.client import Registry
from registry.redis.reports import ArrivalLog, read_declared_times, read_gpu_readings

_MAX_PODS = 2
"""Named in a table per tier of a model; `-o wide` names all."""

_SCALED_TO_ZERO = (
    "no pods: none is needed, as no request came for a while (`pilotlight up --min-pods 0"
    " --pod-idle SECONDS`); the next request starts one and waits for it"
)

app = typer.Typer(name="get", no_args_is_help=True, help="Show models, applications or pods.")


@app.command("models")
@app.command("model", hidden=True)
@app.command("isvc", hidden=True)
@app.command("inferenceservices", hidden=True)
@flags.addresses(*flags.REGISTRY, lists=True)
async def get_models(
    target: PlatformTarget,
    output: Output,
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Show only these models.", autocompletion=flags.complete_model),
    ] = None,
    *,
    namespace: flags.Namespace = None,
) -> None:
    """List models of all namespaces or of -n: readiness, routing policy, tier on each pod."""
    wanted = parse_model_names(names or [], namespace)
    async with target.registry() as registry:
        log, base = AutoscalerLog(registry), target.known_gateway_url

        async def read() -> list[dict[str, Any]]:
            state, records, declared = await asyncio.gather(
                registry.cluster(), log.records(), read_declared_times(registry)
            )
            require_known([str(name) for name in wanted], {str(name) for name in state.models})
            canaries = find_canaries(state.models.values())
            return [
                model_document(state, record, records, canaries)
                | {"created": declared.get(str(name)), "url": f"{base}{model_path(name)}"}
                for name, record in sorted(state.models.items())
                if (not wanted or name in wanted)
                and (namespace is None or name.namespace == namespace)
            ]

        await show(output, _MODELS, read)


@app.command("pods")
@app.command("pod", hidden=True)
@flags.addresses(*flags.REGISTRY, lists=True)
async def get_pods(
    target: PlatformTarget,
    output: Output,
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Show only these pods.", autocompletion=flags.complete_pod),
    ] = None,
) -> None:
    """List pods: node, phase, slots, warm models, bytes held in each tier."""
    async with target.registry() as registry:

        async def read() -> list[dict[str, Any]]:
            (state, uses), gpus = await asyncio.gather(
                pods_and_uses(registry), read_gpu_readings(registry)
            )
            require_known(names or [], set(state.pods))
            return [
                pod_document(state, pod, uses.get(name), gpus.get(name))
                for name, pod in sorted(state.pods.items())
                if not names or name in names
            ]

        wanted = (await AutoscalerLog(registry).ongoing()).wanted
        await show(output, replace(_PODS, when_empty=_why_no_pods(wanted)), read)


@app.command("workflows")
@app.command("workflow", hidden=True)
@flags.addresses(*flags.GATEWAY)
async def get_workflows(
    target: PlatformTarget, output: Output, *, namespace: flags.Namespace = None
) -> None:
    """List the workflows of a namespace: parameters and deadline."""
    await print_workflows(target, output, namespace or "default")


@app.command("applications")
@app.command("application", hidden=True)
@flags.addresses(*flags.REGISTRY, lists=True)
async def get_applications(
    target: PlatformTarget,
    output: Output,
    names: Annotated[list[str] | None, typer.Argument(help="Show only these.")] = None,
    *,
    namespace: flags.Namespace = None,
) -> None:
    """List applications: deadline, selection policy, variants, and why others are left out."""
    wanted = parse_model_names(names or [], namespace)
    await print_applications(target, output, wanted, namespace)


def model_path(name: ModelName) -> str:
    """Beginning of the model's paths at a gateway, whatever its namespace."""
    return f"/serving/{name.namespace}/{name.name}"


def age_text(model: dict[str, Any]) -> str:
    """Time since the model was declared; empty: not recorded."""
    if model["created"] is None:
        return ""
    age = datetime.now(UTC) - datetime.fromisoformat(model["created"])
    return format_age(age.total_seconds())


def model_document(
    state: ClusterState, record: ModelRecord, records: AutoscalerRecords, canaries: Found
) -> dict[str, Any]:
    """One model as JSON. A ready model can be served; it need not be warm."""
    action = records.last_by_model.get(str(record.spec.name))
    can_start_pods = records.ongoing.wanted is not None and records.leader is not None
    failure = record.failure
    holders = state.holders(record.spec.key)
    accepting = [pod for pod in state.pods.values() if pod.is_accepting]
    needs = needs_in_pool(record.spec, has_server=state.has_server)
    return {
        "namespace": record.spec.name.namespace,
        "name": record.spec.name.name,
        "ready": failure is None and not needs and (bool(accepting) or can_start_pods),
        "needs": needs,
        "policy": str(record.spec.policy.routing),
        "storage_uri": record.spec.storage_uri,
        "task": None if record.spec.task is None else str(record.spec.task),
        "generation": record.spec.generation,
        "serving_generation": record.serving.generation,
        "warm_on": sorted(pod for pod, held in holders.items() if held.is_warm),
        "tiers": {pod: str(holders[pod].tier) for pod in sorted(holders)},
        "loading": {
            pod: str(held.loading_from)
            for pod, held in sorted(holders.items())
            if held.loading_from is not None
        },
        "autoscaler": None if action is None else action_document(action),
        "traffic": _traffic_document(traffic_of(record.spec, state.models, canaries)),
        "failure": failure
        and {
            name: getattr(failure, name)
            for name in ("reason", "message", "attempts", "http_status")
        },
    }


def _traffic_document(traffic: Traffic) -> dict[str, Any]:
    return {
        "percent": traffic.percent,
        "canary_of": None if traffic.canary_of is None else str(traffic.canary_of),
        "canaries": {each.model.name: each.percent for each in traffic.canaries},
        "problem": traffic.problem,
    }


def traffic_text(document: dict[str, Any]) -> str:
    """Such as `90 %, iris-v2 10 %` of a model, `10 % of iris` of its canary."""
    traffic = document["traffic"]
    of = traffic["canary_of"]
    parts = [f"{traffic['percent']} %" + (f" of {ModelName.parse(of).name}" if of else "")]
    parts += [f"{name} {percent} %" for name, percent in traffic["canaries"].items()]
    return ", ".join(parts) + (f" ({traffic['problem']})" if traffic["problem"] else "")


def _model_row(model: dict[str, Any]) -> tuple[str, ...]:
    return (
        f"{model['namespace']}/{model['name']}",
        str(model["ready"]),
        _tiers(model),
        traffic_text(model),
        age_text(model) or "-",
        model_status(model),
        model["policy"],
        _tiers(model, most=len(model["tiers"])),
        _last_action(model),
        model["url"],
    )


def pods_by_tier(document: dict[str, Any]) -> dict[str, list[str]]:
    """The pods that hold a model, by `warm`, `loading`, `host` and `disk`; without empty ones."""
    loading = document["loading"]
    found = {"warm": list(document["warm_on"]), "loading": list(loading)}
    for tier in ("host", "disk"):
        held = document["tiers"].items()
        found[tier] = [pod for pod, its in held if its == tier and pod not in loading]
    return {tier: pods for tier, pods in found.items() if pods}


def _tiers(document: dict[str, Any], *, most: int = _MAX_PODS) -> str:
    """Such as `warm on pod-1, pod-3; disk on 6 pods`: names of `most` pods of a tier."""
    parts = [
        f"{tier} on {', '.join(pods) if len(pods) <= most else f'{len(pods)} pods'}"
        for tier, pods in pods_by_tier(document).items()
    ]
    return "; ".join(parts) or "remote"


def _last_action(document: dict[str, Any]) -> str:
    """Such as `load at pod-1: forecast (P(arrival within 60 s) 0.9, …)`."""
    action = document["autoscaler"]
    if action is None:
        return "-"
    at = f" at {action['pod']}" if action["pod"] else ""
    outcome = "" if action["outcome"] == ActionOutcome.DONE else f", {action['outcome']}"
    return f"{action['verb']}{at}: {action['reason']} ({action['words']}){outcome}"


def model_status(document: dict[str, Any]) -> str:
    failure = document["failure"]
    if failure is not None:
        return f"{failure['reason']}: {failure['message']}"
    if document["needs"]:
        return f"cannot be served: {document['needs']}"
    if document["serving_generation"] != document["generation"]:
        return "the previous generation serves until the new one is warm"
    return "" if document["ready"] else "no pod accepts requests"


def _why_no_pods(wanted: WantedPods | None) -> str:
    if wanted is None:
        return "no pods; `pilotlight logs` names the processes whose logs say why"
    return f"no pods yet: {wanted.pods} are starting" if wanted.pods else _SCALED_TO_ZERO


def _pod_row(pod: dict[str, Any]) -> tuple[str, ...]:
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
        _placed(pod),
    )


def _accelerator(document: dict[str, Any]) -> str:
    """Such as `NVIDIA H200, 50 %`."""
    product, share = document["accelerator"]["product"] or "-", document["share"]
    return product if share == 1 else f"{product}, {share * 100:.3g} %"


def _gpu(reading: dict[str, Any] | None) -> str:
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


def _placed(document: dict[str, Any]) -> str:
    """Such as `default/embed on cpu-0: batch 8, share 50 %, 12.3 req/s`."""
    placed = document["placed"]
    if placed is None:
        return "-"
    share = "" if placed["share_pct"] is None else f", share {placed['share_pct']:.3g} %"
    return (
        f"{placed['model']} on {placed['accelerator']}: batch {placed['batch_size']}{share}, "
        f"{placed['rate_rps']:.1f} req/s"
    )


async def pods_and_uses(registry: Registry) -> tuple[ClusterState, dict[str, PodUse]]:
    """The pool, and how each pod is used according to the arrivals of the last minute."""
    versions, now_ms, snapshot = await registry.transactions.look()
    state = ClusterState()
    load_snapshot(state, versions.changes, snapshot)
    now_s = now_ms / 1000
    counted = await ArrivalLog(registry).read(CountWindow.SECOND, now_s - IN_USE_S, now_s)
    last_s = {each.model: float(each.start_s) for each in counted}  # in order of time
    return state, pod_uses(read_pool(state, now_s, Observations(last_arrival_s=last_s)))


def pod_document(
    state: ClusterState, pod: PodState, use: PodUse | None, gpu: GpuReading | None = None
) -> dict[str, Any]:
    placed = state.placement.pod(pod.info.place) if state.placement else None
    tiers = {
        key: holders[pod.name].tier
        for key, holders in sorted(state.residency.items())
        if pod.name in holders
    }
    return {
        "name": pod.name,
        "node": pod.node,
        "address": pod.address,
        "pid": pod.info.process_id,
        "phase": str(pod.phase),
        "use": "" if use is None else str(use),
        "slots": pod.slots,
        "slots_used": pod.slots_used,
        "ongoing": pod.ongoing,
        "memory_bytes": pod.memory_bytes,
        "used_bytes": dict(pod.used_bytes),
        "loads_total": pod.loads_total,
        "accelerator": asdict(pod.info.accelerator),
        "share": pod.info.share,
        "gpu": None if gpu is None else asdict(gpu),
        "placed": None if placed is None else asdict(placed.replica),
        "warm_models": [str(name_of_key(key)) for key, tier in tiers.items() if tier == "device"],
        "models": {str(name_of_key(key)): str(tier) for key, tier in tiers.items()},
    }


_MODELS = Listing(
    columns=(
        "NAME",
        "READY",
        "TIERS",
        "TRAFFIC",
        "AGE",
        "STATUS",
        "ROUTING",
        "PODS",
        "AUTOSCALER",
        "URL",
    ),
    optional=("AGE", "TIERS"),
    passing=("AGE",),
    row=_model_row,
    wide=("ROUTING", "PODS", "AUTOSCALER", "URL"),
    width=120,
    when_empty="no models; create some with `pilotlight apply -f manifests/samples/`",
)
_PODS = Listing(
    columns=(
        "NAME",
        "NODE",
        "PHASE",
        "USE",
        "SLOTS",
        "WARM MODELS",
        "DEVICE",
        "HOST",
        "DISK",
        "LOADS",
        "ACCELERATOR",
        "GPU",
        "PLACED",
    ),
    optional=("LOADS", "DISK", "HOST", "PLACED", "NODE", "GPU", "ACCELERATOR", "USE"),
    row=_pod_row,
    when_empty="no pods",
)
