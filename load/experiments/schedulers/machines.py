"""The cluster: equal machines that serve one request at a time and hold two models."""

from __future__ import annotations

from typing import Final

from load.experiments.schedulers.workload import MODELS, deadlines_s
from load.simulator.cluster.plan import ClusterPlan, ModelPlan, NodePlan, PodPlan
from registry.domain.model import ModelName, ModelPolicy, ModelSpec, RoutingPolicy, Tier
from registry.domain.profile import ProfilePoint

MODELS_PER_MACHINE: Final = 2
"""Blinowski et al. 2024, section 6.1; in bytes, so that every model takes the same memory."""
_MODEL_BYTES: Final = 10**6
_QUEUE_TIMEOUT_S: Final = 3600.0
"""No request is rejected: late requests are served late."""


def profiled_s(plan: ClusterPlan) -> dict[str, dict[str, float]]:
    """Measured times of the models, which schedulers have from the start, by key and measure."""
    return {
        each.spec.key: {
            "infer": each.infer_s(1),
            "share": each.infer_s(1),
            **{f"load:{tier}": seconds for tier, seconds in each.load_s.items()},
        }
        for each in plan.models
    }


def cluster(machines: int, seed: int) -> ClusterPlan:
    """The machines, and the nine models with their deadlines by seed."""
    deadline_s = deadlines_s(seed)
    memory_bytes = MODELS_PER_MACHINE * _MODEL_BYTES
    return ClusterPlan(
        nodes=tuple(
            NodePlan(name, (PodPlan(name, memory_bytes=memory_bytes),))
            for name in (f"machine-{number}" for number in range(machines))
        ),
        models=tuple(
            ModelPlan(
                ModelSpec(
                    ModelName("default", each.name),
                    f"s3://models/{each.name}",
                    policy=ModelPolicy(
                        routing=RoutingPolicy.COLOCATION_QUEUEING,
                        deadline_s=deadline_s[each.name],
                        queue_depth=10**6,
                        queue_timeout_s=_QUEUE_TIMEOUT_S,
                    ),
                ),
                size_bytes=_MODEL_BYTES,
                memory_bytes=_MODEL_BYTES,
                infer=(ProfilePoint(1, each.infer_s),),
                preprocess_s=0.0,
                postprocess_s=0.0,
                assets_s=0.0,
                load_s=dict.fromkeys((Tier.REMOTE, Tier.DISK, Tier.HOST), each.load_s),
                is_batched=False,
            )
            for each in MODELS
        ),
    )
