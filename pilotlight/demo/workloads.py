"""Second part of the demo: runs Liu's workloads against a running platform."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import TYPE_CHECKING

from load.experiments.liu.runs import SimpleRun, WinRun
from load.experiments.liu.scenarios import SENTENCE, SIMPLE_REQUESTS, MachinePace
from pilotlight.demo.calls import call, together
from registry.domain.model import ModelName, ModelPolicy, ModelSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    import httpx

    from load.experiments.liu.runs import TimedAnswer
    from load.experiments.liu.scenarios import WinScenario
    from pilotlight.platform.platform import Platform

_SETTLE_S = 30.0


def t5(name: str, folder: str = "t5-small") -> ModelSpec:
    """A T5 of the object store under a name of its own; each request names its policy itself.

    Each is inferred alone, as in the thesis: batches would make the pod that predicts for others
    several times as fast.
    """
    return ModelSpec(
        name=ModelName("default", name),
        storage_uri=f"s3://models/{folder}",
        policy=ModelPolicy(max_batch_size=1),
    )


async def make_cold(platform: Platform, client: httpx.AsyncClient, spec: ModelSpec) -> None:
    """Withdraw a model, wait until no pod has anything of it, declare it again."""
    await platform.registry.delete_models([spec.name])
    await platform.until(
        lambda: not platform.watch.state.holders(spec.key),
        timeout_s=_SETTLE_S,
        what=f"no pod holds {spec.name}",
    )
    await declare(platform, client, [spec])


async def declare(
    platform: Platform, client: httpx.AsyncClient, specs: Sequence[ModelSpec]
) -> None:
    """Declare models; return when the gateway knows them."""
    await platform.registry.put_models(specs)
    for spec in specs:
        await _until_known(client, spec)


async def _until_known(client: httpx.AsyncClient, spec: ModelSpec) -> None:
    """Return when the gateway has heard of a model: news of it takes a moment."""
    async with asyncio.timeout(_SETTLE_S):
        for attempt in itertools.count():
            if (await client.get(f"/v2/models/{spec.name.name}")).is_success:
                return
            await asyncio.sleep(min(0.001 * 2**attempt, 0.1))


async def until_idle(platform: Platform) -> None:
    """Return when no slot is taken: an answer arrives a moment before its slot is given back."""
    await platform.until(
        lambda: not any(pod.slots_used for pod in platform.watch.state.pods.values()),
        timeout_s=_SETTLE_S,
        what="all slots free",
    )


async def run_simple(
    platform: Platform, client: httpx.AsyncClient, policy: str, seed: int,
    *, model: str = "t5-small", requests: int = SIMPLE_REQUESTS,
) -> SimpleRun:  # fmt: skip
    """Section 6.2: sequential translations, the model cold everywhere at the start."""
    spec = t5("liu-62", model)
    await make_cold(platform, client, spec)
    answers = []
    for index in range(requests):
        headers = {
            "x-pilotlight-policy": policy,
            "x-pilotlight-seed": str(seed * 1000 + index),
        }
        answers.append(await _translate(client, spec, headers))
        await until_idle(platform)
    return SimpleRun(policy, seed, tuple(answers))


async def measure_pace(platform: Platform, client: httpx.AsyncClient) -> MachinePace:
    """What a cold and a warm request cost now, alone on the machine."""
    spec = t5("liu-64")
    await make_cold(platform, client, spec)
    cold = await _translate(client, spec, {"x-pilotlight-policy": "colocation"})
    warm = await _translate(client, spec, {"x-pilotlight-policy": "colocation"})
    await until_idle(platform)
    return MachinePace(
        load_s=cold.stages_s.get("load", 0.0), infer_s=warm.stages_s.get("infer", 0.0)
    )


async def run_win(
    platform: Platform, client: httpx.AsyncClient, scenario: WinScenario, policy: str,
    sleep_s: float,
) -> WinRun:  # fmt: skip
    """Section 6.4: two concurrent translations, after a warming one where the scenario says so."""
    spec = t5(scenario.model)
    await make_cold(platform, client, spec)
    headers = {"x-pilotlight-policy": policy}
    if work := scenario.simulated_work(sleep_s):
        headers["x-pilotlight-simulate"] = work
    warming_s = 0.0
    if scenario.is_prewarmed:
        warming_s = (await _translate(client, spec, headers)).latency_s
        await until_idle(platform)
    started_s = time.perf_counter()
    answers = await together(*(_translate(client, spec, headers) for _ in range(2)))
    concurrent_s = time.perf_counter() - started_s
    await until_idle(platform)
    return WinRun(scenario, policy, sleep_s, warming_s, concurrent_s, tuple(answers))


async def until_measured(platform: Platform, scenario: WinScenario) -> None:
    """Return when the pods have reported what `auto` needs: they do so once a second."""
    measured = ["infer", "load:remote"]
    measured += ["network"] if scenario.has_slow_network else []
    measured += ["postprocess"] if scenario.has_postprocessing else []
    key = t5(scenario.model).key
    await platform.until(
        lambda: all(platform.watch.state.measured(key).get(name) for name in measured),
        timeout_s=10.0,
        what=f"{scenario.model}: measurements of {', '.join(measured)}",
    )


async def _translate(
    client: httpx.AsyncClient, spec: ModelSpec, headers: dict[str, str]
) -> TimedAnswer:
    name = spec.name.name
    return await call(client, f"/v1/models/{name}:predict", {"instances": [SENTENCE]}, headers)
