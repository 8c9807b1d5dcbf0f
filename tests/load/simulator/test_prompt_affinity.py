"""Conversations in the simulator: the gateway's own policies, and pods that keep prompts."""

from typing import Any

import pytest

from load.simulator.cluster.cluster_file import cluster_of
from load.simulator.simulation import Simulation
from registry.domain.model import RoutingPolicy
from tests.load.simulator.traces import trace

MODEL: dict[str, Any] = {
    "name": "m", "size": "1MB", "infer": {1: "10ms"}, "infer_per_token": "10ms",
    "generation": "continuous", "input": "tokens", "prefill": "1ms", "prefix_cache": 100_000,
    "at": {f"n-{number}": "device" for number in range(4)},
}  # fmt: skip
TURNS, TALKS, FIRST_TURN = 6, 8, 4


def hit_share(policy: RoutingPolicy) -> float:
    """Of all prompts' tokens: conversations whose turns come in another order each time."""
    plan = cluster_of(
        {
            "nodes": [{"name": "n", "count": 4, "pods": [{"slots": 16, "memory": "1GB"}]}],
            "models": [MODEL],
        },
        source="test",
    )
    talks = [(turn, (talk * 5 + turn) % TALKS) for turn in range(TURNS) for talk in range(TALKS)]
    blocks = [[100 * talk + at for at in range(FIRST_TURN + turn)] for turn, talk in talks]
    sizes = [512 * len(each) for each in blocks]
    arrivals = trace(
        [(1.5 * at, "m") for at in range(len(talks))],
        tokens=[100] * len(talks),
        items=sizes,
        blocks=blocks,
    )
    simulation = Simulation(plan, arrivals, policy, 0)
    assert all(row["status"] == 200 for batch in simulation for row in batch.to_pylist())
    return simulation.summary.cached_tokens / sum(sizes)


@pytest.mark.parametrize(
    "policy", [RoutingPolicy.AUTO, RoutingPolicy.COLOCATION, RoutingPolicy.COLOCATION_QUEUEING]
)
def test_turns_go_where_their_conversation_was(policy: RoutingPolicy) -> None:
    blocks = TALKS * sum(FIRST_TURN + turn for turn in range(TURNS))
    most = 1 - TALKS * (FIRST_TURN + TURNS - 1) / blocks  # each block is new once
    assert hit_share(policy) > 0.8 * most
    assert hit_share(RoutingPolicy.ROUND_ROBIN) < 0.5 * most
