"""Checks the input of planners; all mistakes are reported together."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from math import isfinite

from autoscaler.placement.planners.problem import (
    WHOLE_PCT,
    AcceleratorView,
    BatchPoint,
    InvalidPlacementInput,
    ModelProfile,
    Profiles,
    Workload,
)

Missing = Callable[[Sequence[Workload], Sequence[str], Profiles], list[str]]


def validate(
    workloads: Sequence[Workload],
    accelerators: Sequence[AcceleratorView],
    profiles: Profiles,
    *,
    one_kind: bool = False,
    missing: Missing | None = None,
) -> None:
    """Raise InvalidPlacementInput with all mistakes.

    `one_kind`: mixed kinds are one; `missing`: what a planner lacks that needs no measured batches.
    """
    kinds = sorted({each.kind for each in accelerators})
    problems = [
        *_accelerator_problems(accelerators),
        *_workload_problems(workloads),
        *(missing or _missing_profiles)(workloads, kinds, profiles),
    ]
    for profile in profiles.models:
        problems += profile_problems(profile)
    problems += [
        f"pair {each.model} beside {each.neighbour}: the factor must be 1 or more, was "
        f"{each.factor:g}"
        for each in profiles.pairs
        if not (isfinite(each.factor) and each.factor >= 1)
    ]
    if one_kind and len(kinds) > 1:
        problems.append(f"accelerators must be of one kind for this planner, were of {kinds}")
    if problems:
        raise InvalidPlacementInput(problems)


def _repeated(names: Iterable[str]) -> list[str]:
    return sorted(name for name, count in Counter(names).items() if count > 1)


def _accelerator_problems(accelerators: Sequence[AcceleratorView]) -> list[str]:
    problems = [] if accelerators else ["accelerators: at least one is needed, were none"]
    repeated = _repeated(each.name for each in accelerators)
    return [*problems, *(f"accelerator {name}: must be listed once" for name in repeated)]


def _workload_problems(workloads: Sequence[Workload]) -> list[str]:
    problems = [] if workloads else ["workloads: at least one is needed, were none"]
    repeated = _repeated(each.model for each in workloads)
    problems += [f"model {name}: must have one rate, has several" for name in repeated]
    for each in workloads:
        if not (isfinite(each.rate_rps) and each.rate_rps >= 0):
            problems.append(
                f"model {each.model}: rps must be a number of 0 or more, was {each.rate_rps}"
            )
        if not (isfinite(each.slo_s) and each.slo_s > 0):
            problems.append(
                f"model {each.model}: slo must be a positive time, was {each.slo_s * 1000:g} ms"
            )
        if each.max_batch_size is not None and each.max_batch_size < 1:
            problems.append(
                f"model {each.model}: the largest batch must be 1 or more, was "
                f"{each.max_batch_size}"
            )
    return problems


def _missing_profiles(
    workloads: Sequence[Workload], kinds: Sequence[str], profiles: Profiles
) -> list[str]:
    known = {(each.model, each.kind): each for each in profiles.models}
    problems = []
    for workload in workloads:
        for kind in kinds:
            profile = known.get((workload.model, kind))
            if profile is None:
                own = [each.kind for each in profiles.models if each.model == workload.model]
                measured = ", ".join(sorted({*own})) or "other models only"
                problems.append(
                    f"model {workload.model}: has no profile on {kind}; profiles are of "
                    f"{measured}; `pilotlight profile` measures one"
                )
            elif not profile.points:
                problems.append(f"model {workload.model}: its profile on {kind} has no batches")
    return problems


def profile_problems(profile: ModelProfile) -> list[str]:
    """Every mistake of a profile, one line each."""
    problems = []
    sizes = [each.batch_size for each in profile.points]
    if sizes != sorted(set(sizes)):
        problems.append(
            f"profile of {profile.model} on {profile.kind}: batch sizes must ascend, were {sizes}"
        )
    for each in profile.points:
        at = f"profile of {profile.model} on {profile.kind}, batch {each.batch_size}"
        if each.batch_size < 1:
            problems.append(f"{at}: must be 1 or more")
            continue
        if not (isfinite(each.latency_s) and each.latency_s > 0):
            problems.append(f"{at}: latency must be a positive time, was {each.latency_s} s")
        elif not (isfinite(each.throughput_rps) and each.throughput_rps > 0):
            problems.append(
                f"{at}: throughput must be a positive rate, was {each.throughput_rps} req/s"
            )
        elif contradicts(each):
            problems.append(
                f"{at}: throughput {each.throughput_rps:g} req/s contradicts latency "
                f"{each.latency_s:g} s: expected about {each.batch_size / each.latency_s:.2f}"
            )
        problems += [
            f"{at}: {name} must be from 0 to 100 %, was {value}"
            for name, value in (
                ("memory", each.memory_pct),
                ("occupancy", each.occupancy_pct),
                ("mean occupancy", each.mean_occupancy_pct),
                ("SM utilisation", each.sm_utilization_pct),
            )
            if not 0 <= value <= WHOLE_PCT
        ]
    return problems


def contradicts(point: BatchPoint) -> bool:
    """Whether batch / latency differs from the throughput by more than both were rounded."""
    implied_s = point.batch_size / point.throughput_rps
    rounding_s = _rounding(point.latency_s)
    rounding_s += implied_s * _rounding(point.throughput_rps) / point.throughput_rps
    return abs(implied_s - point.latency_s) > rounding_s + 1e-9


def _rounding(value: float) -> float:
    """Half of the last decimal place that the number is written with."""
    exponent = Decimal(repr(value)).as_tuple().exponent
    assert isinstance(exponent, int)
    return 0.5 * 10.0**exponent
