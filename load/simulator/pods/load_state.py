"""The models on a simulated pod's device, its loads, and their open weights."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

from runtime.loading.load_lifecycle import Load
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
    served: int = 0
    """Requests that have released it."""
    last_s: float = -inf
    """When the last of them did."""

    @property
    def is_pinned(self) -> bool:
        return self.plan.spec.policy.pin


@dataclass(eq=False, slots=True)
class SimulatedLoad(Load):
    """A load, and the requests that wait for it."""

    plan: ModelPlan = field(kw_only=True)
    requests: list[SimulatedRequest] = field(default_factory=list)
    wait: VirtualFuture | None = None
    """For a claim, memory, or another pod's download: a cancelled load ends there."""


class SimulatedWeights:
    """Open weights; the block of an `async with` has no effect of its own."""

    __slots__ = ("_open", "arrived", "load", "memory_bytes", "tier")

    def __init__(
        self, load: SimulatedLoad, open_weights: Callable[[SimulatedWeights], Awaitable[None]]
    ) -> None:
        """`open_weights` is awaited at the begin of the block."""
        self._open = open_weights
        self.load = load
        self.tier = load.source
        self.memory_bytes = load.plan.memory_bytes
        self.arrived: VirtualFuture | None = None
        """The end of the download that this load has started."""

    async def __aenter__(self) -> SimulatedWeights:
        await self._open(self)
        return self

    async def __aexit__(self, *_: object) -> None:
        return
