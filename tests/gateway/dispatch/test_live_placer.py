"""The placer with a real Redis: placement, queueing, cancellation."""

import asyncio

import pytest

from gateway.dispatch.reservations import Placement
from gateway.errors import Rejected
from gateway.routing.decision import Reason
from registry.domain.model import RoutingPolicy
from tests.gateway.asynchronous import run_async
from tests.gateway.placer_harness import PlacerHarness, eventually, running_placer, with_placer
from tests.servers import RedisServer

QUEUEING = RoutingPolicy.COLOCATION_QUEUEING


@with_placer
async def test_a_request_counts_as_work_of_its_pod_until_its_release(
    harness: PlacerHarness,
) -> None:
    spec = await harness.declare("m")
    await harness.register_pod("pod-a", warm=spec)
    work = harness.watch.state.pods["pod-a"].work
    placing = harness.place(spec)
    await asyncio.sleep(0)  # the request is sent to the registry
    assert work.inferences
    placement = await placing
    assert [each.key for each in work.inferences] == [spec.key]
    assert list(work.holders) == list(work.inferences)
    harness.release(placement)
    assert not work.inferences
    assert not work.holders


@with_placer
async def test_a_request_that_is_cancelled_while_it_is_placed_leaves_no_work(
    harness: PlacerHarness,
) -> None:
    spec = await harness.declare("m")
    await harness.register_pod("pod-a", warm=spec)
    work = harness.watch.state.pods["pod-a"].work
    placing = harness.place(spec)
    await asyncio.sleep(0)  # the request is sent to the registry
    assert work.inferences
    placing.cancel()
    await asyncio.gather(placing, return_exceptions=True)
    await eventually(lambda: not work.inferences and not work.holders)


@with_placer
async def test_a_request_cancelled_during_its_dispatch_holds_no_slot(
    harness: PlacerHarness,
) -> None:
    spec = await harness.declare("m", routing=QUEUEING)
    await harness.register_pod("pod-a", warm=spec)
    first = await harness.place(spec)
    second = harness.place(spec)
    await harness.wait_queued(1)
    harness.release(first)
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    third = await asyncio.wait_for(harness.place(spec), 60)
    assert third.reservation.entry.name == "pod-a"
    assert harness.reservations.held_total == 1
    assert await harness.slots_used("pod-a") == 1


@pytest.mark.parametrize("steps", range(6))
@with_placer
async def test_a_request_cancelled_at_any_step_leaks_no_slot(
    harness: PlacerHarness, steps: int
) -> None:
    spec = await harness.declare("m", routing=QUEUEING)
    await harness.register_pod("pod-a", warm=spec)
    leaver = harness.place(spec)
    for _ in range(steps):
        await asyncio.sleep(0)
    leaver.cancel()
    result = (await asyncio.gather(leaver, return_exceptions=True))[0]
    if isinstance(result, Placement):
        harness.release(result)
    await asyncio.wait_for(harness.place(spec), 60)
    assert harness.reservations.held_total == 1
    assert await harness.slots_used("pod-a") == 1


@with_placer
async def test_deleting_a_model_rejects_its_queued_requests(harness: PlacerHarness) -> None:
    spec = await harness.declare("m", routing=QUEUEING)
    await harness.register_pod("pod-a", warm=spec)
    await harness.place(spec)
    second = harness.place(spec)
    await harness.wait_queued(1)
    await harness.registry.delete_models([spec.name])
    with pytest.raises(Rejected) as caught:
        await second
    assert caught.value.reason is Reason.MODEL_GONE


@with_placer
async def test_a_new_pod_gets_requests_that_wait_for_pods(harness: PlacerHarness) -> None:
    spec = await harness.declare("m")
    waiting = harness.place(spec)
    await harness.wait_queued(1)
    await harness.register_pod("pod-a")
    assert (await waiting).reservation.entry.name == "pod-a"


@run_async
async def test_two_gateways_never_exceed_the_slots(redis: RedisServer, pool: str) -> None:
    async with running_placer(redis.url, pool) as one, running_placer(redis.url, pool) as other:
        spec = await one.declare("m", routing=QUEUEING)
        await one.register_pod("pod-a", slots=2, warm=spec)
        await one.register_pod("pod-b", slots=1, warm=spec)
        await eventually(lambda: len(other.watch.state.pods) == 2 and other.watch.state.models)
        held: dict[str, int] = {"pod-a": 0, "pod-b": 0}
        max_held = dict(held)

        async def use(harness: PlacerHarness) -> None:
            placement = await harness.place(spec)
            name = placement.reservation.entry.name
            held[name] += 1
            max_held[name] = max(max_held[name], held[name])
            await asyncio.sleep(0.002)
            held[name] -= 1
            harness.release(placement)

        await asyncio.gather(*(use(harness) for _ in range(60) for harness in (one, other)))
        assert max_held == {"pod-a": 2, "pod-b": 1}
        await eventually(lambda: one.watch.state.pods["pod-a"].slots_used == 0)
        await eventually(lambda: other.watch.state.pods["pod-a"].slots_used == 0)
