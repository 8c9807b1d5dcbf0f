"""Profiles: a model's latency and memory by batch size, measured on request and in service.

`ProfileSync` exchanges them with the registry, and reads the batch limits of the autoscaler's plan.
`Profiler` measures while requests are served: sizes double until throughput stops growing or memory
is exhausted. Every inference is a separate job with the lowest urgency, so that requests take
precedence.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Final

from common.inference_protocol import InvalidRequest
from common.inference_protocol.tensors import Tensor
from registry.domain.cluster import ClusterState
from registry.domain.model import ModelName, ModelSpec
from registry.domain.pod import NEAR_PEAK_RATIO, PodInfo, Profile, ProfilePoint
from registry.redis.watch import ClusterWatch
from runtime.device.accelerator import PeakMemory, available_bytes
from runtime.device.batch_times import LIMITED_BY_MEMORY, BatchTimes
from runtime.device.device_errors import is_out_of_memory
from runtime.device.queue import ASSUMED_DEADLINE_S, ModelInputs
from runtime.device.worker import DeviceWorker
from runtime.loading.load_coordinator import LoadCoordinator
from runtime.loading.model_store import ServedModel
from runtime.registry_agent import RegistryAgent
from runtime.threads import in_thread

logger = logging.getLogger(__name__)

INTERVAL_S: Final = 30.0
"""Between reports of batch times, which change slowly and are read by planners of minutes."""
_SHORTEST_S = 1e-4
MEMORY_SHARE = 0.8
"""Share of the available memory into which twice the last batch must fit to try the next size."""


class ProfileSync:
    def __init__(
        self,
        times: BatchTimes,
        *,
        watch: ClusterWatch,
        agent: RegistryAgent,
        info: PodInfo,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self.device = info.device
        self.product = info.accelerator.product or info.device
        """Profiles of other products are ignored; older versions wrote the device in its place."""
        self._times = times
        self._watch = watch
        self._agent = agent
        self._interval_s = interval_s
        self._known: dict[str, Profile] = {}
        self._seen_version = -1
        self._kind = info.kind
        self._place = info.place
        self._is_placed = bool(info.placed_model)
        self._plan: tuple[object, ...] = ()
        """The objects that the batch caps were read from."""
        watch.subscribe(self._refresh)

    def _refresh(self) -> None:
        """Load the plan, and new and changed profiles, from the registry's copy."""
        state = self._watch.state
        plan = (state.wanted, state.placement, state.models_version)
        if plan != self._plan:
            self._plan = plan
            self._times.planned_rows = self._planned_rows(state)
        if state.profiles_version == self._seen_version:
            return
        self._seen_version = state.profiles_version
        for stored in state.profiles.values():
            profile = stored.get(self.product) or stored.get("")
            if profile is None or profile.product not in (self.product, self.device):
                continue
            if self._known.get(profile.key) != profile:
                self._known[profile.key] = profile
                self._times.use_profile(profile)

    def _planned_rows(self, state: ClusterState) -> dict[str, int]:
        """Largest batches by model key: of the placed replica, else of pods of this kind."""
        caps = state.wanted.batch_caps(self._kind) if state.wanted else {}
        placed = state.placement.pod(self._place) if state.placement else None
        if placed is not None:
            record = state.models.get(ModelName.parse(placed.replica.model))
            for spec in record.generations if record else ():
                caps[spec.key] = placed.replica.batch_size
        return caps

    async def store(self, profile: Profile) -> bool:
        """Use a profile measured here, and store it; False if it could not be stored."""
        self._times.forget(profile.key)
        self._times.use_profile(profile)
        self._known[profile.key] = profile
        return await self._agent.store_profile(profile)

    async def run(self) -> None:
        """Publish times of live batches until cancelled; drop models no longer declared."""
        while True:
            await asyncio.sleep(self._interval_s)
            for profile in self._times.take_updates(self.product):
                if self._is_placed:  # profiles are of a model alone; neighbours slow this one down
                    continue
                if (known := self._known.get(profile.key)) is not None:
                    profile = replace(
                        profile, shares=known.shares, pairs=known.pairs, fits=known.fits
                    )
                self._known[profile.key] = profile
                await self._agent.store_profile(profile)
            for key in self._times.keys() - self._watch.state.declared_keys():
                self._times.forget(key)
                self._known.pop(key, None)


@dataclass(frozen=True, slots=True)
class ProfilePlan:
    """What to measure. The fields are those of the HTTP request."""

    most_rows: int = 64
    tokens: int = 32
    """Length of texts; images have one size."""
    repeats: int = 5
    share_pct: int = 0
    """Of a CPU pod's cores, as many as an inference has threads: this part, rounded up to whole
    cores, has the process meanwhile. 0: all cores of the pod."""
    is_stored: int = 1
    """0: the profile is only returned."""


