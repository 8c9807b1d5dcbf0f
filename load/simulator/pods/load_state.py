"""State of a simulated pod: models on its device, loads in progress, and their open weights."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from runtime.loading.load import Load
from runtime.tiers.device_cache import CachedModel

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from load.simulator.cluster.plan import ModelPlan
    from load.simulator.pods.simulated_request import SimulatedRequest
    from load.simulator.pods.virtual_tasks import VirtualFuture


@dataclass(eq=False, slots=True)
class SimulatedResident(CachedModel):
    """A model on a simulated device."""

    plan: ModelPlan = field(kw_only=True)

    @property
    def is_pinned(self) -> bool:
        return self.plan.spec.policy.pin


@dataclass(eq=False, slots=True)
class SimulatedLoad(Load):
    """A load, and the requests that wait for it."""

    plan: ModelPlan = field(kw_only=True)
    requests: list[SimulatedRequest] = field(default_factory=list)
    wait: VirtualFuture | None = None
    """The claim, memory or download of another pod that the load waits for; cancelling the load
    ends this wait."""


class SimulatedWeights:
    """Weights that are opened at the start of an `async with` block; its end has no effect."""

    __slots__ = ("_open", "arrived", "load", "memory_bytes", "tier")

    def __init__(
        self, load: SimulatedLoad, open_weights: Callable[[SimulatedWeights], Awaitable[None]]
    ) -> None:
        self._open = open_weights
        self.load = load
        self.tier = load.source
        self.memory_bytes = load.plan.memory_bytes
        self.arrived: VirtualFuture | None = None
        """Completes when the download that this load has started ends."""

    async def __aenter__(self) -> SimulatedWeights:
        await self._open(self)
        return self

    async def __aexit__(self, *_: object) -> None:
        return
