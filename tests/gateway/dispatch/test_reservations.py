"""Optimistic reservations of short requests: registration, collisions, counts."""

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest

from gateway.dispatch import reservations
from registry.domain.model import ModelSpec, RoutingPolicy
from registry.domain.pod import PodReport, Samples
from tests import servers
from tests.gateway.gateway_harness import GatewayHarness, PodProcess
from tests.gateway.placer_harness import PlacerHarness, eventually, running_placer, with_placer
from tests.registry.redis.clients import terms

SHORT_S = 0.001


def samples_of(spec: ModelSpec, infer_s: float) -> tuple[Samples, ...]:
    times_s = {"preprocess": 0.0001, "infer": infer_s, "postprocess": 0.0001}
    return tuple(Samples(spec.key, measure, (value,)) for measure, value in times_s.items())


async def report_samples(
    harness: PlacerHarness, spec: ModelSpec, epoch: int, infer_s: float = SHORT_S
) -> None:
    report = PodReport(samples=samples_of(spec, infer_s))
    await harness.registry.heartbeat("pod-a", epoch, report, lease_ttl_s=60)
    await eventually(lambda: harness.watch.state.measured(spec.key).stages.is_measured)


async def a_warm_pod(
    harness: PlacerHarness, *, infer_s: float = SHORT_S, **policy: Any
) -> ModelSpec:
    spec = await harness.declare("m", **policy)
    epoch = await harness.register_pod("pod-a", slots=2, warm=spec)
    await report_samples(harness, spec, epoch, infer_s)
    return spec


@pytest.fixture
def never_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the test's machine is."""
    monkeypatch.setattr(reservations, "REGISTER_AFTER_S", 3600.0)


@pytest.mark.usefixtures("never_registered")
@with_placer
async def test_a_short_request_reserves_without_the_registry(harness: PlacerHarness) -> None:
    spec = await a_warm_pod(harness)
    placement = await harness.place(spec)
    pod = harness.watch.state.pods["pod-a"]
    assert placement.reservation.is_local
    assert pod.slots_busy == pod.inferring == 1
    assert await harness.slots_used("pod-a") == 0
    harness.release(placement)
    assert pod.slots_busy == pod.inferring == harness.reservations.held_total == 0


@with_placer
async def test_optimistic_reservations_count_at_once(harness: PlacerHarness) -> None:
    spec = await a_warm_pod(harness, routing=RoutingPolicy.COLOCATION_QUEUEING)
    held = [await harness.place(spec) for _ in range(2)]
    third = harness.place(spec)
    await harness.wait_queued(1)
    harness.release(held[0])
    assert (await third).reservation.entry.name == "pod-a"


@pytest.mark.parametrize(
    ("infer_s", "policy"),
    [
        pytest.param(0.5, {}, id="long"),
        pytest.param(
            SHORT_S,
            {"routing": RoutingPolicy.REMOTE_PROXY, "target_ongoing_requests": 3},
            id="with-target",
        ),
    ],
)
@with_placer
async def test_reserves_with_the_registry(
    harness: PlacerHarness, infer_s: float, policy: dict[str, Any]
) -> None:
    spec = await a_warm_pod(harness, infer_s=infer_s, **policy)
    placement = await harness.place(spec)
    assert not placement.reservation.is_local
    assert await harness.slots_used("pod-a") == 1


@with_placer
async def test_an_unmeasured_request_reserves_with_the_registry(harness: PlacerHarness) -> None:
    spec = await harness.declare("m")
    await harness.register_pod("pod-a", warm=spec)
    assert not (await harness.place(spec)).reservation.is_local


@with_placer
async def test_an_optimistic_reservation_that_lasts_is_registered(harness: PlacerHarness) -> None:
    spec = await a_warm_pod(harness)
    placement = await harness.place(spec)
    await eventually(lambda: not placement.reservation.is_local)
    assert await harness.slots_used("pod-a") == 1
    assert harness.watch.state.pods["pod-a"].slots_busy == 1
    harness.release(placement)
    assert harness.watch.state.pods["pod-a"].slots_busy == 0
    await harness.wait_slots_used("pod-a", 0)


@pytest.mark.slow
@with_placer
async def test_a_refused_registration_is_retried_while_the_request_continues(
    harness: PlacerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reservations, "REGISTER_AFTER_S", 2.0)
    spec = await a_warm_pod(harness)
    optimistic = await asyncio.gather(*(harness.place(spec) for _ in range(2)))
    foreign = await asyncio.gather(
        *(harness.reserve_elsewhere(spec, "pod-a") for _ in range(2))
    )  # before ours can be registered
    await asyncio.sleep(2 * reservations.REGISTER_AFTER_S)  # a registration was refused
    assert all(placement.reservation.is_local for placement in optimistic)
    for reservation_id in foreign:
        harness.registry.release(reservation_id, terms("pod-a"))
    await eventually(lambda: not any(placement.reservation.is_local for placement in optimistic))
    assert await harness.slots_used("pod-a") == 2


