"""Gateways report arrivals and queued requests to the registry."""

import time

from registry.domain.demand import CountWindow
from registry.domain.model import ModelName, RoutingPolicy
from registry.redis.client import Registry
from registry.redis.reports import ArrivalLog
from tests.gateway.gateway_harness import GatewayHarness
from tests.servers import wait_until


def counted(harness: GatewayHarness, name: ModelName) -> int:
    """Arrivals of a model as Redis counts them."""

    async def read(registry: Registry) -> int:
        now_s = time.time()
        found = await ArrivalLog(registry).read(CountWindow.MINUTE, now_s - 3600, now_s + 60)
        return sum(each.count for each in found if each.model == name)

    return harness.run(read)


def _queued(harness: GatewayHarness) -> dict[str, int]:
    async def read(registry: Registry) -> dict[str, int]:
        waiting = await ArrivalLog(registry).queue_stats()
        return {str(name): each.requests for name, each in waiting.items()}

    return harness.run(read)


def test_every_request_is_counted_once(harness: GatewayHarness) -> None:
    spec, _ = harness.start_warm_pod()
    for _ in range(7):
        assert harness.predict(spec).status_code == 200
    wait_until(lambda: counted(harness, spec.name) == 7, what="7 arrivals")


def test_queued_requests_are_reported_and_then_withdrawn(harness: GatewayHarness) -> None:
    spec = harness.declare(routing=RoutingPolicy.COLOCATION_QUEUEING)
    responses = [harness.predict_in_background(spec) for _ in range(2)]
    wait_until(lambda: _queued(harness) == {str(spec.name): 2}, what="two queued")
    harness.start_pods("pod-a", warm=spec)
    assert [response.result().status_code for response in responses] == [200, 200]
    wait_until(lambda: _queued(harness) == {}, what="none queued")
