"""The input of every planner.

A planner is `plan(workloads, accelerators, profiles, current, params) -> Placement`. Percentages
are of one whole accelerator. Source: Elvinger 2024, sections 4.3.2 and 5.2-5.4.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from typing import Any, Final

from autoscaler.placement.queueing import QueueOutcome
from registry.domain.pod import Profile, ProfilePoint

WHOLE_PCT: Final = 100.0
FITS_PCT: Final = WHOLE_PCT + 1e-9
"""Sums of percentages up to here fit on one accelerator."""


class InvalidPlacementInput(ValueError):
    """The input of a planner is wrong; `problems` holds every mistake, one line each."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = list(problems)

    def __reduce__(self) -> "tuple[type[InvalidPlacementInput], tuple[list[str]]]":
        """Pickle the list: by default an exception is pickled by its text, all lines in one."""
        return InvalidPlacementInput, (self.problems,)


class Metric(StrEnum):
    """Measure of the compute that a model needs (Creq, in % of an accelerator)."""

    ACHIEVED_OCCUPANCY = "ao"
    """Highest achieved occupancy (Elvinger 2024, equation 5.3)."""
    MEAN_OCCUPANCY = "wao"
    """Its mean, weighted by time (section 5.3.1)."""
    SM_UTILIZATION = "wsm"
    """Multiprocessors in use, weighted by time (section 5.3.2)."""


@dataclass(frozen=True, slots=True)
class Workload:
    """The load of one model, and its SLO: the time within which a response is useful."""

    model: str
    rate_rps: float
    slo_s: float
    max_batch_size: int | None = None


@dataclass(frozen=True, slots=True)
class AcceleratorView:
    """One accelerator that replicas may be placed on."""

    name: str
    kind: str
    """Its product; profiles are by product."""


@dataclass(frozen=True, slots=True)
class BatchPoint:
    """Needs of one batch of a model that runs alone on one kind of accelerator."""

    batch_size: int
    latency_s: float
    throughput_rps: float
    memory_pct: float
    """Reserved memory (Mreq), in % of the accelerator's."""
    occupancy_pct: float
    mean_occupancy_pct: float
    sm_utilization_pct: float
    share_factors: tuple[tuple[float, float], ...] = field(default=(), kw_only=True)
    """Measured: (share in %, factor of the latency with that share), ascending by share."""

    def compute_pct(self, metric: Metric) -> float:
        """Creq by this measure, in %."""
        match metric:
            case Metric.ACHIEVED_OCCUPANCY:
                return self.occupancy_pct
            case Metric.MEAN_OCCUPANCY:
                return self.mean_occupancy_pct
            case Metric.SM_UTILIZATION:
                return self.sm_utilization_pct


@dataclass(frozen=True, slots=True)
class ModelProfile:
    """Measured batches of a model on one kind of accelerator."""

    model: str
    kind: str
    points: tuple[BatchPoint, ...]
    """Ascending by batch size."""


@dataclass(frozen=True, slots=True)
class SlowedPair:
    """Measured: `model` is slower by `factor` while `neighbour` computes on the accelerator."""

    model: str
    neighbour: str
    factor: float
    """At least 1."""


def slowed_pairs(measured: Iterable[tuple[str, str, float]]) -> tuple[SlowedPair, ...]:
    """Pairs from (model, neighbour, factor); of several factors of a pair, the largest."""
    found: dict[tuple[str, str], float] = {}
    for model, neighbour, factor in measured:
        found[model, neighbour] = max(found.get((model, neighbour), 1.0), factor)
    return tuple(SlowedPair(*pair, factor) for pair, factor in sorted(found.items()))


@dataclass(frozen=True, slots=True)
class ModelFits:
    """What plug-ins fitted to a model on one kind of accelerator: parameters by plug-in."""

    model: str
    kind: str
    fits: Mapping[str, Mapping[str, Any]]
    latency_scale: float = 1.0
    """Factor of its batches' latency now to that when it was profiled."""


