"""State of a simulated pod: models on its device, and loads in progress."""

from dataclasses import dataclass, field

from load.simulator.cluster.plan import ModelPlan
from load.simulator.event_queue import VirtualFuture
from load.simulator.pods.simulated_request import SimulatedRequest
from runtime.loading.load_turns import Load
from runtime.tiers.device_cache import CachedModel


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
