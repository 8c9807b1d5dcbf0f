"""Liu's workloads, and the thesis's figures that the demo prints beside its own.

Source: Liu 2025, sections 6.2 and 6.4, tables 6.1 to 6.3. Values only.
"""

from collections.abc import Mapping
from dataclasses import dataclass

SENTENCE = "quick brown fox jumps over"
"""The five words of every request, as in the thesis."""
SIMPLE_REQUESTS = 10
FIXED_POLICIES = ("colocation", "colocation-queueing", "remote-proxy")
POLICIES = (*FIXED_POLICIES, "auto")
THESIS_SLEEP_S = 5.0
"""Postprocessing, and the network to another machine, in 6.4.1 to 6.4.3."""


@dataclass(frozen=True, slots=True)
class SimpleFigures:
    """Section 6.2, t5-small: ten sequential requests. Seconds."""

    cold_starts: int
    total_s: float

    @property
    def mean_s(self) -> float:
        return self.total_s / SIMPLE_REQUESTS


LIU_SIMPLE: Mapping[str, SimpleFigures] = {
    "random": SimpleFigures(cold_starts=5, total_s=29.43),
    "colocation": SimpleFigures(cold_starts=1, total_s=16.64),
}
LIU_REDUCTION_RATIO = 1 - LIU_SIMPLE["colocation"].total_s / LIU_SIMPLE["random"].total_s
TWO_LOADS_RATIO = 1.25
"""Time of two concurrent loads on two cores over that of one alone (measured by the demo)."""
MAX_ATTEMPTS = 3
"""Runs of a workload before the demo reports that the expected policy is not the fastest."""


@dataclass(frozen=True, slots=True)
class DemoScale:
    """The shortened times that replace the thesis's, and the matching link rates."""

    simple_link_bytes_per_s: float
    win_link_bytes_per_s: float
    least_sleep_s: float
    """In place of the thesis's 5 s, on a fast machine."""
    random_seeds: tuple[int, ...]
    random_budget_s: float
    """After the second seed, no further seed starts once this time has passed (slow machines)."""


@dataclass(frozen=True, slots=True)
class MachineTimes:
    """The times of one T5-small request on this machine. Seconds."""

    load_s: float
    infer_s: float

    def slower(self, other: "MachineTimes") -> "MachineTimes":
        """The slower of both in each part."""
        return MachineTimes(max(self.load_s, other.load_s), max(self.infer_s, other.infer_s))


@dataclass(frozen=True, slots=True)
class WinScenario:
    """One of the workloads of section 6.4; each has a different fastest policy."""

    section: str
    is_prewarmed: bool
    """Whether one request precedes the two concurrent ones."""
    has_postprocessing: bool
    has_slow_network: bool
    liu_s: Mapping[str, float]
    """End-to-end seconds of the thesis's table, by policy."""

    @property
    def model(self) -> str:
        """The workload's own model, which keeps its measurements apart from the others'."""
        return f"liu-{self.section.replace('.', '')}"

    @property
    def title(self) -> str:
        return (
            f"{'pre-warmed' if self.is_prewarmed else 'cold'}, "
            f"{'slow' if self.has_postprocessing else 'no'} post-processing, "
            f"{'slow' if self.has_slow_network else 'fast'} network"
        )

    @property
    def winner(self) -> str:
        """The fastest policy in the thesis."""
        return min(self.liu_s, key=self.liu_s.__getitem__)

    def sleep_s(self, scale: DemoScale, pace: MachineTimes) -> float:
        """The thesis's 5 s, shortened so that its conditions still hold at this machine's pace.

        Source: Liu 2025, section 6.5. `colocation` wins where the network takes longer than a cold
        start (here two concurrent ones, on shared cores); for the others the sleep must only take
        longer than an inference.
        """
        if scale.least_sleep_s >= THESIS_SLEEP_S:
            return THESIS_SLEEP_S
        bound_s = TWO_LOADS_RATIO * pace.load_s if self.winner == "colocation" else 0.0
        fitting_s = round(bound_s + 2 * pace.infer_s, 1)
        return min(max(scale.least_sleep_s, fitting_s), THESIS_SLEEP_S)

    def simulated_work(self, sleep_s: float) -> str:
        """The value of `x-pilotlight-simulate`; empty if nothing is simulated."""
        parts = []
        if self.has_postprocessing:
            parts.append(f"postprocess={sleep_s:g}")
        if self.has_slow_network:
            parts.append(f"network={sleep_s:g}")
        return ",".join(parts)


def _liu(colocation: float, queueing: float, proxy: float) -> Mapping[str, float]:
    return dict(zip(FIXED_POLICIES, (colocation, queueing, proxy), strict=True))


WIN_SCENARIOS = (  # pre-warmed, post-processing, slow network
    WinScenario("6.4.1", False, True, True, _liu(12.38, 18.80, 14.41)),
    WinScenario("6.4.2", True, False, True, _liu(11.18, 9.65, 15.19)),
    WinScenario("6.4.3", True, True, False, _liu(23.09, 25.27, 20.34)),
)


SHORT = DemoScale(100e6, 300e6, 1.5, (1, 2, 3), 40.0)
FULL = DemoScale(100e6, 100e6, THESIS_SLEEP_S, (1, 2, 3, 4, 5), 600.0)
"""At 100 MB/s a T5-small cold start takes about as long as in the thesis: 2.5 s against 3."""
