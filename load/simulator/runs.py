"""Runs of one trace: on several cores, each with its records in a file of its own.

A run that was stopped, or whose trace cannot be read to its end, keeps what it has and says so.
"""

from __future__ import annotations

from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from load.errors import LoadError
from load.simulator.errors import CannotWrite
from load.simulator.results.run_file import parquet_writer
from load.simulator.simulation import Simulation
from load.trace_spec.trace_spec import open_trace
from load.worker_processes import is_stopping, worker_processes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from concurrent.futures import Future
    from pathlib import Path

    import pyarrow as pa

    from load.simulator.autoscaling import LoadingRule
    from load.simulator.cluster.plan import ClusterPlan
    from registry.domain.model import RoutingPolicy


@dataclass(frozen=True, slots=True)
class RunTask:
    """One run that is to be."""

    name: str
    about: Mapping[str, Any]
    """What is known of it beforehand, as JSON."""
    cluster: ClusterPlan
    policy: RoutingPolicy | None
    """None: each model's own."""
    trace: str
    """By name; whoever plays it opens it."""
    seed: int
    output: Path | None
    """The file for its records."""
    loading: LoadingRule | None = None
    """None: requests alone load models."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a run ended early that was not stopped."""

    text: str
    is_input: bool
    """Whether the trace is wrong; else the run itself failed."""


@dataclass(frozen=True, slots=True)
class Ended:
    """What a run came to."""

    document: Mapping[str, Any] | None
    """Its summary, as JSON; `interrupted` says whether it ended before its trace did. None: it has
    no records."""
    problem: Problem | None = None


@dataclass(slots=True)
class Stop:
    """A wish that all runs end with what they have. `set` may be called by a signal handler."""

    is_set: bool = False
    _tell: list[Callable[[], object]] = field(default_factory=list)

    def set(self) -> None:
        """Wish it."""
        self.is_set = True
        for each in self._tell:
            each()

    def tell(self, listener: Callable[[], object]) -> None:
        """Have it called when the wish comes, or now if it has."""
        self._tell.append(listener)
        if self.is_set:
            listener()


def play_all(
    tasks: Sequence[RunTask], *, processes: int, stop: Stop, on_end: Callable[[int], object]
) -> list[Ended]:
    """What came of the runs, in the order of the tasks; without those that nothing came of.

    `on_end` is told how many have ended.
    """
    ended: list[Ended | None] = []
    if processes == 1 or len(tasks) == 1:
        for task in tasks:
            ended.append(play(task, lambda: stop.is_set))
            on_end(len(ended))
    else:
        with worker_processes(min(processes, len(tasks)), finish=True) as workers:
            stop.tell(workers.stop)
            futures = [workers.submit(_play_in_worker, task) for task in tasks]
            for done, _ in enumerate(as_completed(futures), start=1):
                on_end(done)
            ended += [_result(future) for future in futures]
    return [each for each in ended if each is not None]


def _play_in_worker(task: RunTask) -> Ended | None:
    return play(task, is_stopping)


def _result(future: Future[Ended | None]) -> Ended | None:
    try:
        return future.result()
    except BrokenProcessPool:
        return Ended(None, Problem("a process that simulated ended before its time", False))


def play(task: RunTask, is_stopping: Callable[[], bool]) -> Ended | None:
    """Simulate; None where it was stopped before anything was answered."""
    if is_stopping():
        return None
    scaler = None if task.loading is None else task.loading.autoscaler(task.cluster)
    trace = open_trace(task.trace, seed=task.seed)
    run = Simulation(task.cluster, trace, task.policy, task.seed, autoscaler=scaler)
    run.is_stopping = is_stopping
    problem: LoadError | None = None

    def document() -> dict[str, Any]:
        is_cut = run.was_stopped or problem is not None
        actions = {} if scaler is None else scaler.actions_by_verb()
        return {
            "run": task.name, **task.about,
            "interrupted": is_cut, **run.summary.document(), "actions": actions,
        }  # fmt: skip

    try:
        with _records(task.output, document) as write:
            try:
                for batch in run:
                    write(batch)
            except LoadError as error:  # of the trace: what came before is good
                problem = error
    except CannotWrite as error:
        problem = error
    found = document()
    is_empty = found["interrupted"] and not found["requests"]
    if task.output is not None and is_empty and not isinstance(problem, CannotWrite):
        task.output.unlink(missing_ok=True)
    return _ended(task, found, problem)


def _ended(task: RunTask, found: Mapping[str, Any], error: LoadError | None) -> Ended | None:
    problem = None if error is None else Problem(str(error), not isinstance(error, CannotWrite))
    if found["interrupted"] and not found["requests"]:
        return None if problem is None else Ended(None, problem)
    if task.output is None or isinstance(error, CannotWrite):
        return Ended(found, problem)
    return Ended({**found, "output": str(task.output)}, problem)


@contextmanager
def _records(
    output: Path | None, about: Callable[[], Mapping[str, Any]]
) -> Iterator[Callable[[pa.RecordBatch], object]]:
    """Where records go: a file, or nowhere."""
    if output is None:
        yield lambda _: None
        return
    with parquet_writer(output, about) as write:
        yield write