@dataclass(frozen=True, slots=True)
class Profiler:
    """Profiles one model at a time."""

    coordinator: LoadCoordinator
    device: DeviceWorker
    profiles: ProfileSync
    threads: Executor
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def profile(self, spec: ModelSpec, plan: ProfilePlan) -> Profile:
        """Measure the model's profile and store it in the registry; raises as an inference does."""
        async with self._turn:
            with (
                await self.coordinator.acquire(spec) as acquired,
                bound_to_cores(self._cores(plan)),
            ):
                profile = await self._sweep(acquired.model, plan)
            if not plan.is_stored:
                return profile
            await self.profiles.store(profile)
        logger.info("model profiled", extra={"key": spec.key, "best_rows": profile.best_rows})
        return profile

    def _cores(self, plan: ProfilePlan) -> frozenset[int]:
        """The cores to measure on; empty: as the process is."""
        if not plan.share_pct:
            return frozenset()
        if self.profiles.device != "cpu":
            raise InvalidRequest(
                "'share_pct' can be measured on a CPU only: of a GPU a process has one share for "
                f"its life, was {plan.share_pct}; profile a pod with that share"
            )
        cores = self._whole()
        return frozenset(cores[: -(-len(cores) * plan.share_pct // 100)])

    def _whole(self) -> list[int]:
        """A CPU pod's accelerator: as many of its cores as an inference has threads."""
        return sorted(os.sched_getaffinity(0))[: self.device.thread_count]

    def measured_share(self, plan: ProfilePlan) -> float:
        """The share that `profile` measures with, in %: whole cores. 0: without a limit."""
        cores = self._cores(plan)
        return 100 * len(cores) / len(self._whole()) if cores else 0.0

    async def _sweep(self, model: ServedModel, plan: ProfilePlan) -> Profile:
        points: list[ProfilePoint] = []
        limit = model.processor.batching.max_rows or plan.most_rows
        for rows in batch_sizes(min(plan.most_rows, limit)):
            available = await in_thread(self.threads, available_bytes, self.profiles.device)
            if points and not _fits(points[-1], available):
                return self._profile(model, points, LIMITED_BY_MEMORY)
            try:
                points.append(await self._measure(model, rows, plan))
            except Exception as error:
                if not points or not is_out_of_memory(error):
                    raise
                return self._profile(model, points, LIMITED_BY_MEMORY)
            if has_stopped_growing(points):
                return self._profile(model, points, "throughput")
        return self._profile(model, points, "size")

    def _profile(
        self, model: ServedModel, points: Sequence[ProfilePoint], limited_by: str
    ) -> Profile:
        return Profile(model.spec.key, self.profiles.product, tuple(points), limited_by)

    async def _measure(self, model: ServedModel, rows: int, plan: ProfilePlan) -> ProfilePoint:
        """The first inference of a size initialises buffers: it measures memory, not time."""
        batching = model.processor.batching
        tokens = max(1, min(plan.tokens, batching.max_tokens))
        inputs = await in_thread(self.threads, batching.example, rows, tokens)
        first = await self._infer(model, inputs, rows)
        timed = [await self._infer(model, inputs, rows) for _ in range(plan.repeats)]
        use = [each.sm_utilization_pct for each in timed if each.sm_utilization_pct is not None]
        return replace(
            first,
            latency_s=median(each.latency_s for each in timed),
            cpu_s=median(each.cpu_s or 0.0 for each in timed) if first.cpu_s is not None else None,
            occupancy_pct=max(use, default=None),
            mean_occupancy_pct=median(use) if use else None,
            sm_utilization_pct=median(use) if use else None,
        )

    def _busy_pct(self, cpu_s: float, took_s: float) -> float | None:
        """Busy part of the cores of an inference, in %; None on a GPU, and for very short times.

        The whole process counts, requests that it serves meanwhile included.
        """
        if self.profiles.device != "cpu" or took_s < _SHORTEST_S:
            return None
        return min(100.0, 100 * cpu_s / took_s / self.device.thread_count)

    async def _infer(
        self, model: ServedModel, inputs: tuple[Tensor, ...], rows: int
    ) -> ProfilePoint:
        def infer() -> ProfilePoint:
            peak = PeakMemory(self.profiles.device)
            begun_s, cpu_s = time.monotonic(), time.process_time()
            model.infer_together([ModelInputs(inputs)])
            took_s, cpu_s = time.monotonic() - begun_s, time.process_time() - cpu_s
            busy_pct = self._busy_pct(cpu_s, took_s)
            return ProfilePoint(
                rows,
                took_s,
                peak.used_bytes(),
                sm_utilization_pct=busy_pct,
                cpu_s=cpu_s if self.profiles.device == "cpu" else None,
            )

        due_s = time.monotonic() + 10 * ASSUMED_DEADLINE_S
        return (await self.device.run(infer, model=model.device_model, due_s=due_s)).value


@contextmanager
def bound_to_cores(cores: frozenset[int]) -> Iterator[None]:
    """All threads of the process run on these cores meanwhile; on all of its own if empty."""
    before = os.sched_getaffinity(0)
    try:
        if cores:
            _bind_threads(cores)
        yield
    finally:
        if cores:
            _bind_threads(before)


def _bind_threads(cores: Collection[int]) -> None:
    for thread in os.listdir("/proc/self/task"):
        with suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread), cores)


def batch_sizes(max_rows: int) -> list[int]:
    """1, 2, 4 and so on, and the largest itself."""
    doubled = [2**power for power in range(max_rows.bit_length()) if 2**power < max_rows]
    return [*doubled, max_rows]


def has_stopped_growing(points: Sequence[ProfilePoint]) -> bool:
    """Whether both last sizes exceed the best throughput before them by less than about 5 %."""
    if len(points) < 3:
        return False
    best = max(point.rows_per_s for point in points[:-2])
    return all(point.rows_per_s * NEAR_PEAK_RATIO < best for point in points[-2:])


def _fits(last: ProfilePoint, available: int) -> bool:
    """Whether a batch twice as large fits into the available memory."""
    return last.memory_bytes is None or 2 * last.memory_bytes < MEMORY_SHARE * available
