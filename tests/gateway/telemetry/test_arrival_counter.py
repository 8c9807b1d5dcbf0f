"""Gateways count arrivals into the registry, and say who waits."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from registry.domain.demand import CountWindow
from registry.domain.model import RoutingPolicy
from registry.redis.arrivals import ArrivalLog
from tests.servers import wait_until

if TYPE_CHECKING:
    from registry.domain.model import ModelName
    from registry.redis.client import Registry
    from tests.gateway.conftest import Floor


def counted(floor: Floor, name: ModelName) -> int:
    """Arrivals of a model as Redis counts them."""

    async def read(registry: Registry) -> int:
        now_s = time.time()
        found = await ArrivalLog(registry).read(CountWindow.MINUTE, now_s - 3600, now_s + 60)
        return sum(each.count for each in found if each.model == name)

    return floor.do(read)


def _waiting(floor: Floor) -> dict[str, int]:
    async def read(registry: Registry) -> dict[str, int]:
        waiting = await ArrivalLog(registry).queue_stats()
        return {str(name): each.requests for name, each in waiting.items()}

    return floor.do(read)


def test_every_request_is_counted_once(floor: Floor) -> None:
    spec = floor.declare()
    floor.pods("pod-a", warm=spec)
    for _ in range(7):
        assert floor.predict(spec).status_code == 200
    wait_until(lambda: counted(floor, spec.name) == 7, what="7 arrivals")


def test_who_waits_is_told_and_taken_back(floor: Floor) -> None:
    spec = floor.declare(routing=RoutingPolicy.COLOCATION_QUEUEING)
    answers = [floor.in_background(spec) for _ in range(2)]
    wait_until(lambda: _waiting(floor) == {str(spec.name): 2}, what="two wait")
    floor.pods("pod-a", warm=spec)
    assert [answer.result().status_code for answer in answers] == [200, 200]
    wait_until(lambda: _waiting(floor) == {}, what="nobody waits")
