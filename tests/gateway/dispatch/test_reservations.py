"""Brief requests reserve without asking: what they save, and what must not go wrong by it."""

from __future__ import annotations

import asyncio
import json
import random
from typing import TYPE_CHECKING, Any

import pytest

from gateway.dispatch import reservations
from registry.domain.model import RoutingPolicy
from registry.domain.pod import PodReport, Samples
from tests import servers
from tests.gateway.dispatcher_harness import Desk, WithDesk, a_desk, until

if TYPE_CHECKING:
    from pathlib import Path

    from registry.domain.model import ModelSpec
    from tests.gateway.conftest import Floor

BRIEF_S = 0.001


def samples_of(spec: ModelSpec, infer_s: float) -> tuple[Samples, ...]:
    times_s = {"preprocess": 0.0001, "infer": infer_s, "postprocess": 0.0001}
    return tuple(Samples(spec.key, measure, (value,)) for measure, value in times_s.items())


async def measured(desk: Desk, spec: ModelSpec, epoch: int, infer_s: float = BRIEF_S) -> None:
    report = PodReport(samples=samples_of(spec, infer_s))
    await desk.registry.heartbeat("pod-a", epoch, report, lease_ttl_s=60)
    await until(lambda: desk.watch.state.measured(spec.key).stages.is_measured)


async def a_warm_pod(desk: Desk, *, infer_s: float = BRIEF_S, **policy: Any) -> ModelSpec:
    spec = await desk.declare("m", **policy)
    epoch = await desk.pod("pod-a", slots=2, warm=spec)
    await measured(desk, spec, epoch, infer_s)
    return spec


@pytest.fixture
def never_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a test may take between two of its lines."""
    monkeypatch.setattr(reservations, "REGISTER_AFTER_S", 3600.0)


@pytest.mark.usefixtures("never_told")
def test_a_brief_request_does_not_ask(with_desk: WithDesk) -> None:
    async def test(desk: Desk) -> None:
        spec = await a_warm_pod(desk)
        placement = await desk.ask(spec)
        pod = desk.watch.state.pods["pod-a"]
        assert placement.reservation.is_local
        assert pod.slots_busy == pod.inferring == 1
        assert await desk.slots_used("pod-a") == 0
        desk.reservations.release(placement.reservation)
        assert pod.slots_busy == pod.inferring == desk.reservations.held_total == 0

    with_desk(test)


def test_its_slots_count_at_once_for_those_that_come_next(with_desk: WithDesk) -> None:
    async def test(desk: Desk) -> None:
        spec = await a_warm_pod(desk, routing=RoutingPolicy.COLOCATION_QUEUEING)
        held = [await desk.ask(spec) for _ in range(2)]
        third = desk.ask(spec)
        await desk.waiting(1)
        desk.reservations.release(held[0].reservation)
        desk.dispatcher.notify_change()
        assert (await third).reservation.entry.name == "pod-a"

    with_desk(test)


@pytest.mark.parametrize(
    ("infer_s", "policy"),
    [
        pytest.param(0.5, {}, id="long"),
        pytest.param(
            BRIEF_S,
            {"routing": RoutingPolicy.REMOTE_PROXY, "target_ongoing_requests": 3},
            id="bound-by-target",
        ),
    ],
)
def test_others_ask(with_desk: WithDesk, infer_s: float, policy: dict[str, Any]) -> None:
    async def test(desk: Desk) -> None:
        spec = await a_warm_pod(desk, infer_s=infer_s, **policy)
        placement = await desk.ask(spec)
        assert not placement.reservation.is_local
        assert await desk.slots_used("pod-a") == 1

    with_desk(test)


def test_one_never_measured_asks(with_desk: WithDesk) -> None:
    async def test(desk: Desk) -> None:
        spec = await desk.declare("m")
        await desk.pod("pod-a", warm=spec)
        assert not (await desk.ask(spec)).reservation.is_local

    with_desk(test)


def test_one_that_takes_long_after_all_is_told_of(with_desk: WithDesk) -> None:
    async def test(desk: Desk) -> None:
        spec = await a_warm_pod(desk)
        placement = await desk.ask(spec)
        await until(lambda: not placement.reservation.is_local)
        assert await desk.slots_used("pod-a") == 1
        assert desk.watch.state.pods["pod-a"].slots_busy == 1
        desk.reservations.release(placement.reservation)
        assert desk.watch.state.pods["pod-a"].slots_busy == 0
        await desk.redis_counts("pod-a", 0)

    with_desk(test)


def test_one_that_is_refused_when_told_of_runs_on_and_is_told_of_later(
    with_desk: WithDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reservations, "REGISTER_AFTER_S", 2.0)

    async def test(desk: Desk) -> None:
        spec = await a_warm_pod(desk)
        ours = await asyncio.gather(*(desk.ask(spec) for _ in range(2)))
        others = await asyncio.gather(
            *(desk.foreign_reservation(spec, "pod-a") for _ in range(2))
        )  # asked for before ours can be told of
        await asyncio.sleep(2 * reservations.REGISTER_AFTER_S)  # it must have been told, in vain
        assert all(placement.reservation.is_local for placement in ours)
        for reservation_id in others:
            desk.registry.release(reservation_id, entry="pod-a", predict="pod-a")
        await until(lambda: not any(placement.reservation.is_local for placement in ours))
        assert await desk.slots_used("pod-a") == 2

    with_desk(test)


def test_counts_end_at_nothing_whenever_they_are_given_back(
    with_desk: WithDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, while and after the registry is told."""
    monkeypatch.setattr(reservations, "REGISTER_AFTER_S", 0.01)
    holds = random.Random(7)

    async def test(desk: Desk) -> None:
        spec = await a_warm_pod(desk, routing=RoutingPolicy.COLOCATION_QUEUEING)

        async def one() -> None:
            placement = await desk.ask(spec)
            await asyncio.sleep(holds.uniform(0, 0.03))
            desk.reservations.release(placement.reservation)
            desk.dispatcher.notify_change()

        await asyncio.gather(*(one() for _ in range(200)))
        pod = desk.watch.state.pods["pod-a"]
        await until(lambda: pod.slots_busy == pod.inferring == 0)
        await desk.redis_counts("pod-a", 0)
        assert pod.slots_pending == pod.ongoing_pending == desk.reservations.held_total == 0

    with_desk(test)


