"""`simulate`: run a trace through a simulated cluster under one policy or several, and compare."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, Final

from load.errors import InvalidTraceName, TraceError
from pilotlight.errors import Interrupted, InvalidInput, MissingExtra, RequestFailed
from pilotlight.output import progress_bar
from pilotlight.signals import on_signal
from registry.domain.model import RoutingPolicy

try:
    from load.simulator.autoscaling import TICK_S
    from load.simulator.cluster.cluster_file import cluster_of
    from load.simulator.cluster.sweep import parse_sweep, run_names, variants
    from load.simulator.errors import InvalidCluster
    from load.simulator.runs import RunTask, Stop, play_all
    from load.trace_spec.named_files import files_of
    from load.trace_spec.trace_spec import open_trace
    from pilotlight.commands.outputs import claim, require_free
    from pilotlight.commands.simulated_loading import NO_LOADING, loading_rules, name_parts
    from pilotlight.commands.simulated_models import require_models
except ModuleNotFoundError as error:
    raise MissingExtra(error, "load") from error

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from load.simulator.autoscaling import LoadingRule
    from load.simulator.cluster.plan import ClusterPlan
    from load.simulator.runs import Ended, Problem
    from pilotlight.errors import PilotlightError
    from pilotlight.output import Output

_OWN: Final = "own"
"""In place of a policy: each model's own."""


@dataclass(frozen=True, slots=True)
class SimulationPlan:
    """What is to be simulated."""

    cluster: Path
    trace: str
    policies: str
    """Names with commas between."""
    sweep: str | None
    seed: int
    out: Path | None
    """Folder for the records, one Parquet file per run."""
    processes: int = 1
    allow_unknown: bool = False
    """Whether models that the cluster lacks may be asked for."""
    overwrite: bool = False
    loading: str = NO_LOADING
    """Names of loading policies with commas between; none: requests alone load models."""
    loading_value: float | None = None
    """The loading policy's parameter; None: its own."""
    tick_s: float = TICK_S
    """Time between two plans of a loading policy."""


@dataclass(frozen=True, slots=True)
class _Variant:
    """A cluster, and the value in its file that `--sweep` tries."""

    setting: dict[str, Any]
    """`value`, where there is a sweep."""
    cluster: ClusterPlan


def run_simulations(plan: SimulationPlan, output: Output) -> None:
    """Simulate every combination of policy and value, and print what came of each.

    Raises:
        InvalidInput: what was asked for is wrong; a row that cannot be read may come late.
        RequestFailed: the records cannot be written, or a process was lost.
        Interrupted: by a signal. What there was by then is printed and kept, as in the other cases.
    """
    stop, came = Stop(), list[int]()

    def on_interrupt(number: int) -> None:
        came.append(number)
        stop.set()

    with on_signal(on_interrupt):
        tasks = _tasks(plan)
        require_free(_outputs(tasks), files_of(plan.trace), overwrite=plan.overwrite)
        if not plan.allow_unknown:
            require_models(str(plan.cluster), tasks, stop, output)
        claim(_outputs(tasks))
        with progress_bar("simulate") as progress:
            ended = play_all(
                tasks,
                processes=plan.processes,
                stop=stop,
                on_end=lambda done: progress(done, len(tasks), f"runs: {done} of {len(tasks)}"),
            )
    _conclude(plan, ended, len(tasks), came, output)


def _tasks(plan: SimulationPlan) -> list[RunTask]:
    """All combinations. Raises InvalidInput."""
    policies = [_policy(name.strip()) for name in plan.policies.split(",")]
    folder = _folder(plan)
    rules = loading_rules(plan.loading, value=plan.loading_value, tick_s=plan.tick_s)
    try:
        each_variant = _variants(plan)
        open_trace(plan.trace, seed=plan.seed)
    except (InvalidCluster, InvalidTraceName) as error:
        raise InvalidInput(error.problems) from None
    except TraceError as error:
        raise InvalidInput([str(error)]) from None
    runs = list(product(each_variant, policies, rules))
    has_loading = any(rules)
    parts = [name_parts(rule) if has_loading else () for _, _, rule in runs]
    names = run_names([
        (_name(policy), *part, *map(str, each.setting.values()))
        for (each, policy, _), part in zip(runs, parts, strict=True)
    ])  # fmt: skip
    return [
        RunTask(
            name=name,
            about={
                "trace": plan.trace,
                "policy": _name(policy),
                **_about(rule),
                "seed": plan.seed,
                **each.setting,
            },
            cluster=each.cluster,
            policy=policy,
            trace=plan.trace,
            seed=plan.seed,
            output=None if folder is None else folder / f"{name}.parquet",
            loading=rule,
        )
        for name, (each, policy, rule) in zip(names, runs, strict=True)
    ]


