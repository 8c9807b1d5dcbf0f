"""Several runs on several cores, each with its records in a file of its own.

A run that was stopped, or whose trace cannot be read to its end, keeps its records up to then.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from load.errors import CannotWrite, LoadError
from load.generator.records import METADATA_KEY
from load.schema import RECORD_SCHEMA
from load.simulator.autoscaling import LoadingOptions
from load.simulator.cluster.plan import ClusterPlan
from load.simulator.simulation import Simulation
from load.trace_spec import open_trace
from load.worker_processes import is_stopping, worker_processes


@dataclass(frozen=True, slots=True)
class RunTask:
    name: str
    metadata: Mapping[str, Any]
    """Fields of the run's summary, as JSON."""
    cluster: ClusterPlan
    policy: str | None
    """None: each model's own."""
    trace: str
    """A trace specification; the process that runs the task opens it."""
    seed: int
    output: Path | None
    """The file for its records."""
    loading: LoadingOptions | None = None
    """None: requests alone load models."""


@dataclass(frozen=True, slots=True)
class RunProblem:
    """Why a run that was not stopped ended early."""

    text: str
    is_input: bool
    """True if the trace is wrong, False if the run itself failed."""


@dataclass(frozen=True, slots=True)
class RunOutcome:
    document: Mapping[str, Any] | None
    """The run's summary as JSON, with `interrupted` if the run ended before its trace. None: the
    run has no records."""
    problem: RunProblem | None = None


@dataclass(slots=True)
class StopSignal:
    """Asks all runs to end. A signal handler may call `set`."""

    is_set: bool = False
    _listeners: list[Callable[[], object]] = field(default_factory=list)

    def set(self) -> None:
        self.is_set = True
        for each in self._listeners:
            each()

    def on_set(self, listener: Callable[[], object]) -> None:
        """Call the listener when it is set, or now if it is."""
        self._listeners.append(listener)
        if self.is_set:
            listener()


def simulate_all(
    tasks: Sequence[RunTask], *, processes: int, stop: StopSignal, on_end: Callable[[int], object]
) -> list[RunOutcome]:
    """The outcomes in the order of the tasks, without runs that were stopped before any record.

    `on_end` is called with the number of runs that have ended.
    """
    outcomes: list[RunOutcome | None] = []
    if processes == 1 or len(tasks) == 1:
        for task in tasks:
            outcomes.append(simulate_task(task, lambda: stop.is_set))
            on_end(len(outcomes))
    else:
        with worker_processes(min(processes, len(tasks)), finish=True) as workers:
            stop.on_set(workers.stop)
            futures = [workers.submit(_simulate_in_worker, task) for task in tasks]
            for done, _ in enumerate(as_completed(futures), start=1):
                on_end(done)
            outcomes += [_outcome_of(future) for future in futures]
    return [each for each in outcomes if each is not None]


def _simulate_in_worker(task: RunTask) -> RunOutcome | None:
    return simulate_task(task, is_stopping)


def _outcome_of(future: Future[RunOutcome | None]) -> RunOutcome | None:
    try:
        return future.result()
    except BrokenProcessPool:
        return RunOutcome(None, RunProblem("a worker process ended unexpectedly", False))


def simulate_task(task: RunTask, is_stopping: Callable[[], bool]) -> RunOutcome | None:
    """None if the run was stopped before any request was finished."""
    if is_stopping():
        return None
    scaler = None if task.loading is None else task.loading.new_autoscaler(task.cluster)
    trace = open_trace(task.trace, seed=task.seed)
    run = Simulation(task.cluster, trace, task.policy, task.seed, autoscaler=scaler)
    run.is_stopping = is_stopping
    problem: LoadError | None = None

    def document() -> dict[str, Any]:
        is_interrupted = run.was_stopped or problem is not None
        actions = {} if scaler is None else scaler.actions_by_verb()
        return {
            "run": task.name,
            **task.metadata,
            "interrupted": is_interrupted,
            **run.summary.document(),
            "actions": actions,
        }

    try:
        with (
            nullcontext(_discard)
            if task.output is None
            else parquet_writer(task.output, document, run.schema)
        ) as write:
            try:
                for batch in run:
                    write(batch)
            except LoadError as error:  # raised by the trace: the records before it are valid
                problem = error
    except CannotWrite as error:
        problem = error
    found = document()
    is_empty = found["interrupted"] and not found["requests"]
    if task.output is not None and is_empty and not isinstance(problem, CannotWrite):
        task.output.unlink(missing_ok=True)
    return _outcome(task, found, problem)


def _discard(_: pa.RecordBatch) -> None:
    """Records that no file takes."""


def _outcome(task: RunTask, found: Mapping[str, Any], error: LoadError | None) -> RunOutcome | None:
    problem = None if error is None else RunProblem(str(error), not isinstance(error, CannotWrite))
    if found["interrupted"] and not found["requests"]:
        return None if problem is None else RunOutcome(None, problem)
    if task.output is None or isinstance(error, CannotWrite):
        return RunOutcome(found, problem)
    return RunOutcome({**found, "output": str(task.output)}, problem)


@contextmanager
def parquet_writer(
    path: Path, metadata: Callable[[], Mapping[str, Any]], schema: pa.Schema = RECORD_SCHEMA
) -> Iterator[Callable[[pa.RecordBatch], None]]:
    """Yields a function that writes a record batch; writes the run's metadata at the end.

    `metadata` is called at the end; reports read its result from the file's key `pilotlight.run`.
    The file's name ends in `.unfinished` until the file is complete.

    Raises:
        CannotWrite: the file cannot be written.
    """
    try:
        with _unfinished(path) as file:
            with pq.ParquetWriter(file, schema) as writer:
                yield writer.write_batch
                text = json.dumps({"kind": "simulated", **metadata()})
                writer.add_key_value_metadata({METADATA_KEY: text.encode()})
            file.flush()
            Path(file.name).replace(path)
    except OSError as error:
        raise CannotWrite(f"--out: cannot write {path}: {error}") from error


@contextmanager
def _unfinished(path: Path) -> Iterator[BinaryIO]:
    """An empty temporary file for `path`, locked against other processes; raises CannotWrite."""
    unfinished = path.with_name(path.name + ".unfinished")
    with unfinished.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_ours = unfinished.stat().st_ino == os.fstat(file.fileno()).st_ino
        except (BlockingIOError, FileNotFoundError):
            is_ours = False
        taken = CannotWrite(f"--out: another run writes {path}; name another folder")
        if not is_ours:
            raise taken
        try:
            if path.exists():
                raise taken
            file.truncate(0)
            yield file
        finally:
            unfinished.unlink(missing_ok=True)
