"""`simulate`: flags, and the platform as a cluster file. The libraries come with an extra."""

import asyncio
import os
from collections import defaultdict
from pathlib import Path
from typing import Annotated, Any, Final

import typer
import yaml

from pilotlight.commands import flags
from pilotlight.commands.target import PlatformTarget, error_text
from pilotlight.errors import InvalidInput, NotFound, RequestFailed, requires_extra
from pilotlight.output import Output
from registry.domain.cluster import ClusterState
from registry.domain.model import ModelSpec, Tier
from registry.domain.pod_state import PodState
from registry.inference_service.annotations import PREFIX
from registry.inference_service.predictors import needs_in_pool
from registry.policy_names import LOADING, PolicyNames

LIVE: Final = "live"
"""Value of `--cluster` for the running platform."""
_LOADS: Final = (Tier.HOST, Tier.DISK, Tier.REMOTE)
_STAGES: Final = ("preprocess", "postprocess")


def live_cluster_file(state: ClusterState, *, more_pods: int = 0) -> str:
    """YAML of the platform as it is now, as a cluster file of the simulator.

    What was not measured keeps the simulator's defaults. Rates of links and disks are not known to
    the registry: measured times of loads take their place.

    Args:
        state: of a platform with a pod that accepts requests.
        more_pods: pods to add, each on a node of its own like the last pod's; below 0: the last
            ones are left out, except for one.
    """
    pods = sorted((each for each in state.pods.values() if each.is_accepting), key=_name)
    pods = pods[: max(len(pods) + min(more_pods, 0), 1)]
    by_node: defaultdict[str, list[PodState]] = defaultdict(list)
    for pod in pods:
        by_node[pod.node].append(pod)
    simulated = {
        pod.name: pod.name if len(group) == 1 else f"{node}-{index}"
        for node, group in by_node.items()
        for index, pod in enumerate(group)
    }
    document = {
        "nodes": [
            *(_node(node, group) for node, group in sorted(by_node.items())),
            *(_node("", pods[-1:]) | {"name": f"added-{index}"} for index in range(more_pods)),
        ],
        "models": [
            _model(state, record.serving, simulated)
            for _, record in sorted(state.models.items())
            if record.failure is None
            and not needs_in_pool(record.spec, has_server=state.has_server)
        ],
    }
    return yaml.safe_dump(document, sort_keys=False)


def _name(pod: PodState) -> str:
    return pod.name


def _node(name: str, pods: list[PodState]) -> dict[str, Any]:
    host_bytes = max(int(pod.used_bytes.get(Tier.HOST, 0)) for pod in pods)
    node: dict[str, Any] = {
        "name": pods[0].name if len(pods) == 1 else name,
        "pods": [
            {"slots": pod.slots, **({"memory": pod.memory_bytes} if pod.memory_bytes else {})}
            for pod in pods
        ],
    }
    if pods[0].info.link_bytes_per_s:
        node["object_storage_rate"] = f"{int(pods[0].info.link_bytes_per_s)}/s"
    if host_bytes:
        node["host_memory"] = host_bytes
    return node


def _model(state: ClusterState, spec: ModelSpec, pods: dict[str, str]) -> dict[str, Any]:
    holders = state.holders(spec.key)
    measured = state.measured(spec.key)
    model: dict[str, Any] = {"name": str(spec.name)}
    size = max((each.size_bytes for each in holders.values()), default=0)
    size = size or state.residency.device_bytes.get(spec.key, 0)
    if size:
        model["size"] = size
    if infer := _infer(state, spec):
        model["infer"] = infer
    for stage in _STAGES:
        if (seconds := measured.median_s(stage)) is not None:
            model[stage] = _duration(seconds)
    loads = {str(tier): measured.median_s(f"load:{tier}") for tier in _LOADS}
    if known := {tier: _duration(each) for tier, each in loads.items() if each is not None}:
        model["load"] = known
    if held := {
        pods[pod]: str(each.tier)
        for pod, each in holders.items()
        if pod in pods and each.tier is not Tier.REMOTE  # it is being loaded
    }:
        model["at"] = held
    if own := {key: text for key, text in spec.annotations if key.startswith(PREFIX)}:
        model["annotations"] = own
    return model


def _infer(state: ClusterState, spec: ModelSpec) -> dict[int, str]:
    """Times by rows: of a profile, else of single requests."""
    for profile in state.profiles_of(spec.key):
        return {point.rows: _duration(point.latency_s) for point in profile.points}
    seconds = state.measured(spec.key).median_s("infer")
    return {} if seconds is None else {1: _duration(seconds)}


def _duration(seconds: float) -> str:
    return f"{max(round(seconds * 1e6), 1)}us"


app = typer.Typer()


