"""Liu's requests at once to a cold model (thesis section 3.1) on a running platform."""

from dataclasses import replace

from registry.domain.model import ModelPolicy
from research.demo import SENTENCE
from research.demo.session import LiveSession, gather_requests, t5
from research.experiments.liu.replicas_run import ReplicasRun

_SCALING_TIMEOUT_S = 180.0


async def run_concurrent(session: LiveSession, requests: int) -> ReplicasRun:
    """Section 3.1: translations at once, with the model cold on the one pod at the start."""
    cluster = session.platform.cluster
    await cluster.wait_until(
        lambda: len(cluster.state.pods) == 1, timeout_s=_SCALING_TIMEOUT_S, what="one pod"
    )
    spec = replace(t5("liu-31"), policy=ModelPolicy(max_batch_size=1, queue_timeout_s=300.0))
    await session.create_models([spec])
    return ReplicasRun(
        tuple(await gather_requests(*(session.predict(spec, SENTENCE) for _ in range(requests))))
    )
