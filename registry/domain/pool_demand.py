"""What a pool and its models need, as scalers of others ask for it: KEDA, HorizontalPodAutoscalers.

The leading autoscaler publishes its advice again every few seconds, so that an old one shows that
nobody plans. Pure.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Final

from registry.domain.demand import ExpectedRates, QueueStats
from registry.domain.model import ModelName, name_of_key
from registry.errors import NoFigures, UnknownTarget

WANTED_PODS: Final = "pilotlight-wanted-pods"
"""Of a pool, with the forecast, within its bounds; fewer once the pods that leave are drained."""
REQUESTS_PER_S: Final = "pilotlight-requests-per-second"
"""Of a model whose transformer or explainer is asked for: expected arrivals."""
MAX_ADVICE_AGE_S: Final = 15.0
"""Five publications."""
_SUFFIXES: Final = ("-transformer", "-explainer")
_LIKELY_PER_S: Final = 0.5 / 60
"""Of a model that keeps one pod: a request within a minute is as likely as not."""


@dataclass(frozen=True, slots=True)
class PoolAdvice:
    """The number of pods to set, and the Deployment; on one machine that is empty."""

    pods: int
    namespace: str = ""
    deployment: str = ""
    at_s: float = 0.0
    """Registry time of its publication."""


@dataclass(frozen=True, slots=True)
class ScaleTarget:
    """What is to be scaled: the Deployment of a pool, or one by name, in a namespace."""

    namespace: str
    pool: str = ""
    deployment: str = ""


@dataclass(frozen=True, slots=True)
class Figure:
    """A metric's value; a Deployment should have a pod for each `per_pod` of it."""

    metric: str
    value: float
    per_pod: float
    is_active: bool
    """False: none are needed."""
    at_s: float


@dataclass(frozen=True, slots=True)
class PoolDemand:
    """One pool's, as the registry had it at `read_at_s`."""

    advice: PoolAdvice | None
    waiting: Mapping[ModelName, QueueStats]
    expected: ExpectedRates
    read_at_s: float

    def figure(self, target: ScaleTarget, models: Container[ModelName]) -> Figure:
        """`models`: those of the pool. Raises UnknownTarget, NoFigures."""
        known, asked = self.advice, (target.namespace, target.deployment)
        is_pools = known is not None and (known.namespace, known.deployment) == asked
        if is_pools or not target.deployment:
            return self._of_pool(target)
        return self._of_component(target, models)

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
        return Figure(WANTED_PODS, pods, 1.0, pods > 0, advice.at_s)

    def _of_component(self, target: ScaleTarget, models: Container[ModelName]) -> Figure:
        suffix = next((each for each in _SUFFIXES if target.deployment.endswith(each)), "")
        name = ModelName(target.namespace, target.deployment.removesuffix(suffix))
        if not suffix or name not in models:
            raise UnknownTarget(
                "deployment must be that of a pool, or NAME-transformer or NAME-explainer of a"
                f" model in its namespace, was {target.namespace}/{target.deployment}"
            )
        rates = self.expected.at(self.read_at_s)
        if not rates and self.read_at_s - self.expected.made_at_s > MAX_ADVICE_AGE_S:
            raise NoFigures("no autoscaler has published a forecast: see its log")
        per_s = sum(rate for key, rate in rates.items() if name_of_key(key) == name)
        waiting = self.waiting.get(name, QueueStats()).requests
        is_active = bool(waiting) or per_s >= _LIKELY_PER_S
        return Figure(REQUESTS_PER_S, per_s, 1.0, is_active, self.expected.made_at_s)
