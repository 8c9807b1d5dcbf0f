"""Results of Liu's workloads, simulated or live, as values. Seconds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from load.stages import STAGES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from load.experiments.liu.scenarios import WinScenario


@dataclass(frozen=True, slots=True)
class TimedResponse:
    """One successful request."""

    latency_s: float
    start: str
    """`warm`, or the tier from which the request waited for the model."""
    pod: str
    predict_pod: str
    reason: str
    request_id: str
    stages_s: Mapping[str, float]
    body: Any

    @property
    def is_cold(self) -> bool:
        return self.start != "warm"


@dataclass(frozen=True, slots=True)
class SimpleRun:
    """Sequential requests under one policy, one seed."""

    policy: str
    seed: int
    answers: tuple[TimedResponse, ...]

    @property
    def cold_starts(self) -> int:
        """Requests that waited for a load."""
        return sum(response.is_cold for response in self.answers)

    @property
    def total_s(self) -> float:
        """The workload's end-to-end time."""
        return math.fsum(response.latency_s for response in self.answers)


@dataclass(frozen=True, slots=True)
class WinRun:
    """One workload of section 6.4 under one policy."""

    scenario: WinScenario
    policy: str
    sleep_s: float
    """In place of the thesis's 5 s."""
    warming: TimedResponse | None
    """Response to the request that warms a pod, if the workload has one."""
    concurrent_s: float
    """From sending the two concurrent requests to the later response."""
    answers: tuple[TimedResponse, ...]
    """Responses to the two concurrent requests."""

    @property
    def total_s(self) -> float:
        """End-to-end time, as in the thesis's tables."""
        return self.concurrent_s + (self.warming.latency_s if self.warming else 0.0)

    @property
    def responses(self) -> tuple[TimedResponse, ...]:
        """All requests, of which the thesis's figures 6.4 to 6.6 show the mean."""
        return (self.warming, *self.answers) if self.warming else self.answers


def mean_s(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def percentile_s(values: Sequence[float], ratio: float) -> float:
    """Nearest-rank percentile."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(ratio * len(ordered)) - 1)]


def latencies_s(runs: Sequence[SimpleRun]) -> list[float]:
    return [response.latency_s for run in runs for response in run.answers]


def mean_stages_s(responses: Sequence[TimedResponse]) -> dict[str, float]:
    return {
        stage: mean_s([each.stages_s.get(stage, 0.0) for each in responses]) for stage in STAGES
    }


def cold_and_warm_s(runs: Sequence[SimpleRun]) -> tuple[float, float] | None:
    """Mean load of the cold requests, and mean inference; None without runs."""
    responses = [response for run in runs for response in run.answers]
    loads_s = [each.stages_s.get("load", 0.0) for each in responses if each.is_cold]
    if not loads_s:
        return None
    return mean_s(loads_s), mean_s([each.stages_s.get("infer", 0.0) for each in responses])
