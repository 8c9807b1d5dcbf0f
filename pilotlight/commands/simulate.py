"""`simulate`: flags, and the platform as a cluster file. The libraries come with an extra."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import typer

from pilotlight.commands import flags
from pilotlight.commands.live_cluster import live_cluster_file
from pilotlight.commands.target import PlatformTarget, error_text
from pilotlight.errors import InvalidInput, NotFound, RequestFailed, requires_extra
from pilotlight.output import Output
from pilotlight.platform.machine import Machine
from registry.policy_names import LOADING

LIVE: Final = "live"
"""Value of `--cluster` for the running platform."""
_OWN: Final = "own"
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
    like: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="In place of --cluster and --trace: a run of `load run` on one machine. Its "
            "arrivals are simulated on its cluster, RUN.cluster.yaml, and compared with it.",
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
    trace: Annotated[
        str | None,
        typer.Option(
            help="The arrivals: a file or a generator, see docs/load.md; live: the "
            "gateway's requests of the last ten minutes (live|rate=2: twice as many)."
        ),
    ] = None,
    policy: Annotated[
        str,
        typer.Option(
            metavar="P[,P…]",
            help="Routing policies, or selection policies of applications, one run each; own: the "
            "policy that each model and application names.",
        ),
    ] = _OWN,
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
        from pilotlight.commands.simulated_likeness import LiveRun
        from pilotlight.commands.simulation_runs import SimulationPlan, run_simulations

    if (cluster is None) == (like is None):
        raise InvalidInput(["give --cluster FILE or --like RUN, and not both"])
    live = None if like is None else LiveRun.read(like)
    if live is not None:
        if trace is not None:
            raise InvalidInput(["--like RUN has arrivals of its own: leave out --trace"])
        with _writes_in_home(target, "like-trace.csv") as path:
            cluster, trace = live.cluster, live.write_arrivals(path)
        policy = live.policy if policy == _OWN else policy
    if trace is None:
        raise InvalidInput(["--trace is missing: a file or a generator, see docs/load.md"])
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
        seed=seed,
        processes=processes or os.cpu_count() or 1,
        allow_unknown=allow_unknown,
        loading=loading,
        loading_value=loading_value,
        tick_s=tick,
        out=out,
        overwrite=overwrite,
    )
    run_simulations(plan, output, live=live)


async def _live_trace(target: PlatformTarget, trace: str) -> str:
    """The trace `live[|TRANSFORM…]` as one of a file, which is written. Raises PilotlightError."""
    response = await target.request_gateway("GET", "/pilotlight/v1/trace")
    if not response.is_success:
        raise RequestFailed(error_text(response))
    if response.text.count("\n") <= 1:
        raise NotFound("--trace live: the gateway had no request in the last ten minutes")
    with _writes_in_home(target, "live-trace.csv") as path:
        path.write_bytes(response.content)
    return f"arrivals:{path}{trace.removeprefix(LIVE)}"


def _write_live_cluster(target: PlatformTarget, output: Output, more_pods: int) -> Path:
    """The file that describes the running platform. Raises PilotlightError."""
    state = asyncio.run(target.cluster())
    pods = sum(pod.is_accepting for pod in state.pods.values())
    if not pods:
        raise NotFound("--cluster live: the platform has no pod that accepts requests")
    if pods + more_pods < 1:
        raise InvalidInput([f"--more-pods {more_pods} leaves none of {pods}"])
    machine = Machine.read(target.state_dir.machine)
    with _writes_in_home(target, "live-cluster.yaml") as path:
        path.write_text(live_cluster_file(state, more_pods=more_pods, machine=machine))
    output.note(f"the running platform is described in {path}")
    return path


@contextmanager
def _writes_in_home(target: PlatformTarget, name: str) -> Iterator[Path]:
    """The path of a file that is written; raises InvalidInput if it cannot be."""
    path = target.state_dir.root / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield path
    except OSError as error:
        raise InvalidInput([f"--home: {path} cannot be written: {error}"]) from error
