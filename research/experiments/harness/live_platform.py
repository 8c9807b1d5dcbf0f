"""The real platform of experiments' live parts; implemented in `pilotlight`, which is above."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from load.report.run import Run
    from research.demo import DemoScale, SimpleRun, WinRun
    from research.experiments.elastic.burst_run import LiveBurst
    from research.experiments.elastic.spike_run import SpikeResult
    from research.experiments.elastic.spike_scenario import SpikeScenario
    from research.experiments.liu.replicas_run import ReplicasRun
    from research.experiments.prewarm.live_slice import TraceSlice
    from research.experiments.regret.live_slice import LiveCell, LiveRun


class LivePlatform(Protocol):
    """Runs workloads on real processes on this machine."""

    def simple(
        self, model: str, plan: Sequence[tuple[str, int]], *, requests: int, link_bytes_per_s: float
    ) -> list[SimpleRun]:
        """Liu 2025, section 6.2, on eight pods: a run per policy and seed, with a cold model."""
        ...

    def concurrent(self, requests: int, *, pods: int) -> ReplicasRun:
        """Section 3.1: requests at once to a cold T5-small on one pod, which may become `pods`."""
        ...

    def wins(self, scale: DemoScale) -> list[WinRun]:
        """The workloads of section 6.4 under every fixed policy and `auto`."""
        ...

    def burst(self, models: int, *, pods: int, model: str) -> list[LiveBurst]:
        """Request `models` models at once from a pool without pods: new models, then known ones."""
        ...

    def spike(self, scenario: SpikeScenario, seed: int) -> SpikeResult:
        """A sudden rise of the load, under the platform's autoscaler."""
        ...

    def prewarming(self, trace_slice: TraceSlice, policy: str, value: float, output: Path) -> Run:
        """A compressed trace under a loading policy, on one pod that is empty at the start.

        Writes its records to the file `output`.
        """
        ...

    def regret(self, cell: LiveCell) -> list[LiveRun]:
        """A cell of the experiment regret, whose pods are empty, under each of `LIVE_POLICIES`."""
        ...

    def redis(self) -> AbstractContextManager[str]:
        """The URL of an empty Redis that runs while the context is open."""
        ...