@pytest.mark.usefixtures("never_told")
def test_after_a_collision_requests_to_the_pod_ask(with_desk: WithDesk) -> None:
    async def test(desk: Desk) -> None:
        spec = await a_warm_pod(desk)
        first = (await desk.ask(spec)).reservation
        assert desk.reservations.note_collision(first)
        desk.reservations.release(first)
        second = (await desk.ask(spec)).reservation
        assert not second.is_local
        assert not desk.reservations.note_collision(second)

    with_desk(test)


@pytest.mark.usefixtures("never_told")
def test_without_redis_a_full_pod_is_no_collision(tmp_path: Path, pool: str) -> None:
    """Asking would have told nothing: the next try is to wait, and to cost its token."""

    async def test(desk: Desk, server: servers.RedisServer) -> None:
        spec = await a_warm_pod(desk)
        brief = (await desk.ask(spec)).reservation
        server.stop()
        assert desk.reservations.note_collision(brief)
        desk.reservations.release(brief)
        asked = (await desk.ask(spec)).reservation
        assert asked.is_local
        assert not desk.reservations.note_collision(asked)
        desk.reservations.release(asked)

    async def run() -> None:
        with servers.redis_server(tmp_path) as server:
            async with a_desk(server.url, pool) as desk, asyncio.timeout(120):
                await test(desk, server)

    asyncio.run(run())


def is_measured(floor: Floor, spec: ModelSpec) -> bool:
    _, _, snapshot = floor.do(lambda registry: registry.transactions.snapshot())
    return any(key == spec.key for key, _ in snapshot[2])


@pytest.mark.slow
def test_two_gateways_that_do_not_ask_lose_no_request(
    floor: Floor, tmp_path: Path, redis: servers.RedisServer
) -> None:
    spec = floor.declare(routing=RoutingPolicy.COLOCATION_QUEUEING)
    pods = floor.pods("pod-a", "pod-b", slots=1, warm=spec)

    samples = [[one.key, one.measure, list(one.values_s)] for one in samples_of(spec, BRIEF_S)]
    pods.control("pod-a", "samples", json.dumps(samples))
    servers.wait_until(lambda: is_measured(floor, spec), what="samples in the registry")
    with servers.gateway(tmp_path, redis_url=redis.url, pool=floor.pool) as second:
        floor.wait_caught_up(second)
        floor.wait_caught_up()
        urls = [floor.url_of(spec), floor.url_of(spec, second)]
        answers = [
            floor.threads.submit(
                floor.client.post, urls[n % 2], content=b"{}", headers={"x-test": "delay=0.002"}
            )
            for n in range(400)
        ]
        statuses = [answer.result(timeout=120).status_code for answer in answers]
    assert statuses == [200] * 400
    assert pods.total("executed") == 400
    assert max(pods.counts(pod)["most_busy"] for pod in pods.ports) == 1
    floor.wait_idle(pods)
