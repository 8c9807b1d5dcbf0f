"""Liu's workloads (thesis sections 6.2 and 6.4) on a running platform."""

import time

from pilotlight.demo.liu_runs import (
    SENTENCE,
    SIMPLE_REQUESTS,
    MachineTimes,
    SimpleRun,
    WinRun,
    WinScenario,
)
from pilotlight.demo.session import LiveSession, gather_requests
from registry.domain.model import ModelName, ModelPolicy, ModelSpec

_MEASURED_TIMEOUT_S = 10.0


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


async def run_simple(
    session: LiveSession,
    policy: str,
    seed: int,
    *,
    model: str = "t5-small",
    requests: int = SIMPLE_REQUESTS,
) -> SimpleRun:
    """Section 6.2: sequential translations, with the model cold on all pods at the start."""
    spec = t5("liu-62", model)
    await session.make_cold(spec)
    answers = []
    for index in range(requests):
        headers = {"x-pilotlight-policy": policy, "x-pilotlight-seed": str(seed * 1000 + index)}
        answers.append(await session.predict(spec, SENTENCE, headers))
        await session.wait_idle()
    return SimpleRun(policy, seed, tuple(answers))


async def measure_machine_times(session: LiveSession) -> MachineTimes:
    """Load and inference time of a single request."""
    spec = t5("liu-64")
    await session.make_cold(spec)
    cold = await session.predict(spec, SENTENCE, {"x-pilotlight-policy": "colocation"})
    warm = await session.predict(spec, SENTENCE, {"x-pilotlight-policy": "colocation"})
    await session.wait_idle()
    return MachineTimes(
        load_s=cold.stages_s.get("load", 0.0), infer_s=warm.stages_s.get("infer", 0.0)
    )


async def run_win(
    session: LiveSession, scenario: WinScenario, policy: str, sleep_s: float
) -> WinRun:
    """Section 6.4: two concurrent translations, after a warming one if the scenario has one.

    `auto` uses the measurements of the other policies' runs, so it first waits for the pods'
    reports.
    """
    if policy == "auto":
        await _wait_measured(session, scenario)
    spec = t5(scenario.model)
    await session.make_cold(spec)
    headers = {"x-pilotlight-policy": policy}
    if work := scenario.simulated_work(sleep_s):
        headers["x-pilotlight-simulate"] = work
    warming = None
    if scenario.is_prewarmed:
        warming = await session.predict(spec, SENTENCE, headers)
        await session.wait_idle()
    started_s = time.perf_counter()
    answers = await gather_requests(*(session.predict(spec, SENTENCE, headers) for _ in range(2)))
    concurrent_s = time.perf_counter() - started_s
    await session.wait_idle()
    return WinRun(scenario, policy, sleep_s, warming, concurrent_s, tuple(answers))


async def _wait_measured(session: LiveSession, scenario: WinScenario) -> None:
    """Wait for the measurements that `auto` needs; pods report once a second."""
    measured = ["infer", "load:remote"]
    measured += ["network"] if scenario.has_slow_network else []
    measured += ["postprocess"] if scenario.has_postprocessing else []
    key = t5(scenario.model).key
    cluster = session.platform.cluster
    await cluster.wait_until(
        lambda: all(cluster.state.measured(key).get(name) for name in measured),
        timeout_s=_MEASURED_TIMEOUT_S,
        what=f"{scenario.model}: measurements of {', '.join(measured)}",
    )
