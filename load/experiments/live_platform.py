"""What an experiment asks of a real platform. `pilotlight` has it: this package is below it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from load.experiments.elastic.live_burst import LiveBurst
    from load.experiments.elastic.scenario import Scenario
    from load.experiments.elastic.spiking import Spiked
    from load.experiments.liu.runs import SimpleRun, WinRun
    from load.experiments.liu.scenarios import DemoScale
    from load.experiments.prewarm.live import Slice
    from load.report.run import Run


class LivePlatform(Protocol):
    """Runs workloads on real processes, on this machine."""

    def simple(
        self, model: str, plan: Sequence[tuple[str, int]], *, requests: int, link_bytes_per_s: float
    ) -> list[SimpleRun]:
        """Section 6.2 on eight pods, one run per policy and seed, the model cold at each start."""
        ...

    def wins(self, scale: DemoScale) -> list[WinRun]:
        """The workloads of section 6.4 under every fixed policy and `auto`."""
        ...

    def burst(self, models: int, *, pods: int, model: str) -> list[LiveBurst]:
        """So many models, asked for at once while there are no pods: never before, and again."""
        ...

    def spike(self, scenario: Scenario, seed: int) -> Spiked:
        """A load that grows at once, under the platform's autoscaler."""
        ...

    def prewarming(self, piece: Slice, policy: str, value: float, output: Path) -> Run:
        """A compressed trace under a loading policy, on one pod that holds nothing at the start.

        Its records are in the file `output` afterwards.
        """
        ...

    def redis(self) -> AbstractContextManager[str]:
        """A real Redis with nothing in it, by its URL, for as long as the context lasts."""
        ...