@dataclass(frozen=True, slots=True)
class Profiles:
    """All profiles, slowdowns by neighbours and fitted parameters that a planner may use."""

    models: tuple[ModelProfile, ...]
    pairs: tuple[SlowedPair, ...] = ()
    fits: tuple[ModelFits, ...] = ()

    def points(self, model: str, kind: str) -> tuple[BatchPoint, ...]:
        """Ascending by batch size; empty if the model was not measured on the kind."""
        for each in self.models:
            if each.model == model and each.kind == kind:
                return each.points
        return ()

    def point(self, model: str, kind: str, batch_size: int) -> BatchPoint | None:
        for each in self.points(model, kind):
            if each.batch_size == batch_size:
                return each
        return None

    def feasible(self, workload: Workload, kind: str) -> tuple[BatchPoint, ...]:
        """B_m: the batches up to the largest allowed whose latency is within the SLO."""
        largest = workload.max_batch_size
        return tuple(
            each
            for each in self.points(workload.model, kind)
            if each.latency_s <= workload.slo_s and (largest is None or each.batch_size <= largest)
        )


@dataclass(frozen=True, slots=True)
class PlanParams:
    """Options of all planners; each reads those that its docstring names."""

    has_shares: bool = True
    """False: no replica is limited to a share."""
    router: Callable[..., QueueOutcome] | None = None
    """Predicted goodput: outcome of a replica's queue where the router builds batches for the
    replicas in turn, such as `built_batches` of research. None: a free replica takes what waits."""
    overhead_s: Mapping[str, float] = field(default_factory=dict)
    """Predicted goodput: measured preprocessing, postprocessing and network by model."""
    transfer_s: Mapping[str, float] = field(default_factory=dict)
    """Predicted goodput: time to send one request's input to its accelerator, by model."""
    late_horizon_s: float | None = None
    """Predicted goodput: how long an overload lasts in which late requests are served; None: they
    are refused."""
    max_evaluations: int = 3_000
    """Predicted goodput: plans that are evaluated."""


def model_profile(
    model: str, profile: Profile, *, weights_bytes: int, memory_bytes: int
) -> ModelProfile:
    """`memory_bytes`: of the accelerator; 0: unknown, then memory bounds no plan."""
    return ModelProfile(
        model,
        profile.product,
        tuple(
            _point(each, _share_factors(profile, each.rows), weights_bytes, memory_bytes)
            for each in profile.points
        ),
    )


def _share_factors(profile: Profile, rows: int) -> tuple[tuple[float, float], ...]:
    return tuple(
        (each.share_pct, each.factor) for each in sorted(profile.shares) if each.rows == rows
    )


def _point(
    point: ProfilePoint,
    share_factors: tuple[tuple[float, float], ...],
    weights_bytes: int,
    memory_bytes: int,
) -> BatchPoint:
    """Where not measured, memory follows from the weights, and compute is the whole accelerator."""
    used_bytes = weights_bytes + (point.memory_bytes or 0)
    reserved = WHOLE_PCT * used_bytes / memory_bytes if memory_bytes else 0.0
    return BatchPoint(
        batch_size=point.rows,
        latency_s=point.latency_s,
        throughput_rps=point.throughput_rps or point.rows_per_s,
        memory_pct=min(WHOLE_PCT, reserved if point.reserved_pct is None else point.reserved_pct),
        occupancy_pct=_or_whole(point.occupancy_pct),
        mean_occupancy_pct=_or_whole(point.mean_occupancy_pct),
        sm_utilization_pct=_or_whole(point.sm_utilization_pct),
        share_factors=share_factors,
    )


def _or_whole(value_pct: float | None) -> float:
    return WHOLE_PCT if value_pct is None else value_pct


Missing = Callable[[Sequence[Workload], Sequence[str], Profiles], list[str]]


def missing_profiles(
    workloads: Sequence[Workload], kinds: Sequence[str], profiles: Profiles
) -> list[str]:
    return [
        f"model {workload.model}: has no profile on {kind}; `pilotlight profile` measures one"
        for workload in workloads
        for kind in kinds
        if not profiles.points(workload.model, kind)
    ]


def validate(
    workloads: Sequence[Workload],
    accelerators: Sequence[AcceleratorView],
    profiles: Profiles,
    missing: Missing = missing_profiles,
) -> None:
    """Raise InvalidPlacementInput with all mistakes; `missing`: those in what a planner needs."""
    kinds = sorted({each.kind for each in accelerators})
    given = {"accelerators": accelerators, "workloads": workloads}
    problems = [f"{name}: at least one is needed" for name, found in given.items() if not found]
    problems += [
        f"model {each.model}: must have a rate of 0 or more and a positive SLO, "
        f"had {each.rate_rps} req/s and {each.slo_s} s"
        for each in workloads
        if not (0 <= each.rate_rps < inf and 0 < each.slo_s < inf)
    ]
    problems += missing(workloads, kinds, profiles)
    if problems:
        raise InvalidPlacementInput(problems)
