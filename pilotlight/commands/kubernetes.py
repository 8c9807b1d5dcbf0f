"""`controller` and `scale`: the verbs that work in a Kubernetes cluster.

Their libraries come with an extra, and are imported when a verb runs.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Annotated, Any

import typer

from pilotlight.commands import flags
from pilotlight.commands.target import PlatformTarget
from pilotlight.errors import RequestFailed, requires_extra
from pilotlight.output import Output
from pilotlight.state_dir import StateDir
from registry.domain.pod_state import PodState
from registry.redis.reports import AutoscalerLog

app = typer.Typer()


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    add_help_option=False,
)
def controller(context: typer.Context) -> None:
    """Run the Kubernetes controller: sync InferenceServices with the registry."""
    with requires_extra("kubernetes"):
        from kubernetes.aio.config import ConfigException

        from controller.main import main

    try:
        main(context.args)
    except ConfigException as error:
        raise RequestFailed(f"no cluster: {error}; set KUBECONFIG") from error


@app.command()
def scale(
    pool: Annotated[str, typer.Argument(help="Name of the pool, as in its label.")],
    *,
    pods: Annotated[int, typer.Option(min=0, help="Number of pods to set.")],
    namespace: Annotated[
        str,
        typer.Option(
            "--namespace",
            "-n",
            help="Namespace of the pool's InferenceService. Default: search all namespaces.",
        ),
    ] = "",
    redis_url: flags.RedisUrl = None,
    json_: flags.Json = False,
) -> None:
    """Set the number of a pool's pods in the cluster of the kubeconfig, within its bounds."""
    target = PlatformTarget(StateDir.of(None), redis_url=redis_url, pool=pool)
    asyncio.run(_scale(target, Output(json_), pods=pods, namespace=namespace))


@asynccontextmanager
async def cluster_client(
    context: str | None = None, *, remedy: str = "set KUBECONFIG"
) -> AsyncIterator[Any]:
    """The client of `controller.api.connect`, whose errors become RequestFailed."""
    with requires_extra("kubernetes"):
        from kubernetes.aio.config import ConfigException

        from controller.api import KubernetesError, connect
    try:
        async with await connect(context) as client:
            yield client
    except ConfigException as error:
        raise RequestFailed(f"no cluster: {error}; {remedy}") from error
    except KubernetesError as error:
        raise RequestFailed(str(error)) from error


async def _scale(target: PlatformTarget, output: Output, *, pods: int, namespace: str) -> None:
    """Scale a pool; with a registry the emptiest pods are removed first."""
    pool = target.pool
    registered = await _registered_pods(target) if target.redis_url else {}
    async with cluster_client() as client:
        from controller.pool_scaler import PoolScaler
        from controller.pool_size import ScaledElsewhere

        done = await PoolScaler(client, namespace=namespace).scale(pool, pods, registered)
    if isinstance(done, ScaledElsewhere):
        raise RequestFailed(f"nothing was changed: {done.reason}")
    lines = [f"pool {pool} scaled to {done.pods} pods", *([done.note] if done.note else [])]
    output.result({"pool": pool, "pods": done.pods, "note": done.note}, lines)


async def _registered_pods(target: PlatformTarget) -> Mapping[str, PodState]:
    """The registry's pods; raises RequestFailed if an autoscaler would revert the change."""
    async with target.registry() as registry:
        leader = (await AutoscalerLog(registry).records()).leader
        if leader is not None:
            raise RequestFailed(
                f"nothing was changed: autoscaler {leader.holder} sets the number of pods of "
                f"pool {target.pool}; change minReplicas and maxReplicas of its InferenceService, "
                "or stop the autoscaler"
            )
        return (await registry.cluster()).pods
