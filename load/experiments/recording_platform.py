"""A live platform whose results are kept as they come, as those of simulations are."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from load.experiments.elastic.live_burst import LiveBurst
    from load.experiments.elastic.scenario import Scenario
    from load.experiments.elastic.spiking import Spiked
    from load.experiments.experiment import Keep
    from load.experiments.liu.runs import SimpleRun, WinRun
    from load.experiments.liu.scenarios import DemoScale
    from load.experiments.live_platform import LivePlatform
    from load.experiments.prewarm.live import Slice
    from load.report.run import Run

Found = TypeVar("Found")


class RecordingPlatform:
    """It is `load.experiments.live_platform.LivePlatform`, and tells what another one comes to."""

    def __init__(self, platform: LivePlatform, keep: Keep) -> None:
        self._platform = platform
        self._keep = keep

    def _kept(self, what: str, task: object, found: Found) -> Found:
        self._keep(f"live: {what}", task, found)
        return found

    def simple(
        self, model: str, plan: Sequence[tuple[str, int]], *, requests: int, link_bytes_per_s: float
    ) -> list[SimpleRun]:
        """Section 6.2 per policy and seed."""
        found = self._platform.simple(
            model, plan, requests=requests, link_bytes_per_s=link_bytes_per_s
        )
        return self._kept("simple", {"model": model, "requests": requests}, found)

    def wins(self, scale: DemoScale) -> list[WinRun]:
        """The workloads of section 6.4."""
        return self._kept("wins", scale, self._platform.wins(scale))

    def burst(self, models: int, *, pods: int, model: str) -> list[LiveBurst]:
        """So many models, asked for at once."""
        found = self._platform.burst(models, pods=pods, model=model)
        return self._kept("burst", {"models": models, "pods": pods, "model": model}, found)

    def spike(self, scenario: Scenario, seed: int) -> Spiked:
        """A load that grows at once."""
        found = self._platform.spike(scenario, seed)
        return self._kept("spike", {"scenario": scenario, "seed": seed}, found)

    def prewarming(self, piece: Slice, policy: str, value: float, output: Path) -> Run:
        """A compressed trace under a loading policy; its records are in `output`, a file."""
        found = self._platform.prewarming(piece, policy, value, output)
        self._kept("prewarming", {"policy": policy, "value": value}, str(output))
        return found

    def redis(self) -> AbstractContextManager[str]:
        """A real Redis."""
        return self._platform.redis()
