"""Checks, before the simulation, that the cluster has every model that the trace requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from load.errors import InvalidTrace, TraceError, UndeclaredModels, UnreadableTrace
from load.simulator.arrivals import check_times
from load.simulator.errors import WrongTrace
from load.trace_spec.trace_spec import open_trace, row_of
from load.traces.transforms.filters import declared_only
from pilotlight.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from load.simulator.runs import RunTask, StopSignal
    from pilotlight.output import Output

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
        except (TraceError, WrongTrace) as error:
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
