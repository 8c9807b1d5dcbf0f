"""The dispatcher with a real Redis: who gets a place when, and what leavers leave behind."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from gateway.dispatch.dispatcher import Placement
from gateway.errors import Rejected
from gateway.routing.decision import Reason
from registry.domain.model import RoutingPolicy, Tier
from tests.gateway.dispatcher_harness import Desk, WithDesk, a_desk, until

if TYPE_CHECKING:
    from tests.servers import RedisServer

QUEUEING = RoutingPolicy.COLOCATION_QUEUEING


def test_a_request_gets_the_warm_pod(with_desk: WithDesk) -> None:
    async def test(desk: Desk) -> None:
        spec = await desk.declare("m")
        await desk.pod("pod-a")
        await desk.pod("pod-b", warm=spec)
        placement = await desk.ask(spec)
        assert placement.reservation.entry.name == "pod-b"
        assert placement.reservation.start == "warm"
        assert await desk.slots_used("pod-b") == 1

    with_desk(test)


def test_a_waiting_request_gets_the_slot_that_is_given_back(with_desk: WithDesk) -> None:
    async def test(desk: Desk) -> None:
        spec = await desk.declare("m", routing=QUEUEING)
        await desk.pod("pod-a", warm=spec)
        first = await desk.ask(spec)
        second = desk.ask(spec)
        await desk.waiting(1)
        desk.reservations.release(first.reservation)
        desk.dispatcher.notify_change()
        assert (await second).reservation.entry.name == "pod-a"
        assert await desk.slots_used("pod-a") == 1

    with_desk(test)


def test_a_request_that_leaves_just_when_its_turn_comes_takes_nothing(with_desk: WithDesk) -> None:
    async def test(desk: Desk) -> None:
        spec = await desk.declare("m", routing=QUEUEING)
        await desk.pod("pod-a", warm=spec)
        first = await desk.ask(spec)
        second = desk.ask(spec)
        await desk.waiting(1)
        desk.reservations.release(first.reservation)
        desk.dispatcher.notify_change()
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        third = await asyncio.wait_for(desk.ask(spec), 60)
        assert not desk.running.done()
        assert third.reservation.entry.name == "pod-a"
        assert desk.reservations.held_total == 1
        assert await desk.slots_used("pod-a") == 1

    with_desk(test)


@pytest.mark.parametrize("steps", range(6))
def test_a_request_that_leaves_at_any_step_leaks_no_slot(with_desk: WithDesk, steps: int) -> None:
    async def test(desk: Desk) -> None:
        spec = await desk.declare("m", routing=QUEUEING)
        await desk.pod("pod-a", warm=spec)
        leaver = desk.ask(spec)
        for _ in range(steps):
            await asyncio.sleep(0)
        leaver.cancel()
        result = (await asyncio.gather(leaver, return_exceptions=True))[0]
        if isinstance(result, Placement):
            desk.reservations.release(result.reservation)
        await asyncio.wait_for(desk.ask(spec), 60)
        assert desk.reservations.held_total == 1
        assert await desk.slots_used("pod-a") == 1

    with_desk(test)


def test_everybody_who_waits_for_a_load_says_so(with_desk: WithDesk) -> None:
    async def test(desk: Desk) -> None:
        spec = await desk.declare("m", routing=QUEUEING)
        epoch = await desk.pod("pod-a")
        first = await desk.ask(spec)
        waiting = [desk.ask(spec) for _ in range(3)]
        await desk.waiting(3)
        token = first.reservation.load_token
        await desk.registry.start_load("pod-a", epoch, spec.key, token, Tier.DISK)
        await desk.registry.finish_load("pod-a", epoch, spec.key, token, 1)
        placements = [first]
        for task in waiting:
            desk.reservations.release(placements[-1].reservation)
            desk.dispatcher.notify_change()
            placements.append(await task)
        assert [placement.awaited_tier for placement in placements[1:]] == ["remote"] * 3

    with_desk(test)


def test_whoever_comes_after_the_load_is_warm(with_desk: WithDesk) -> None:
    async def test(desk: Desk) -> None:
        spec = await desk.declare("m", routing=QUEUEING)
        await desk.pod("pod-a", warm=spec)
        first = await desk.ask(spec)
        second = desk.ask(spec)
        await desk.waiting(1)
        desk.reservations.release(first.reservation)
        desk.dispatcher.notify_change()
        assert (await second).awaited_tier is None

    with_desk(test)


def test_fifty_first_requests_claim_one_load(with_desk: WithDesk) -> None:
    async def test(desk: Desk) -> None:
        spec = await desk.declare("m", routing=QUEUEING)
        for n in range(4):
            await desk.pod(f"pod-{n}")
        asked = [desk.ask(spec) for _ in range(50)]
        await desk.waiting(49)
        done = [task.result() for task in asked if task.done()]
        assert [placement.reservation.load_token > 0 for placement in done] == [True]
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)

    with_desk(test)


def test_a_full_queue_refuses(with_desk: WithDesk) -> None:
    async def test(desk: Desk) -> None:
        spec = await desk.declare("m", routing=QUEUEING, queue_depth=1)
        await desk.pod("pod-a", warm=spec)
        await desk.ask(spec)
        second = desk.ask(spec)
        await desk.waiting(1)
        with pytest.raises(Rejected, match="queue-depth is 1") as caught:
            await desk.ask(spec)
        assert caught.value.reason is Reason.QUEUE_FULL
        assert caught.value.retry_after_s
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)

    with_desk(test)


def test_a_model_without_queue_is_served_while_another_waits(with_desk: WithDesk) -> None:
    async def test(desk: Desk) -> None:
        busy = await desk.declare("busy", routing=QUEUEING)
        other = await desk.declare("other", routing=QUEUEING, queue_depth=0)
        await desk.pod("pod-a", warm=busy)
        await desk.pod("pod-b", warm=other)
        await desk.ask(busy)
        waiting = desk.ask(busy)
        await desk.waiting(1)
        assert (await desk.ask(other)).reservation.entry.name == "pod-b"
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)

    with_desk(test)


@pytest.mark.parametrize(
    ("timeout_s", "deadline_s", "reason"),
    [
        pytest.param(0.05, None, Reason.QUEUE_TIMEOUT, id="queue-timeout"),
        pytest.param(5.0, 0.05, Reason.DEADLINE, id="deadline"),
    ],
)
def test_waiting_ends_by(
    with_desk: WithDesk, timeout_s: float, deadline_s: float | None, reason: Reason
) -> None:
    async def test(desk: Desk) -> None:
        spec = await desk.declare("m", routing=QUEUEING, queue_timeout_s=timeout_s)
        await desk.pod("pod-a", warm=spec)
        await desk.ask(spec)
        with pytest.raises(Rejected) as caught:
            await desk.ask(spec, deadline_in_s=deadline_s)
        assert caught.value.reason is reason
        assert desk.dispatcher.queued_total == 0

    with_desk(test)


def test_a_model_that_is_deleted_ends_the_wait_for_it(with_desk: WithDesk) -> None:
    async def test(desk: Desk) -> None:
        spec = await desk.declare("m", routing=QUEUEING)
        await desk.pod("pod-a", warm=spec)
        await desk.ask(spec)
        second = desk.ask(spec)
        await desk.waiting(1)
        await desk.registry.delete_models([spec.name])
        with pytest.raises(Rejected) as caught:
            await second
        assert caught.value.reason is Reason.MODEL_GONE

    with_desk(test)


def test_tenants_take_turns_at_a_saturated_pod(with_desk: WithDesk) -> None:
    async def test(desk: Desk) -> None:
        loud = await desk.declare("m", namespace="loud", routing=QUEUEING)
        quiet = await desk.declare("m", namespace="quiet", routing=QUEUEING)
        epoch = await desk.pod("pod-a", warm=loud)
        await desk.registry.set_tier("pod-a", epoch, quiet.key, Tier.DEVICE, 1)
        first = await desk.ask(loud)
        asked = [desk.ask(loud) for _ in range(4)]
        await desk.waiting(4)
        asked += [desk.ask(quiet) for _ in range(2)]
        await desk.waiting(6)
        served: list[str] = []
        held = first
        while pending := [task for task in asked if not task.done()]:
            desk.reservations.release(held.reservation)
            desk.dispatcher.notify_change()
            done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            (task,) = done
            held = task.result()
            served.append(held.spec.name.namespace)
        assert served == ["loud", "quiet", "loud", "quiet", "loud", "loud"]

    with_desk(test)


def test_a_pod_that_comes_ends_the_wait_for_pods(with_desk: WithDesk) -> None:
    async def test(desk: Desk) -> None:
        spec = await desk.declare("m")
        waiting = desk.ask(spec)
        await desk.waiting(1)
        await desk.pod("pod-a")
        assert (await waiting).reservation.entry.name == "pod-a"

    with_desk(test)


def test_two_desks_never_exceed_the_slots(redis: RedisServer, pool: str) -> None:
    async def test() -> None:
        async with a_desk(redis.url, pool) as one, a_desk(redis.url, pool) as other:
            spec = await one.declare("m", routing=QUEUEING)
            await one.pod("pod-a", slots=2, warm=spec)
            await one.pod("pod-b", slots=1, warm=spec)
            await until(lambda: len(other.watch.state.pods) == 2 and other.watch.state.models)
            held: dict[str, int] = {"pod-a": 0, "pod-b": 0}
            most = dict(held)

            async def use(desk: Desk) -> None:
                placement = await desk.ask(spec)
                name = placement.reservation.entry.name
                held[name] += 1
                most[name] = max(most[name], held[name])
                await asyncio.sleep(0.002)
                held[name] -= 1
                desk.reservations.release(placement.reservation)
                desk.dispatcher.notify_change()

            await asyncio.gather(*(use(desk) for _ in range(60) for desk in (one, other)))
            assert most == {"pod-a": 2, "pod-b": 1}
            await until(lambda: one.watch.state.pods["pod-a"].slots_used == 0)
            await until(lambda: other.watch.state.pods["pod-a"].slots_used == 0)

    asyncio.run(test())
