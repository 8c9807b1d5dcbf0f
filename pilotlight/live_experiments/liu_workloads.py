"""Liu's workloads (thesis sections 6.2 and 6.4) on a running platform."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import TYPE_CHECKING

from load.experiments.liu.runs import SimpleRun, WinRun
from load.experiments.liu.scenarios import SENTENCE, SIMPLE_REQUESTS, MachinePace
from pilotlight.live_experiments.timed_requests import gather_requests, timed_request
from registry.domain.model import ModelName, ModelPolicy, ModelSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    import httpx

    from load.experiments.liu.runs import TimedAnswer
    from load.experiments.liu.scenarios import WinScenario
    from pilotlight.platform.platform import Platform

_SETTLE_TIMEOUT_S = 30.0


def t5(name: str, folder: str = "t5-small") -> ModelSpec:
    """A T5 of the object store under its own name; requests name their routing policy.

    The batch size is 1, as in the thesis: batches would make a pod that infers for other pods
    several times as fast.
    """
    return ModelSpec(
        name=ModelName("default", name),
        storage_uri=f"s3://models/{folder}",
        policy=ModelPolicy(max_batch_size=1),
    )


async def make_cold(platform: Platform, client: httpx.AsyncClient, spec: ModelSpec) -> None:
    """Delete a model, wait until no pod holds it in any tier, create it again."""
    await platform.cluster.registry.delete_models([spec.name])
    await platform.cluster.wait_until(
        lambda: not platform.cluster.state.holders(spec.key),
        timeout_s=_SETTLE_TIMEOUT_S,
        what=f"no pod holds {spec.name}",
    )
    await create_models(platform, client, [spec])


async def create_models(
    platform: Platform, client: httpx.AsyncClient, specs: Sequence[ModelSpec]
) -> None:
    """Register models; return when the gateway serves them."""
    await platform.cluster.registry.put_models(specs)
    for spec in specs:
        await _wait_served(client, spec)


async def _wait_served(client: httpx.AsyncClient, spec: ModelSpec) -> None:
    """Return when the gateway, which follows the registry with a delay, has the model."""
    async with asyncio.timeout(_SETTLE_TIMEOUT_S):
        for attempt in itertools.count():
            if (await client.get(f"/v2/models/{spec.name.name}")).is_success:
                return
            await asyncio.sleep(min(0.001 * 2**attempt, 0.1))


async def wait_idle(platform: Platform) -> None:
    """Return when no slot is reserved; a slot is released shortly after its response is sent."""
    await platform.cluster.wait_until(
        lambda: not any(pod.slots_used for pod in platform.cluster.state.pods.values()),
        timeout_s=_SETTLE_TIMEOUT_S,
        what="all slots free",
    )


async def run_simple(
    platform: Platform, client: httpx.AsyncClient, policy: str, seed: int,
    *, model: str = "t5-small", requests: int = SIMPLE_REQUESTS,
) -> SimpleRun:  # fmt: skip
    """Section 6.2: sequential translations, with the model cold on all pods at the start."""
    spec = t5("liu-62", model)
    await make_cold(platform, client, spec)
    answers = []
    for index in range(requests):
        headers = {
            "x-pilotlight-policy": policy,
            "x-pilotlight-seed": str(seed * 1000 + index),
        }
        answers.append(await _translate(client, spec, headers))
        await wait_idle(platform)
    return SimpleRun(policy, seed, tuple(answers))


async def measure_machine_pace(platform: Platform, client: httpx.AsyncClient) -> MachinePace:
    """Load and inference time of a single request."""
    spec = t5("liu-64")
    await make_cold(platform, client, spec)
    cold = await _translate(client, spec, {"x-pilotlight-policy": "colocation"})
    warm = await _translate(client, spec, {"x-pilotlight-policy": "colocation"})
    await wait_idle(platform)
    return MachinePace(
        load_s=cold.stages_s.get("load", 0.0), infer_s=warm.stages_s.get("infer", 0.0)
    )


async def run_win(
    platform: Platform, client: httpx.AsyncClient, scenario: WinScenario, policy: str,
    sleep_s: float,
) -> WinRun:  # fmt: skip
    """Section 6.4: two concurrent translations, after a warming one if the scenario has one."""
    spec = t5(scenario.model)
    await make_cold(platform, client, spec)
    headers = {"x-pilotlight-policy": policy}
    if work := scenario.simulated_work(sleep_s):
        headers["x-pilotlight-simulate"] = work
    warming_s = 0.0
    if scenario.is_prewarmed:
        warming_s = (await _translate(client, spec, headers)).latency_s
        await wait_idle(platform)
    started_s = time.perf_counter()
    answers = await gather_requests(*(_translate(client, spec, headers) for _ in range(2)))
    concurrent_s = time.perf_counter() - started_s
    await wait_idle(platform)
    return WinRun(scenario, policy, sleep_s, warming_s, concurrent_s, tuple(answers))


async def wait_measured(platform: Platform, scenario: WinScenario) -> None:
    """Return when the pods have reported the measurements that `auto` needs, within a second."""
    measured = ["infer", "load:remote"]
    measured += ["network"] if scenario.has_slow_network else []
    measured += ["postprocess"] if scenario.has_postprocessing else []
    key = t5(scenario.model).key
    await platform.cluster.wait_until(
        lambda: all(platform.cluster.state.measured(key).get(name) for name in measured),
        timeout_s=10.0,
        what=f"{scenario.model}: measurements of {', '.join(measured)}",
    )


async def _translate(
    client: httpx.AsyncClient, spec: ModelSpec, headers: dict[str, str]
) -> TimedAnswer:
    name = spec.name.name
    return await timed_request(
        client, f"/v1/models/{name}:predict", {"instances": [SENTENCE]}, headers
    )
