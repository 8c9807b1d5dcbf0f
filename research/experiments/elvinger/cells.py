"""The settings of Elvinger 2024, chapters 5 and 6: models, rates, SLOs, numbers of GPUs."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Final

from autoscaler.placement.problem import AcceleratorView, PlanParams, Profiles, Workload
from research.experiments.harness.experiment import ExperimentError
from research.placement.built_batches import built_batches
from research.placement.fleet import accelerators_of
from research.placement.profile_csv import read_profiles

FILE: Final = "v100_profiles.csv"
KIND: Final = "v100"
VISION: Final = ("alexnet", "densenet121", "efficientnet_b7", "resnet50", "vgg19")
_LANGUAGE: Final = frozenset({"bert", "bloom_560", "gpt2", "t5", "xlnet"})
_PING_S: Final = 0.000322
_IMAGE_S: Final = (0.0087 - _PING_S) / 16
"""Section 4.6.2: 8.7 ms for a batch of 16 images."""
_LOAD_S: Final = 8.0
"""Length of each run in the thesis: 4000 requests at 500 req/s."""


@dataclass(frozen=True, slots=True)
class ElvingerCell:
    """One bar group of a figure: the load of every model, and the GPUs."""

    figure: str
    x: float
    """What the figure varies: GPUs or total req/s."""
    slo_s: float
    gpus: int
    rates_rps: tuple[tuple[str, float], ...]
    has_shares: bool = True
    """Whether planners may limit replicas to shares."""

    def workloads(self) -> list[Workload]:
        return [Workload(model, rate, self.slo_s) for model, rate in self.rates_rps]

    def accelerators(self) -> list[AcceleratorView]:
        return accelerators_of(KIND, self.gpus)

    @property
    def total_rps(self) -> float:
        return sum(rate for _, rate in self.rates_rps)


@dataclass(frozen=True, slots=True)
class StatedPlan:
    """An expected goodput that the text states."""

    where: str
    planner: str
    cell: ElvingerCell
    goodput_rps: float


def _cell(
    figure: str, models: tuple[str, ...], rate_rps: float, slo_ms: float, gpus: int, x: float = 0.0
) -> ElvingerCell:
    rates = tuple((model, rate_rps) for model in models)
    return ElvingerCell(figure, x or gpus, slo_ms / 1000, gpus, rates)


ORDER_IN_GROUP: Final = _cell("5.8", ("alexnet", "gpt2", "resnet50", "t5"), 400, 200, 4)
ORDER_OF_GROUPS: Final = _cell("5.9", ("alexnet", "bert", "gpt2", "resnet50", "vgg19"), 400, 300, 4)
MULTIPLIER: Final = _cell("5.10", ("alexnet", "bert", "mobilenet_v2", "resnet50"), 500, 200, 4)
_MIX: Final = ("bert", "gpt2", "mobilenet_v2", "resnet50")
STATED: Final = (
    StatedPlan("5.4.1, figures 5.5 and 5.8a", "usher", ORDER_IN_GROUP, 800),
    StatedPlan("5.4.1, figure 5.8b", "ao-milp", ORDER_IN_GROUP, 1092.04),
    StatedPlan("5.4.1, figures 5.6 and 5.9a", "usher", ORDER_OF_GROUPS, 793.57),
    StatedPlan("5.4.1, figure 5.9b", "ao-milp", ORDER_OF_GROUPS, 1331.19),
    StatedPlan("5.4.2, figures 5.7 and 5.10a", "usher", MULTIPLIER, 1500),
    StatedPlan("6.2.2, figure 6.12", "wsm-milp", _cell("6.12", _MIX, 300, 300, 5), 1096.80),
)


EFFICIENTNET: Final = _cell("6.1", VISION, 500, 200, 6)
RISING_LOAD: Final = tuple(
    _cell("6.15, 250 ms", VISION, total / 5, 250, 4, total) for total in (3000, 4000, 5000)
)
MIX_BY_GPUS: Final = tuple(_cell("6.10", _MIX, 300, 300, gpus) for gpus in (5, 6, 7))


def cells(*, is_quick: bool) -> Iterator[ElvingerCell]:
    """Figures 6.1, 6.10, 6.15 and A.1 to A.3; quick: the first two, on few GPUs."""
    counts = (2, 4) if is_quick else (1, 2, 3, 4, 5, 6, 7, 8)
    for gpus in counts:
        if gpus <= 6:
            yield _cell("6.1", VISION, 500, 200, gpus)
            if not is_quick:
                yield replace(_cell("A.1", VISION, 500, 200, gpus), has_shares=False)
        yield _cell("6.10", _MIX, 300, 300, gpus)
        if not is_quick:
            yield _cell("A.2", VISION, 1000, 200, gpus)
    if is_quick:
        return
    mixed = {"alexnet": 2, "bert": 1, "gpt2": 1, "mobilenet_v2": 2, "resnet50": 2}
    for slo_ms in (150, 250, 350):
        for total in (1000, 2000, 3000, 4000, 5000):
            yield _cell(f"6.15, {slo_ms} ms", VISION, total / 5, slo_ms, 4, total)
            rates = tuple((model, total * part / 8) for model, part in mixed.items())
            yield ElvingerCell(f"A.3, {slo_ms} ms", total, slo_ms / 1000, 4, rates)


def router_params(cell: ElvingerCell) -> PlanParams:
    """Their router: builds batches for 100 ms, inputs of images take time, late is served."""
    models = [model for model, _ in cell.rates_rps]
    return PlanParams(
        has_shares=cell.has_shares,
        router=built_batches,
        overhead_s=dict.fromkeys(models, 2 * _PING_S),
        transfer_s={model: 0.0 if model in _LANGUAGE else _IMAGE_S for model in models},
        late_horizon_s=_LOAD_S,
        max_evaluations=2_000,
    )


@lru_cache(maxsize=1)
def v100_profiles(path: Path | None) -> Profiles:
    """Table A.1; raises ExperimentError without the file."""
    if path is None:
        raise ExperimentError(f"PILOTLIGHT_DATA must name a folder with {FILE} (table A.1)")
    lines = path.read_text(encoding="utf-8").splitlines()
    return Profiles(read_profiles(lines, kind=KIND, file=path.name))
