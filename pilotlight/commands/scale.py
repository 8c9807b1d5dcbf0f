"""`scale`: set the number of a pool's pods in a Kubernetes cluster, by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autoscaler.kubernetes.cluster.cluster_api import connect
from autoscaler.kubernetes.errors import KubernetesError
from autoscaler.kubernetes.pools.pool_scaler import PoolScaler
from autoscaler.kubernetes.pools.pool_size import ScaledElsewhere
from pilotlight.errors import RequestFailed
from registry.redis.autoscaler_log import AutoscalerLog

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pilotlight.commands.target import PlatformTarget
    from pilotlight.output import Output
    from registry.domain.pod_state import PodState


async def scale(
    target: PlatformTarget, output: Output, pool: str, *, pods: int, namespace: str
) -> None:
    """Scale a pool; the emptiest pods go first, as far as the registry knows them."""
    known = await _known_pods(target, pool) if target.redis_url else {}
    client = await connect()
    try:
        done = await PoolScaler(client, namespace=namespace).scale(pool, pods, known)
    except KubernetesError as error:
        raise RequestFailed(str(error)) from error
    finally:
        await client.close()
    if isinstance(done, ScaledElsewhere):
        raise RequestFailed(f"nothing was changed: {done.reason}")
    lines = [f"pool {pool} scaled to {done.pods} pods", *([done.note] if done.note else [])]
    output.result({"pool": pool, "pods": done.pods, "note": done.note}, lines)


async def _known_pods(target: PlatformTarget, pool: str) -> Mapping[str, PodState]:
    """The registry's pods; raises RequestFailed where an autoscaler would set the number back."""
    async with target.registry() as registry:
        plans = await AutoscalerLog(registry).records()
        if plans.leader is not None:
            raise RequestFailed(
                f"nothing was changed: autoscaler {plans.leader.holder} decides about the pods of "
                f"pool {pool}; change minReplicas and maxReplicas of its InferenceService, or stop "
                "the autoscaler"
            )
        return (await registry.cluster()).pods
