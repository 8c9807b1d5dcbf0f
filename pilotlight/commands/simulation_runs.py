"""The runs of `simulate`: checks models, simulates each combination of flags, prints a table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import isfinite
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from autoscaler.loading_policies import policy_of, tuned_names, value_problem
from gateway.routing.routing_policies import ROUTING_POLICIES
from load.errors import (
    InvalidCluster,
    InvalidTrace,
    InvalidTraceSpec,
    TraceError,
    UndeclaredModels,
    UnreadableTrace,
)
from load.simulator.autoscaling import TICK_S, LoadingOptions
from load.simulator.cluster.cluster_file import cluster_of, read_document
from load.simulator.cluster.plan import ClusterPlan
from load.simulator.event_queue import check_times
from load.simulator.runs import RunOutcome, RunProblem, RunTask, StopSignal, simulate_all
from load.trace_spec import files_of, open_trace
from load.traces.transforms import declared_only
from pilotlight.commands.simulated_likeness import LiveRun, shown_ms
from pilotlight.errors import (
    Interrupted,
    InvalidInput,
    PilotlightError,
    RequestFailed,
    on_first_signal,
)
from pilotlight.output import Output, clear_outputs, progress_bar, require_free
from registry.policy_names import LOADING, ROUTING, SELECTION

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


def run_tasks(plan: SimulationPlan) -> list[RunTask]:
    """One task per combination; raises InvalidInput, and PluginError."""
    policies = [_policy(name.strip()) for name in plan.policies.split(",")]
    folder = _folder(plan)
    loadings = _loading_options(plan.loading, value=plan.loading_value, tick_s=plan.tick_s)
    try:
        cluster = cluster_of(read_document(plan.cluster), source=str(plan.cluster))
        open_trace(plan.trace, seed=plan.seed)
    except (InvalidCluster, InvalidTraceSpec) as error:
        raise InvalidInput(error.problems) from None
    except TraceError as error:
        raise InvalidInput([str(error)]) from None
    runs = dict.fromkeys(product(policies, loadings))
    names = [_run_name(policy, loading, any(loadings)) for policy, loading in runs]
    return [
        RunTask(
            name=name,
            metadata={
                "trace": plan.trace,
                "policy": policy or _OWN,
                **_loading_fields(loading),
                "seed": plan.seed,
            },
            cluster=_under(policy, cluster),
            policy=policy if policy in ROUTING else None,
            trace=plan.trace,
            seed=plan.seed,
            output=None if folder is None else folder / f"{name}.parquet",
            loading=loading,
        )
        for name, (policy, loading) in zip(names, runs, strict=True)
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


def _run_name(policy: str | None, loading: LoadingOptions | None, has_loading: bool) -> str:
    """As a file name; with the loading policy, where runs have one, and its parameter if given."""
    parts = [policy or _OWN]
    if has_loading:
        parts.append(NO_LOADING if loading is None else loading.name)
    if loading is not None and loading.value is not None:
        parts.append(f"{loading.value:.12g}")
    return quote("-".join(parts), safe="")


def run_simulations(plan: SimulationPlan, output: Output, live: LiveRun | None = None) -> None:
    """Simulate every combination of policies, and print the results beside `live`.

    Results that were complete before a failure are printed and kept.

    Raises:
        InvalidInput: a flag or the cluster file is wrong, or a row of the trace, which may be
            found late in a run.
        RequestFailed: the records cannot be written, or a process was lost.
        Interrupted: by a signal.
    """
    stop, received = StopSignal(), list[int]()

    def on_signal(number: int) -> None:
        received.append(number)
        stop.set()

    with on_first_signal(on_signal):
        tasks = run_tasks(plan)
        require_free(_outputs(tasks), files_of(plan.trace), overwrite=plan.overwrite)
        if not plan.allow_unknown:
            require_models(str(plan.cluster), tasks, stop, output)
        clear_outputs(_outputs(tasks))
        with progress_bar("simulate") as progress:
            ended = simulate_all(
                tasks,
                processes=plan.processes,
                stop=stop,
                on_end=lambda done: progress(done, len(tasks), f"runs: {done} of {len(tasks)}"),
            )
    _conclude(plan, ended, len(tasks), received, output, live)


def _outputs(tasks: Sequence[RunTask]) -> list[Path]:
    return [task.output for task in tasks if task.output is not None]


def _conclude(
    plan: SimulationPlan,
    ended: Sequence[RunOutcome],
    total: int,
    received: Sequence[int],
    output: Output,
    live: LiveRun | None,
) -> None:
    """Print the results of the runs; raise the reason if some are missing or incomplete."""
    rows = [dict(each.document) for each in ended if each.document is not None]
    complete = sum(not row["interrupted"] for row in rows)
    document = {"simulated": True, "seed": plan.seed, "interrupted": complete < total, "runs": rows}
    problems = {each.problem.text: each.problem for each in ended if each.problem is not None}
    if received or problems:
        how = "interrupted" if received else "ended early"
        kept = f"; {plan.out} holds the requests up to then" if plan.out and rows else ""
        output.note(f"{how}: {complete} of {total} runs are complete{kept}")
    _print_table(rows, output)
    if live is not None:
        document["live"] = live.summary
        live.print_beside(rows, output)
    if problems and not received:
        raise _failure(list(problems.values()), document)
    output.result(document)
    if received:
        raise Interrupted(received[0])


def _failure(problems: Sequence[RunProblem], document: Mapping[str, Any]) -> PilotlightError:
    texts = [each.text for each in problems]
    is_input = all(each.is_input for each in problems)
    error = InvalidInput(texts) if is_input else RequestFailed("; ".join(texts))
    error.partial_result = document
    return error


def _print_table(rows: Sequence[Mapping[str, Any]], output: Output) -> None:
    has_loading = any(row["loading"] != NO_LOADING for row in rows)
    loading = ["LOADING"] if has_loading else []
    columns = ("REQUESTS", "ANSWERED", "COLD", "LOADS", "IDLE GB s", "MEAN", "P50", "P95", "P99")
    if rows:
        output.table(
            ("POLICY", *loading, *columns),
            [_line(row, has_loading=has_loading) for row in rows],
            title="simulated",
        )


def _line(row: Mapping[str, Any], *, has_loading: bool) -> tuple[str, ...]:
    loading = [row["loading"]] if has_loading else []
    latency = row["latency_s"]
    return (
        row["policy"] + (" (interrupted)" if row["interrupted"] else ""),
        *loading,
        str(row["requests"]),
        str(row["ok"]),
        str(row["cold_starts"]),
        str(sum(row["loads"].values())),
        f"{row['wasted_memory_byte_s'] / 1e9:.1f}",
        *(shown_ms(latency[each]) for each in ("mean", "p50", "p95", "p99")),
    )


_MAX_NAMED: Final = 5


def require_models(
    cluster: str, tasks: Sequence[RunTask], stop: StopSignal, output: Output
) -> None:
    """Read the whole trace, which all tasks share; `cluster` is the file named in messages.

    An unreadable row is printed as a note if arrivals precede it: those are simulated.

    Raises:
        InvalidInput: the trace requests models that a cluster lacks, or no row can be read.
    """
    trace, seed = tasks[0].trace, tasks[0].seed
    for declared in dict.fromkeys(map(_declared, tasks)):
        arrivals = 0
        try:
            for batch in declared_only(open_trace(trace, seed=seed), declared):
                check_times(batch)
                arrivals += batch.num_rows
                if stop.is_set:
                    return
        except UndeclaredModels as error:
            raise InvalidInput([_problem(cluster, error)]) from None
        except (InvalidTrace, UnreadableTrace) as error:
            if not arrivals:
                raise InvalidInput([str(error)]) from None
            output.note(f"{error}; only the blocks of rows before it can be simulated")
        except TraceError as error:
            raise InvalidInput([str(error)]) from None


def _declared(task: RunTask) -> frozenset[str]:
    cluster = task.cluster
    models = {str(plan.spec.name) for plan in cluster.models}
    return frozenset(models | {str(plan.spec.name) for plan in cluster.applications})


def _problem(cluster: str, error: UndeclaredModels) -> str:
    models = error.models
    named = ", ".join(models[:_MAX_NAMED]) + (", …" if len(models) > _MAX_NAMED else "")
    return (
        f"{error}; {len(models)} of the trace's models are not declared in {cluster}: "
        f"{named}; add them there, rename them with |map=, or reject them with --allow-unknown"
    )
