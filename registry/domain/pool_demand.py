"""What a pool and its models need, as scalers of others ask for it: KEDA, HorizontalPodAutoscalers.

The leading autoscaler publishes its advice again every few seconds, so that an old one shows that
nobody plans. Pure.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Final

from registry.domain.demand import QueueStats
from registry.domain.model import ModelName
from registry.errors import NoFigures, UnknownTarget

WANTED_PODS: Final = "pilotlight-wanted-pods"
"""Of a pool, with the forecast, within its bounds; fewer once the pods that leave are drained."""
REQUESTS_PER_S: Final = "pilotlight-requests-per-second"
"""Of a model whose transformer or explainer is asked for: expected arrivals."""
MAX_ADVICE_AGE_S: Final = 15.0
"""Five publications."""
_LIKELY_PER_S: Final = 0.5 / 60
"""Of a model that keeps one pod: a request within a minute is as likely as not."""


@dataclass(frozen=True, slots=True)
class PoolAdvice:
    """The number of pods to set; on one machine without a namespace."""

    pods: int
    namespace: str = ""
    at_s: float = 0.0
    """Registry time of its publication."""


@dataclass(frozen=True, slots=True)
class ScaleTarget:
    """What another scaler, in a namespace, scales: a pool, or a model's Deployment."""

    namespace: str
    pool: str = ""
    deployment: str = ""
    """If there is no pool: `NAME-transformer` or `NAME-explainer`."""

    @property
    def metric(self) -> str:
        return WANTED_PODS if self.pool else REQUESTS_PER_S

    def model(self, models: Container[ModelName]) -> ModelName:
        """Whose Deployment it is. Raises UnknownTarget."""
        name, dash, component = self.deployment.rpartition("-")
        model = ModelName(self.namespace, name)
        if dash and component in ("transformer", "explainer") and model in models:
            return model
        raise UnknownTarget(
            "deployment must be NAME-transformer or NAME-explainer of a model in its namespace,"
            f" was {self.namespace}/{self.deployment}"
        )


@dataclass(frozen=True, slots=True)
class Figure:
    """The value of a target's metric."""

    value: float
    is_active: bool
    """False: no pods are needed."""
    at_s: float


@dataclass(frozen=True, slots=True)
class PoolDemand:
    """One pool's, as the registry had it at `read_at_s`."""

    advice: PoolAdvice | None
    waiting: Mapping[ModelName, QueueStats]
    expected_per_s: Mapping[ModelName, float]
    expected_at_s: float
    read_at_s: float

    def figure(self, target: ScaleTarget, models: Container[ModelName]) -> Figure:
        """`models`: those of the pool. Raises UnknownTarget, NoFigures."""
        return self._of_pool(target) if target.pool else self._of_model(target.model(models))

    def _of_pool(self, target: ScaleTarget) -> Figure:
        advice = self.advice
        if advice is None or self.read_at_s - advice.at_s > MAX_ADVICE_AGE_S:
            raise NoFigures(
                "no autoscaler has planned the number of pods of"
                f" pool {target.pool!r} in the last {MAX_ADVICE_AGE_S:g} s: see its log"
            )
        if advice.namespace not in ("", target.namespace):
            raise UnknownTarget(
                f"pool {target.pool!r} is in namespace {advice.namespace!r}, and only what is there"
                f" may scale it, was {target.namespace!r}"
            )
        pods = max(advice.pods, any(each.requests for each in self.waiting.values()))
        return Figure(pods, pods > 0, advice.at_s)

    def _of_model(self, name: ModelName) -> Figure:
        if not self.expected_per_s and self.read_at_s - self.expected_at_s > MAX_ADVICE_AGE_S:
            raise NoFigures("no autoscaler has published a forecast: see its log")
        per_s = self.expected_per_s.get(name, 0.0)
        is_waiting = self.waiting.get(name, QueueStats()).requests > 0
        is_active = is_waiting or per_s >= _LIKELY_PER_S
        return Figure(per_s, is_active, self.expected_at_s)
