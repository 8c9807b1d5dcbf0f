"""View of a pool at one time, the input of policies: pods, models, demand, limits. Values only.

Made by `pool_snapshot`. Times in seconds on the registry's clock, sizes in bytes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Final

from autoscaler.forecasting.history import Floats, Forecast, ForecastHorizon, History, Integers
from registry.domain.demand import QueueStats
from registry.domain.model import LoadFailure, ModelSpec, Tier
from registry.domain.pod import PodPhase, default_slots
from registry.domain.pod_index import Residency

NEVER_S: Final = -inf
"""Time of an event that never happened."""
_EMPTY_QUEUE: Final = QueueStats()


@dataclass(frozen=True, slots=True)
class PlannedPod:
    name: str
    node: str
    phase: PodPhase = PodPhase.READY
    is_accepting: bool = True
    """True if it gets requests: ready, and reachable by the gateways."""
    slots: int = default_slots()
    slots_busy: int = 0
    inferring: int = 0
    """Requests in their inference stage."""
    budget_bytes: Mapping[Tier, int] = field(default_factory=dict)
    """By tier; an absent tier has no known limit."""
    used_bytes: Mapping[Tier, int] = field(default_factory=dict)

    def free_bytes(self, tier: Tier = Tier.DEVICE) -> float:
        """Memory for loads without an eviction; infinity without a known limit."""
        budget = self.budget_bytes.get(tier)
        return inf if budget is None else max(0, budget - self.used_bytes.get(tier, 0))


@dataclass(frozen=True, slots=True)
class CopyUse:
    """Use of one pod's copy of a model."""

    ongoing: int = 0
    last_s: float = NEVER_S
    """End of the copy's last request."""
    served: int = 0
    """Requests since the copy was loaded."""


@dataclass(frozen=True, slots=True)
class ModelView:
    """One model, in the generation that serves requests."""

    spec: ModelSpec
    size_bytes: int
    """Size on the device."""
    infer_s: float = 0.5
    """Device time of one request: its share of a batch."""
    hold_s: float = 0.5
    """Slot time of one request that does not wait."""
    load_s: Mapping[Tier, float] = field(default_factory=dict)
    """Expected time of a load to the device, by the tier it starts from."""
    holders: Mapping[str, Residency] = field(default_factory=dict)
    """Residency by pod; pods that hold nothing of the model are absent."""
    uses: Mapping[str, CopyUse] = field(default_factory=dict)
    """Use of each pod's copy, where known."""
    arrived: int = 0
    """Requests since the last plan."""
    last_arrival_s: float = NEVER_S
    waiting: QueueStats = _EMPTY_QUEUE
    failure: LoadFailure | None = None

    @property
    def key(self) -> str:
        return self.spec.key

    @property
    def copies(self) -> int:
        """Pods that hold the model on their device or load it there."""
        return sum(each.is_warm or each.is_warming for each in self.holders.values())

    def may_load(self, now_s: float) -> bool:
        """False while the delay after a failed load lasts."""
        return self.failure is None or self.failure.retry_at_s <= now_s

    def load_from_s(self, tier: Tier) -> float:
        return 0.0 if tier is Tier.DEVICE else self.load_s.get(tier, 0.0)


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the number of pods; None: no maximum."""

    min_pods: int = 0
    max_pods: int | None = None


@dataclass(frozen=True, slots=True)
class Demand:
    """Past and expected arrivals; rows are the models of the view, in their order."""

    history: History | None
    """Input of the forecast; None if rows were forecast at different times."""
    horizon: ForecastHorizon
    forecast: Forecast
    p_minute: Floats
    """(models,): P(arrival within the next minute), see `autoscaler.forecasting.recency`."""

    def take(self, rows: Integers) -> "Demand":
        """The demand of the models at `rows`."""
        return replace(
            self,
            history=None if self.history is None else self.history.take(rows),
            forecast=self.forecast.take(rows),
            p_minute=self.p_minute[rows],
        )


@dataclass(frozen=True, slots=True)
class PoolView:
    """The input of one plan."""

    time_s: float
    pods: Mapping[str, PlannedPod]
    models: tuple[ModelView, ...]
    demand: Demand | None = None
    """None before the first forecast."""
    limits: Limits = Limits()