def _folder(plan: SimulationPlan) -> Path | None:
    try:
        return None if plan.out is None else plan.out.expanduser()
    except RuntimeError:
        raise InvalidInput([f"--out: there is no user for {plan.out}"]) from None


def _about(rule: LoadingRule | None) -> dict[str, Any]:
    if rule is None:
        return {"loading": NO_LOADING}
    return {"loading": rule.name, "loading_value": rule.value, "tick_s": rule.tick_s}


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


def _policy(name: str) -> RoutingPolicy | None:
    if name == _OWN:
        return None
    try:
        return RoutingPolicy(name)
    except ValueError:
        raise InvalidInput(
            [f"--policy must be among {', '.join(RoutingPolicy)} and {_OWN}, was {name!r}"]
        ) from None


def _name(policy: RoutingPolicy | None) -> str:
    return _OWN if policy is None else policy.value


def _outputs(tasks: Sequence[RunTask]) -> list[Path]:
    return [task.output for task in tasks if task.output is not None]


def _conclude(
    plan: SimulationPlan, ended: Sequence[Ended], asked: int, came: Sequence[int], output: Output
) -> None:
    """Print what there is; raise why it is not all."""
    rows = [dict(each.document) for each in ended if each.document is not None]
    whole = sum(not row["interrupted"] for row in rows)
    document = {
        "simulated": True, "seed": plan.seed, "interrupted": whole < asked, "runs": rows,
    }  # fmt: skip
    problems = {each.problem.text: each.problem for each in ended if each.problem is not None}
    if came or problems:
        how = "interrupted" if came else "ended early"
        place = f"; {plan.out} holds the requests up to then" if plan.out and rows else ""
        output.note(f"{how}: {whole} of {asked} runs are whole{place}")
    _print_table(plan, rows, output)
    if problems and not came:
        raise _failure(list(problems.values()), document)
    output.result(document)
    if came:
        raise Interrupted(came[0])


def _failure(problems: Sequence[Problem], document: Mapping[str, Any]) -> PilotlightError:
    texts = [each.text for each in problems]
    is_input = all(each.is_input for each in problems)
    error = InvalidInput(texts) if is_input else RequestFailed("; ".join(texts))
    error.kept = document
    return error


def _print_table(plan: SimulationPlan, rows: Sequence[Mapping[str, Any]], output: Output) -> None:
    has_loading = any(row["loading"] != NO_LOADING for row in rows)
    loading = ["LOADING"] if has_loading else []
    value = [plan.sweep.partition("=")[0].upper()] if plan.sweep else []
    columns = ("REQUESTS", "ANSWERED", "COLD", "LOADS", "IDLE GB s", "MEAN", "P50", "P95", "P99")
    if rows:
        output.table(
            ("POLICY", *loading, *value, *columns),
            [_line(row, has_loading=has_loading) for row in rows],
            title="simulated",
        )


def _line(row: Mapping[str, Any], *, has_loading: bool) -> tuple[str, ...]:
    loading = [row["loading"]] if has_loading else []
    value = [str(row["value"])] if "value" in row else []
    latency = row["latency_s"]
    return (
        row["policy"] + (" (interrupted)" if row["interrupted"] else ""), *loading, *value,
        str(row["requests"]), str(row["ok"]), str(row["cold_starts"]),
        str(sum(row["loads"].values())), f"{row['wasted_memory_byte_s'] / 1e9:.1f}",
        *(_ms(latency[each]) for each in ("mean", "p50", "p95", "p99")),
    )  # fmt: skip


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.1f} ms"
