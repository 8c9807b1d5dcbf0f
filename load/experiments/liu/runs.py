"""What runs of Liu's workloads were like: answers, and whole workloads. Values only. Seconds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from load.stages import STAGES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from load.experiments.liu.scenarios import WinScenario


@dataclass(frozen=True, slots=True)
class TimedAnswer:
    """One answered request. Seconds."""

    latency_s: float
    start: str
    """`warm`, or the tier that the request had to wait from."""
    pod: str
    predict_pod: str
    reason: str
    request_id: str
    stages_s: Mapping[str, float]
    body: Any

    @property
    def is_cold(self) -> bool:
        """Whether it had to wait for a promotion to the device."""
        return self.start != "warm"


@dataclass(frozen=True, slots=True)
class SimpleRun:
    """Ten sequential requests under one policy, one seed."""

    policy: str
    seed: int
    answers: tuple[TimedAnswer, ...]

    @property
    def cold_starts(self) -> int:
        """Requests that waited for a load."""
        return sum(answer.is_cold for answer in self.answers)

    @property
    def total_s(self) -> float:
        """The workload's end-to-end time."""
        return math.fsum(answer.latency_s for answer in self.answers)


@dataclass(frozen=True, slots=True)
class WinRun:
    """One workload of section 6.4 under one policy."""

    scenario: WinScenario
    policy: str
    sleep_s: float
    """What the thesis's 5 s became."""
    warming_s: float
    """Time of the request that warms a pod; 0 where there is none."""
    concurrent_s: float
    """From sending the two concurrent requests to the later answer."""
    answers: tuple[TimedAnswer, ...]
    """Those of the two concurrent requests."""

    @property
    def total_s(self) -> float:
        """End-to-end time, as the thesis's tables give it."""
        return self.warming_s + self.concurrent_s


def mean_s(values: Sequence[float]) -> float:
    """Arithmetic mean."""
    return math.fsum(values) / len(values)


def percentile_s(values: Sequence[float], ratio: float) -> float:
    """Nearest-rank percentile."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(ratio * len(ordered)) - 1)]


def latencies_s(runs: Sequence[SimpleRun]) -> list[float]:
    """All latencies of several runs."""
    return [answer.latency_s for run in runs for answer in run.answers]


def mean_stages_s(answers: Sequence[TimedAnswer]) -> dict[str, float]:
    """Mean time per request in each stage."""
    return {
        stage: mean_s([answer.stages_s.get(stage, 0.0) for answer in answers]) for stage in STAGES
    }
