"""Takes a model's profile on the device: latency and memory per batch size, beside live requests.

Sizes double until throughput stops growing or memory ends. Every inference is a job of its own with
the least urgency, so that requests go in between.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from registry.domain.profile import NEAR_PEAK_RATIO, Profile, ProfilePoint
from runtime.device.batch_times import LIMITED_BY_MEMORY
from runtime.device.device_errors import is_out_of_memory
from runtime.device.peak_memory import PeakMemory, available_bytes
from runtime.device.queue import ASSUMED_DEADLINE_S
from runtime.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Executor

    from registry.domain.model import ModelSpec
    from runtime.device.worker import DeviceWorker
    from runtime.loading.load_coordinator import LoadCoordinator
    from runtime.loading.served_model import ServedModel
    from runtime.profiling.stored import Profiles
    from runtime.wire.tensors import Tensor

logger = logging.getLogger(__name__)

MEMORY_SHARE = 0.8
"""Of what is available; a batch twice as large must fit into it to be tried."""


@dataclass(frozen=True, slots=True)
class ProfilePlan:
    """What to measure."""

    most_rows: int = 64
    tokens: int = 32
    """Length of the texts; pictures have but one size."""
    repeats: int = 5


@dataclass(frozen=True, slots=True)
class _Measured:
    seconds: float
    memory_bytes: int | None


class Profiler:
    """Profiles one model at a time."""

    def __init__(
        self,
        *,
        coordinator: LoadCoordinator,
        device: DeviceWorker,
        profiles: Profiles,
        threads: Executor,
    ) -> None:
        self._coordinator = coordinator
        self._device = device
        self._profiles = profiles
        self._threads = threads
        self._turn = asyncio.Lock()

    async def profile(self, spec: ModelSpec, plan: ProfilePlan) -> Profile:
        """The model's profile, also stored in the registry; raises as an inference does."""
        async with self._turn:
            acquired = await self._coordinator.acquire(spec)
            try:
                profile = await self._take(acquired.model, plan)
            finally:
                await self._coordinator.release(acquired)
            await self._profiles.keep(profile)
        logger.info("profiled", extra={"key": spec.key, "best_rows": profile.best_rows})
        return profile

    async def _take(self, model: ServedModel, plan: ProfilePlan) -> Profile:
        points: list[ProfilePoint] = []
        takes = model.processor.batching.max_rows or plan.most_rows
        for rows in sizes(min(plan.most_rows, takes)):
            available = await in_thread(self._threads, available_bytes, self._profiles.device)
            if points and not _fits(points[-1], available):
                return self._made(model, points, LIMITED_BY_MEMORY)
            try:
                points.append(await self._measure(model, rows, plan))
            except Exception as error:
                if not points or not is_out_of_memory(error):
                    raise
                return self._made(model, points, LIMITED_BY_MEMORY)
            if has_stopped_growing(points):
                return self._made(model, points, "throughput")
        return self._made(model, points, "size")

    def _made(self, model: ServedModel, points: Sequence[ProfilePoint], limited_by: str) -> Profile:
        return Profile(model.spec.key, self._profiles.device, tuple(points), limited_by)

    async def _measure(self, model: ServedModel, rows: int, plan: ProfilePlan) -> ProfilePoint:
        """The first inference of a size sets things up and is not timed; it shows the memory."""
        batching = model.processor.batching
        tokens = max(1, min(plan.tokens, batching.max_tokens))
        inputs = await in_thread(self._threads, batching.example, rows, tokens)
        first = await self._infer(model, inputs)
        timed = [(await self._infer(model, inputs)).seconds for _ in range(plan.repeats)]
        return ProfilePoint(rows, median(timed), first.memory_bytes)

    async def _infer(self, model: ServedModel, inputs: tuple[Tensor, ...]) -> _Measured:
        def infer() -> _Measured:
            peak, begun_s = PeakMemory(self._profiles.device), time.monotonic()
            model.infer_together([inputs])
            return _Measured(time.monotonic() - begun_s, peak.taken_bytes())

        late_s = time.monotonic() + 10 * ASSUMED_DEADLINE_S
        return (await self._device.run(infer, model=model.device_model, due_s=late_s)).value


def sizes(max_rows: int) -> list[int]:
    """1, 2, 4 and so on, and the largest itself."""
    doubled = [2**power for power in range(max_rows.bit_length()) if 2**power < max_rows]
    return [*doubled, max_rows]


def has_stopped_growing(points: Sequence[ProfilePoint]) -> bool:
    """Whether neither of the last two sizes brought more than the best before them."""
    if len(points) < 3:
        return False
    best = max(point.rows_per_s for point in points[:-2])
    return all(point.rows_per_s * NEAR_PEAK_RATIO < best for point in points[-2:])


def _fits(last: ProfilePoint, available: int) -> bool:
    """Whether twice as much as the last size took is there."""
    return last.memory_bytes is None or 2 * last.memory_bytes < MEMORY_SHARE * available
