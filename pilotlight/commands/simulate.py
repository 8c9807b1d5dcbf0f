"""`simulate`: run a trace through a simulated cluster under one policy or several, and compare."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from load.errors import InvalidTraceName, TraceError
from pilotlight.errors import InvalidInput, MissingExtra
from registry.model import RoutingPolicy

try:
    from load.simulator.cluster_file import cluster_of
    from load.simulator.errors import InvalidCluster, WrongTrace
    from load.simulator.records import parquet_writer
    from load.simulator.simulate import simulate
    from load.simulator.sweep import parse_sweep, variants
    from load.traces.naming import open_trace
except ModuleNotFoundError as error:
    raise MissingExtra(error, "load") from error

if TYPE_CHECKING:
    from pathlib import Path

    from load.simulator.cluster import ClusterPlan
    from pilotlight.output import Output

_OWN = "own"
"""In place of a policy: each model's own."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be simulated."""

    cluster: Path
    trace: str
    policies: str
    """Names with commas between."""
    sweep: str | None
    seed: int
    out: Path | None
    """Folder for the records, one Parquet file per run."""


def run_simulations(plan: Plan, output: Output) -> None:
    """Simulate every combination of policy and value, and print what came of each.

    Raises InvalidInput.
    """
    try:
        policies = [_policy(name.strip()) for name in plan.policies.split(",")]
        sweep = parse_sweep(plan.sweep) if plan.sweep else None
        clusters = [
            (value, cluster_of(document, source=str(plan.cluster)))
            for value, document in variants(plan.cluster, sweep)
        ]
        rows = [
            _run(plan, cluster, policy, value) for value, cluster in clusters for policy in policies
        ]
    except (InvalidCluster, InvalidTraceName) as error:
        raise InvalidInput(error.problems) from None
    except (TraceError, WrongTrace) as error:
        raise InvalidInput([str(error)]) from None
    if output.as_json:
        output.result({"simulated": True, "seed": plan.seed, "runs": rows})
        return
    key = [sweep.key.upper()] if sweep else []
    output.table(
        (
            "POLICY",
            *key,
            "REQUESTS",
            "ANSWERED",
            "COLD",
            "LOADS",
            "IDLE GB s",
            "MEAN",
            "P50",
            "P95",
            "P99",
        ),
        [_line(row, with_value=sweep is not None) for row in rows],
        title="simulated",
    )


def _policy(name: str) -> RoutingPolicy | None:
    if name == _OWN:
        return None
    try:
        return RoutingPolicy(name)
    except ValueError:
        raise InvalidInput(
            [f"--policy must be among {', '.join(RoutingPolicy)} and {_OWN}, was {name!r}"]
        ) from None


def _run(
    plan: Plan, cluster: ClusterPlan, policy: RoutingPolicy | None, value: Any
) -> dict[str, Any]:
    run = simulate(cluster, open_trace(plan.trace, seed=plan.seed), policy, plan.seed)
    name = _OWN if policy is None else policy.value
    with ExitStack() as stack:
        write = None
        if plan.out is not None:
            plan.out.mkdir(parents=True, exist_ok=True)
            suffix = "" if value is None else f"-{value}"
            path = plan.out / f"{name}{suffix}.parquet"
            write = stack.enter_context(parquet_writer(path, run.summary.document))
        for batch in run:
            if write is not None:
                write(batch)
    setting = {} if value is None else {"value": value}
    return {"policy": name, **setting, **run.summary.document()}


def _line(row: dict[str, Any], *, with_value: bool) -> tuple[str, ...]:
    value = [str(row["value"])] if with_value else []
    times = (_ms(row[name]) for name in ("mean_s", "p50_s", "p95_s", "p99_s"))
    answered = row["statuses"].get("200", 0)
    loads = sum(row["loads"].values())
    return (
        row["policy"], *value, str(row["requests"]), str(answered), str(row["cold_starts"]),
        str(loads), f"{row['wasted_memory_byte_s'] / 1e9:.1f}", *times,
    )  # fmt: skip


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"
