"""A cold adapter through a real gateway: it is loaded where its base is."""

import pytest

from registry.domain.model import ModelName, ModelPolicy, ModelSpec
from tests.gateway.gateway_harness import GatewayHarness


@pytest.mark.parametrize("policy", ["auto", "colocation"])
def test_a_cold_adapter_goes_where_its_base_is(harness: GatewayHarness, policy: str) -> None:
    base = harness.declare()
    adapter = ModelSpec(
        ModelName("default", f"{base.name.name}-adapter"),
        "file:///adapter",
        base=base.name.name,
        policy=ModelPolicy(routing=policy),
    )
    harness.run(lambda registry: registry.put_models([adapter]))
    pods = harness.start_pods("pod-a", "pod-b", "pod-c")
    pods.control("pod-b", "warm", base.key)
    harness.wait_synced()
    response = harness.predict_in_background(adapter).result()
    assert response.status_code == 200
    assert response.headers["x-pilotlight-pod"] == "pod-b"
    assert response.headers["x-pilotlight-reason"] == "cold"
