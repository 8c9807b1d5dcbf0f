"""Models woken at once, by requests at two gateways and by the autoscaler: one load of each."""

import asyncio
from contextlib import AsyncExitStack

from autoscaler.loading_policies.predictive import Predictive, predictive
from gateway.telemetry.arrival_counter import ArrivalCounter
from registry.domain.model import ModelSpec, Tier
from tests.autoscaler.conftest import Pod, Stage, model
from tests.gateway.placer_harness import PlacerHarness, running_placer
from tests.registry.redis.clients import until

MODELS = 25
SLOTS = 16
LIMIT_S = 60.0


async def test_a_burst_loads_each_model_once(stage: Stage) -> None:
    """The first pod has too few slots and claims late; others start before it does."""
    specs = [model(f"m{number:02}") for number in range(MODELS)]
    await stage.registry.put_models(specs)
    rule = predictive(Predictive(loads_for_queue=True))
    async with AsyncExitStack() as stack:
        gateways = [
            await stack.enter_async_context(running_placer(stage.url, stage.pool, name))
            for name in ("g", "h")
        ]
        group = await stack.enter_async_context(asyncio.TaskGroup())
        reports = [
            group.create_task(_counter(each, number).run()) for number, each in enumerate(gateways)
        ]
        pods: dict[str, Pod] = {}
        placed: set[str] = set()
        may_end, may_claim = asyncio.Event(), asyncio.Event()

        async def serve(gateway: PlacerHarness, spec: ModelSpec) -> None:
            """Place a request, and carry out the load that its reservation claimed."""
            placement = await gateway.place(spec)
            reserved = placement.reservation
            pod, token = pods[reserved.predict.name], reserved.load_token
            if token:
                await pod.registry.start_load(pod.name, pod.epoch, spec.key, token, Tier.REMOTE)
            placed.add(spec.key)
            await may_end.wait()
            if token:
                await pod.registry.finish_load(pod.name, pod.epoch, spec.key, token, 100)
            gateway.release(placement)

        served = [group.create_task(serve(each, spec)) for spec in specs for each in gateways]
        await stack.enter_async_context(stage.autoscaler(rule))
        pods["a"] = await stage.pod("a", slots=SLOTS, memory_bytes=10**12, may_claim=may_claim)
        await until(lambda: pods["a"].loads, timeout_s=LIMIT_S, what="loads asked of the first pod")
        for name in ("b", "c"):
            pods[name] = await stage.pod(name, slots=SLOTS)
        await until(lambda: len(placed) == MODELS, timeout_s=LIMIT_S, what="all claimed")
        may_claim.set()
        await until(lambda: not pods["a"].claiming, timeout_s=LIMIT_S, what="all loads claimed")
        may_end.set()
        await asyncio.gather(*served)
        for task in reports:
            task.cancel()
    state = await stage.registry.cluster()
    held = {spec.key: set(state.holders(spec.key)) for spec in specs}
    assert {key: pods for key, pods in held.items() if len(pods) != 1} == {}


def _counter(gateway: PlacerHarness, number: int) -> ArrivalCounter:
    queue = gateway.placer
    return ArrivalCounter(
        gateway.registry,
        f"g{number}",
        queue.queue_stats,
        lambda: queue.queued_total,
        asyncio.Event(),
    )