@app.command()
@flags.addresses("home", "redis_url", "pool", "gateway", "key")
def simulate(
    target: PlatformTarget,
    output: Output,
    *,
    cluster: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="YAML file with nodes, pods and models; live: the running platform, which is "
            "written to live-cluster.yaml in --home.",
        ),
    ] = None,
    more_pods: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=-256,
            max=256,
            help="With --cluster live: pods to add to the running ones; below 0: to leave out.",
        ),
    ] = 0,
    workflows: Annotated[
        str | None,
        typer.Option(
            metavar="A[,A…]",
            help="In place of --cluster: applications of the experiment `workflows` (gill, "
            "knowledge-card, debate, mix) on eight devices. --trace is a file of requests by "
            "minute; --policy is a scheduling policy: speculative, greedy, round-robin, static, "
            "reactive or reactive-alone (default: all).",
        ),
    ] = None,
    minutes: Annotated[
        int, typer.Option(min=1, max=120, help="Minutes of the trace, with --workflows.")
    ] = 10,
    trace: Annotated[
        str,
        typer.Option(
            help="The arrivals: a file or a generator, see docs/load.md; live: the "
            "gateway's requests of the last ten minutes (live|rate=2: twice as many)."
        ),
    ],
    policy: Annotated[
        str,
        typer.Option(
            metavar="P[,P…]",
            help="Routing policies, or selection policies of applications, one run each; own: the "
            "policy that each model and application names.",
        ),
    ] = "own",
    sweep: Annotated[
        str | None,
        typer.Option(
            metavar="KEY=A,B…",
            help="Values of a key of the cluster file, one run each, such as nodes.0.count=4,8.",
        ),
    ] = None,
    loading: Annotated[
        str,
        typer.Option(
            metavar="L[,L…]",
            help="Loading policies of the autoscaler, one run each: none, "
            f"{LOADING}. They preload and demote models; the number of pods stays as in the "
            "cluster file.",
        ),
    ] = "none",
    loading_value: Annotated[
        float | None,
        typer.Option(
            metavar="V",
            show_default="the policy's own",
            help="Parameter of the loading policy: price of device memory in seconds saved "
            "per GB and hour (predictive), minutes (keep-alive), GB per device (greedy-dual), "
            "range in whole minutes (hybrid-histogram).",
        ),
    ] = None,
    tick: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            help="Seconds between two plans of a loading policy; larger values simulate faster.",
        ),
    ] = 0.5,
    seed: Annotated[int, typer.Option(min=0, help="Seed; equal seeds give equal results.")] = 0,
    processes: flags.Processes = None,
    allow_unknown: Annotated[
        bool,
        typer.Option(
            "--allow-unknown", help="Reject requests for models that the cluster lacks with 404."
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder for the records: one Parquet file per run."),
    ] = None,
    overwrite: flags.Overwrite = False,
) -> None:
    """Run a trace through a simulated cluster with the gateway's routing policies."""
    with requires_extra("load"):
        from pilotlight.commands.simulation_runs import SimulationPlan, run_simulations

    if (cluster is None) == (workflows is None):
        raise InvalidInput(["give either --cluster FILE or --workflows APPLICATION"])
    if workflows is not None:
        PolicyNames("pilotlight.simulations").load("workflows")(
            workflows, trace=Path(trace), policies=policy, seed=seed, minutes=minutes, output=output
        )
        return
    assert cluster is not None
    if more_pods and str(cluster) != LIVE:
        raise InvalidInput([f"--more-pods {more_pods} needs --cluster live, was {cluster}"])
    if trace.partition("|")[0] == LIVE:
        trace = asyncio.run(_live_trace(target, trace))
    if str(cluster) == LIVE:
        cluster = _write_live_cluster(target, output, more_pods)
    plan = SimulationPlan(
        cluster=cluster,
        trace=trace,
        policies=policy,
        sweep=sweep,
        seed=seed,
        processes=processes or os.cpu_count() or 1,
        allow_unknown=allow_unknown,
        loading=loading,
        loading_value=loading_value,
        tick_s=tick,
        out=out,
        overwrite=overwrite,
    )
    run_simulations(plan, output)


async def _live_trace(target: PlatformTarget, trace: str) -> str:
    """The trace `live[|TRANSFORM…]` as one of a file, which is written. Raises PilotlightError."""
    response = await target.request_gateway("GET", "/pilotlight/v1/trace")
    if not response.is_success:
        raise RequestFailed(error_text(response))
    if response.text.count("\n") <= 1:
        raise NotFound("--trace live: the gateway had no request in the last ten minutes")
    path = target.state_dir.root / "live-trace.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(response.content)
    return f"arrivals:{path}{trace.removeprefix(LIVE)}"


def _write_live_cluster(target: PlatformTarget, output: Output, more_pods: int) -> Path:
    """The file that describes the running platform. Raises PilotlightError."""
    state = asyncio.run(target.cluster())
    if not any(pod.is_accepting for pod in state.pods.values()):
        raise NotFound("--cluster live: the platform has no pod that accepts requests")
    path = target.state_dir.root / "live-cluster.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(live_cluster_file(state, more_pods=more_pods))
    output.note(f"the running platform is described in {path}")
    return path
