"""`scale`: set the number of a pool's pods in a Kubernetes cluster, by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autoscaler.kubernetes.cluster_api import connect
from autoscaler.kubernetes.errors import KubernetesError
from autoscaler.kubernetes.pool_scaler import PoolScaler
from autoscaler.kubernetes.pool_size import LeaveAlone
from pilotlight.errors import RequestFailed

if TYPE_CHECKING:
    from pilotlight.commands.target import Target
    from pilotlight.output import Output


async def scale(target: Target, output: Output, pool: str, pods: int) -> None:
    """Scale a pool; the emptiest pods go first, as far as the registry knows them."""
    known = (await target.cluster()).pods if target.redis_url else {}
    client = await connect()
    try:
        done = await PoolScaler(client).scale(pool, pods, known)
    except KubernetesError as error:
        raise RequestFailed(str(error)) from error
    finally:
        await client.close()
    if isinstance(done, LeaveAlone):
        raise RequestFailed(f"nothing was changed: {done.reason}")
    lines = [f"pool {pool} scaled to {done.pods} pods", *([done.note] if done.note else [])]
    output.result({"pool": pool, "pods": done.pods, "note": done.note}, lines)