@pytest.mark.slow
@with_placer
async def test_counts_return_to_zero_whenever_reservations_are_released(
    harness: PlacerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, during and after the registration."""
    monkeypatch.setattr(reservations, "REGISTER_AFTER_S", 0.01)
    holds = random.Random(7)
    spec = await a_warm_pod(harness, routing=RoutingPolicy.COLOCATION_QUEUEING)

    async def one() -> None:
        placement = await harness.place(spec)
        await asyncio.sleep(holds.uniform(0, 0.03))
        harness.release(placement)

    await asyncio.gather(*(one() for _ in range(200)))
    pod = harness.watch.state.pods["pod-a"]
    await eventually(lambda: pod.slots_busy == pod.inferring == 0)
    await harness.wait_slots_used("pod-a", 0)
    assert pod.slots_busy == pod.inferring == harness.reservations.held_total == 0


@pytest.mark.usefixtures("never_registered")
@with_placer
async def test_after_a_collision_the_pod_gets_no_optimistic_reservations(
    harness: PlacerHarness,
) -> None:
    spec = await a_warm_pod(harness)
    first = await harness.place(spec)
    assert harness.reservations.record_collision(first.reservation)
    harness.release(first)
    second = (await harness.place(spec)).reservation
    assert not second.is_local
    assert not harness.reservations.record_collision(second)


@pytest.mark.usefixtures("never_registered")
def test_without_redis_a_full_pod_is_not_a_collision(tmp_path: Path, pool: str) -> None:
    """The registry could not have refused it: the next attempt must back off and cost a token."""

    async def test(harness: PlacerHarness, server: servers.RedisServer) -> None:
        spec = await a_warm_pod(harness)
        optimistic = await harness.place(spec)
        server.stop()
        assert harness.reservations.record_collision(optimistic.reservation)
        harness.release(optimistic)
        registered = await harness.place(spec)
        assert registered.reservation.is_local
        assert not harness.reservations.record_collision(registered.reservation)
        harness.release(registered)

    async def run() -> None:
        with servers.redis_server(tmp_path) as server:
            async with running_placer(server.url, pool) as harness, asyncio.timeout(120):
                await test(harness, server)

    asyncio.run(run())


def is_measured(harness: GatewayHarness, spec: ModelSpec) -> bool:
    _, _, snapshot = harness.run(lambda registry: registry.transactions.snapshot())
    return any(key == spec.key for key, _ in snapshot.samples)


def report_short_requests(harness: GatewayHarness, spec: ModelSpec, pods: PodProcess) -> None:
    samples = [[one.key, one.measure, list(one.values_s)] for one in samples_of(spec, SHORT_S)]
    pods.control("pod-a", "samples", json.dumps(samples))
    servers.wait_until(lambda: is_measured(harness, spec), what="samples in the registry")


@pytest.mark.slow
def test_a_short_request_with_the_id_of_an_earlier_one_is_resent(harness: GatewayHarness) -> None:
    spec, pods = harness.start_warm_pod()
    report_short_requests(harness, spec, pods)
    harness.wait_synced()
    for x_test in ("", "close=reused"):
        response = harness.predict(spec, x_request_id="mine", x_test=x_test)
        assert response.status_code == 200, response.text
    assert pods.counts("pod-a")["executed"] == 2


@pytest.mark.slow
def test_optimistic_reservations_of_two_gateways_lose_no_request(
    harness: GatewayHarness, tmp_path: Path, redis: servers.RedisServer
) -> None:
    spec = harness.declare(routing=RoutingPolicy.COLOCATION_QUEUEING)
    pods = harness.start_pods("pod-a", "pod-b", slots=1, warm=spec)
    report_short_requests(harness, spec, pods)
    with servers.gateway(tmp_path, redis_url=redis.url, pool=harness.pool) as second:
        harness.wait_synced(second)
        harness.wait_synced()
        urls = [harness.url_of(spec), harness.url_of(spec, second)]
        responses = [
            harness.threads.submit(
                harness.client.post, urls[n % 2], content=b"{}", headers={"x-test": "delay=0.002"}
            )
            for n in range(400)
        ]
        statuses = [response.result(timeout=120).status_code for response in responses]
    assert statuses == [200] * 400
    assert pods.total("executed") == 400
    assert max(pods.counts(pod)["max_busy"] for pod in pods.ports) == 1
    harness.wait_idle(pods)
