"""The runs of a `simulate` command: every combination of policy, loading policy and swept value."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import isfinite
from pathlib import Path
from typing import Any, Final

from autoscaler.loading.loading_policies import policy_of, tuned_names, value_problem
from gateway.routing.routing_policies import ROUTING_POLICIES
from load.errors import InvalidCluster, InvalidTraceSpec, TraceError
from load.simulator.autoscaling import TICK_S, LoadingOptions
from load.simulator.cluster.cluster_file import cluster_of
from load.simulator.cluster.plan import ClusterPlan
from load.simulator.cluster.sweep import parse_sweep, run_names, variants
from load.simulator.runs import RunTask
from load.trace_spec import open_trace
from pilotlight.errors import InvalidInput
from registry.domain.loading_choice import LOADING, ROUTING, SELECTION

NO_LOADING: Final = "none"
"""Value of `--loading` for no loading policy: only requests load models."""
_OWN: Final = "own"
"""Value of `--policy` for the routing policy that each model names."""
_MIN_TICK_S: Final = 0.01


@dataclass(frozen=True, slots=True)
class SimulationPlan:
    """The flags of `simulate`."""

    cluster: Path
    trace: str
    policies: str
    """Names of routing policies, separated by commas."""
    sweep: str | None
    seed: int
    out: Path | None
    """Folder for the records: one Parquet file per run."""
    processes: int = 1
    allow_unknown: bool = False
    """Whether the trace may request models that the cluster lacks."""
    overwrite: bool = False
    loading: str = NO_LOADING
    """Names of loading policies, separated by commas."""
    loading_value: float | None = None
    """Parameter of the loading policy; None: its default."""
    tick_s: float = TICK_S
    """Time between two plans of a loading policy."""


@dataclass(frozen=True, slots=True)
class _Variant:
    """A cluster with one value of `--sweep`."""

    setting: dict[str, Any]
    """The key `value` for the run's metadata; empty without `--sweep`."""
    cluster: ClusterPlan


def run_tasks(plan: SimulationPlan) -> list[RunTask]:
    """One task per combination; raises InvalidInput, and PluginError."""
    policies = [_policy(name.strip()) for name in plan.policies.split(",")]
    folder = _folder(plan)
    loadings = _loading_options(plan.loading, value=plan.loading_value, tick_s=plan.tick_s)
    try:
        each_variant = _variants(plan)
        open_trace(plan.trace, seed=plan.seed)
    except (InvalidCluster, InvalidTraceSpec) as error:
        raise InvalidInput(error.problems) from None
    except TraceError as error:
        raise InvalidInput([str(error)]) from None
    runs = list(product(each_variant, policies, loadings))
    has_loading = any(loadings)
    parts = [_name_parts(loading) if has_loading else () for _, _, loading in runs]
    names = run_names(
        [
            (_policy_name(policy), *part, *map(str, each.setting.values()))
            for (each, policy, _), part in zip(runs, parts, strict=True)
        ]
    )
    return [
        RunTask(
            name=name,
            metadata={
                "trace": plan.trace,
                "policy": _policy_name(policy),
                **_loading_fields(loading),
                "seed": plan.seed,
                **each.setting,
            },
            cluster=_under(policy, each.cluster),
            policy=policy if policy in ROUTING else None,
            trace=plan.trace,
            seed=plan.seed,
            output=None if folder is None else folder / f"{name}.parquet",
            loading=loading,
        )
        for name, (each, policy, loading) in zip(names, runs, strict=True)
    ]


def _folder(plan: SimulationPlan) -> Path | None:
    try:
        return None if plan.out is None else plan.out.expanduser()
    except RuntimeError:
        raise InvalidInput([f"--out: the user of {plan.out} does not exist"]) from None


def _loading_fields(loading: LoadingOptions | None) -> dict[str, Any]:
    if loading is None:
        return {"loading": NO_LOADING}
    return {"loading": loading.name, "loading_value": loading.value, "tick_s": loading.tick_s}


def _variants(plan: SimulationPlan) -> list[_Variant]:
    sweep = None if plan.sweep is None else parse_sweep(plan.sweep)
    found = []
    for value, document in variants(plan.cluster, sweep):
        tried = "" if sweep is None else f" with {sweep.key}={_as_json(value)}"
        cluster = cluster_of(document, source=f"{plan.cluster}{tried}")
        found.append(_Variant({} if sweep is None else {"value": _as_json(value)}, cluster))
    return found


def _as_json(value: Any) -> Any:
    return json.loads(json.dumps(value, default=str))


def _policy(name: str) -> str | None:
    if name == _OWN:
        return None
    if name in ROUTING and name not in ROUTING_POLICIES:
        ROUTING.load(name)  # that it can be imported is checked before the runs
    if name in ROUTING or name in SELECTION:
        return name
    allowed = f"{ROUTING}, {SELECTION} and {_OWN}"
    raise InvalidInput([f"--policy must be among {allowed}, was {name!r}"])


def _under(policy: str | None, cluster: ClusterPlan) -> ClusterPlan:
    """The cluster whose applications have the policy, if it is one of theirs."""
    if policy is None or policy in ROUTING:
        return cluster
    if not cluster.applications:
        raise InvalidInput([f"--policy {policy} is for applications; the cluster file has none"])
    return replace(
        cluster,
        applications=tuple(
            replace(each, spec=replace(each.spec, policy=policy)) for each in cluster.applications
        ),
    )


def _policy_name(policy: str | None) -> str:
    return policy or _OWN


def _loading_options(
    names: str, *, value: float | None, tick_s: float
) -> list[LoadingOptions | None]:
    """The named loading policies, None for `none`; raises InvalidInput with all problems.

    A value requires exactly one policy besides `none`.
    """
    each_name = [name.strip() for name in names.split(",")]
    problems = [
        f"--loading must be among {NO_LOADING}, {LOADING}, was {name!r}"
        for name in dict.fromkeys(each_name)
        if name != NO_LOADING and name not in LOADING
    ]
    for name in each_name:
        if name in LOADING:
            policy_of(name)  # likewise
    if value is not None and not problems:
        problems = _value_problems([name for name in each_name if name != NO_LOADING], value)
    if not (isfinite(tick_s) and tick_s >= _MIN_TICK_S):
        problems.append(f"--tick must be {_MIN_TICK_S:g} seconds at least, was {tick_s:g}")
    if problems:
        raise InvalidInput(problems)
    return [
        None if name == NO_LOADING else LoadingOptions(name, value, tick_s) for name in each_name
    ]


def _value_problems(names: Sequence[str], value: float) -> list[str]:
    if len(set(names)) != 1:
        named = ", ".join(dict.fromkeys(names)) or NO_LOADING
        return [
            "--loading-value is the parameter of one policy: name one of "
            f"{', '.join(tuned_names())} with --loading, alone or with {NO_LOADING}; it was given "
            f"with {named}"
        ]
    problem = value_problem(names[0], value)
    return [f"--loading-value {problem}"] if problem else []


def _name_parts(loading: LoadingOptions | None) -> tuple[str, ...]:
    """Parts of a run's name: the loading policy, and its parameter if one was given."""
    if loading is None:
        return (NO_LOADING,)
    return (loading.name,) if loading.value is None else (loading.name, f"{loading.value:.12g}")
