"""Checks that the cluster has the trace's models, simulates, and prints a table of the results."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from load.errors import InvalidTrace, TraceError, UndeclaredModels, UnreadableTrace
from load.simulator.arrivals import check_times
from load.simulator.runs import RunOutcome, RunProblem, RunTask, StopSignal, simulate_all
from load.trace_spec import files_of, open_trace, row_of
from load.traces.transforms import declared_only
from pilotlight.commands.output_files import clear_outputs, require_free
from pilotlight.commands.simulation.tasks import NO_LOADING, SimulationPlan, run_tasks
from pilotlight.errors import Interrupted, InvalidInput, PilotlightError, RequestFailed
from pilotlight.output import Output, progress_bar
from pilotlight.signals import on_first_signal


def run_simulations(plan: SimulationPlan, output: Output) -> None:
    """Simulate every combination of policy and value, and print the results.

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
    _conclude(plan, ended, len(tasks), received, output)


def _outputs(tasks: Sequence[RunTask]) -> list[Path]:
    return [task.output for task in tasks if task.output is not None]


def _conclude(
    plan: SimulationPlan,
    ended: Sequence[RunOutcome],
    total: int,
    received: Sequence[int],
    output: Output,
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
    _print_table(plan, rows, output)
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
        row["policy"] + (" (interrupted)" if row["interrupted"] else ""),
        *loading,
        *value,
        str(row["requests"]),
        str(row["ok"]),
        str(row["cold_starts"]),
        str(sum(row["loads"].values())),
        f"{row['wasted_memory_byte_s'] / 1e9:.1f}",
        *(_ms(latency[each]) for each in ("mean", "p50", "p95", "p99")),
    )


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.1f} ms"


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
            raise InvalidInput([_problem(trace, cluster, error)]) from None
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


def _problem(trace: str, cluster: str, error: UndeclaredModels) -> str:
    models = error.models
    found = row_of(trace, models[0])
    where = "" if found is None else f"{found[0]}, row {found[1]}: "
    named = ", ".join(models[:_MAX_NAMED]) + (", …" if len(models) > _MAX_NAMED else "")
    return (
        f"{where}{error}; {len(models)} of the trace's models are not declared in {cluster}: "
        f"{named}; add them there, rename them with |map=, or reject them with --allow-unknown"
    )
