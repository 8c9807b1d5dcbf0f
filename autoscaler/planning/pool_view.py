"""What a policy sees of a pool at one time: pods, models, demand and limits. Values only.

`reading` makes it from the registry's copy; tiers, phases and residency are the registry's own
types. Times in seconds on the registry's clock, sizes in bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

from registry.domain.model import Tier
from registry.domain.pod import PodPhase

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autoscaler.forecasting.history import Floats, Forecast, ForecastHorizon, History
    from registry.domain.model import LoadFailure, ModelSpec
    from registry.domain.residency_index import Residency

NEVER_S = -inf
"""When something happened that never did."""


@dataclass(frozen=True, slots=True)
class PlannedPod:
    """One pod."""

    name: str
    node: str
    phase: PodPhase = PodPhase.READY
    is_accepting: bool = True
    """Whether requests may be sent to it: ready, and reached by the gateways."""
    slots: int = 1
    slots_busy: int = 0
    inferring: int = 0
    """Requests in their inference stage there."""
    budget_bytes: Mapping[Tier, int] = field(default_factory=dict)
    """Per tier; a tier that is absent has no known limit."""
    used_bytes: Mapping[Tier, int] = field(default_factory=dict)

    def free_bytes(self, tier: Tier = Tier.DEVICE) -> float:
        """What a load can take without an eviction; infinity where no limit is known."""
        budget = self.budget_bytes.get(tier)
        return inf if budget is None else max(0, budget - self.used_bytes.get(tier, 0))


@dataclass(frozen=True, slots=True)
class CopyUse:
    """How one pod's copy of a model is used, where that is known."""

    ongoing: int = 0
    last_s: float = NEVER_S
    """End of the last request there."""
    served: int = 0
    """Requests since the copy came."""


@dataclass(frozen=True, slots=True)
class QueueDemand:
    """Requests of one model in the gateways' waiting rooms."""

    requests: int = 0
    starved: int = 0
    """Those of them past 60 % of the time to their deadline (Blinowski et al. 2024, 4.2.3)."""
    oldest_s: float = inf
    """When the first of them came."""


@dataclass(frozen=True, slots=True)
class ModelView:
    """One model: the generation that requests go to."""

    spec: ModelSpec
    size_bytes: int
    """On the device."""
    infer_s: float = 0.5
    """What one request takes of a device: its share of a batch."""
    hold_s: float = 0.5
    """How long one request takes a slot when it waits for nothing."""
    load_s: Mapping[Tier, float] = field(default_factory=dict)
    """Expected time to the device by the tier a load starts from."""
    holders: Mapping[str, Residency] = field(default_factory=dict)
    """Where it is, by pod; pods without anything of it are absent."""
    uses: Mapping[str, CopyUse] = field(default_factory=dict)
    """By pod, where it is known."""
    arrived: int = 0
    """Requests since the last plan."""
    last_arrival_s: float = NEVER_S
    waiting: QueueDemand = QueueDemand()
    failure: LoadFailure | None = None

    @property
    def key(self) -> str:
        """What its tiers and loads are filed under."""
        return self.spec.key

    def may_load(self, now_s: float) -> bool:
        """Whether a load may be begun: the last one did not just fail."""
        return self.failure is None or self.failure.retry_at_s <= now_s

    def load_from_s(self, tier: Tier) -> float:
        """Expected time to the device from a tier; none from the device itself."""
        return 0.0 if tier is Tier.DEVICE else self.load_s.get(tier, 0.0)


@dataclass(frozen=True, slots=True)
class Limits:
    """What an operator allows of a pool."""

    min_pods: int = 0
    max_pods: int | None = None


@dataclass(frozen=True, slots=True)
class Demand:
    """What is known and expected of arrivals; rows are the models of the view, in their order."""

    history: History | None
    """What it was made from; None where models were forecast at different times."""
    question: ForecastHorizon
    forecast: Forecast
    p_minute: Floats
    """(models,): P(arrival within the next minute), see `autoscaler.forecasting.recency`."""


@dataclass(frozen=True, slots=True)
class PoolView:
    """A pool at one time."""

    time_s: float
    pods: Mapping[str, PlannedPod]
    models: tuple[ModelView, ...]
    demand: Demand | None = None
    """None: nothing was counted yet."""
    limits: Limits = Limits()
