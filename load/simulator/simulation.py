"""One simulated run: from a cluster, a trace and a policy to records and a summary."""

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import islice
from math import inf
from typing import Final, Protocol

import pyarrow as pa

from load.errors import LoadError
from load.schema import Trace
from load.simulator.cluster.plan import ClusterPlan
from load.simulator.event_queue import EventQueue, rows
from load.simulator.gateway import QueueOptions
from load.simulator.records import RecordBuffer
from load.simulator.run_summary import Summary
from load.simulator.simulated_cluster import SimulatedCluster
from registry.domain.cluster import ClusterState
from registry.domain.model import ModelName
from registry.domain.pod import AcceleratorKind

BATCH_ROWS: Final = 16_384
"""Arrivals between two record batches: what a run holds in memory."""
_ROWS_BETWEEN_CHECKS: Final = 64
"""Arrivals between two calls of `is_stopping`: some milliseconds of work."""
_CHECK_INTERVAL_S: Final = 60.0
"""Virtual time between two calls while nothing arrives: heartbeats take computing time, too."""


class SimulatedAutoscaler(Protocol):
    """Counts arrivals, and acts on the cluster every `every_s` of virtual time.

    With `QueueOptions.plans_first` it also acts after changes while requests are queued, at most
    that often.
    """

    every_s: float

    def arrived(self, model: ModelName, now_s: float) -> None:
        """Count a request for a declared model."""

    def tick(self, state: ClusterState, now_s: float, actions: SimulatedCluster) -> None:
        """Plan and act."""


class _Stopped(Exception):
    """The run ends early."""


class Simulation:
    """One run. Iterate it for the record batches; `summary` is complete after the last one."""

    def __init__(
        self,
        cluster: ClusterPlan,
        trace: Trace,
        policy: str | None = None,
        seed: int = 0,
        *,
        autoscaler: SimulatedAutoscaler | None = None,
        queueing: QueueOptions | None = None,
        draws: Iterator[float] | None = None,
    ) -> None:
        """Prepare a run; iteration runs it.

        Args:
            cluster: the machines, pods and models.
            trace: the arrivals.
            policy: the routing policy; None: each model's own.
            seed: of all random numbers.
            autoscaler: None: requests alone load models.
            queueing: None: as the live gateway.
            draws: the arrivals' random numbers, as a live run had them; None: by the seed.

        Raises while it is iterated, after the records of all requests that were finished before:
            TraceError: the trace has other columns, or goes back in time.
            LoadError: what the trace itself raises.
        """
        self.is_stopping: Callable[[], bool] = lambda: False
        """Polled during the run; True ends the run with the requests that are finished."""
        self.was_stopped = False
        self.summary = Summary()
        self.events = EventQueue()
        self._trace = trace
        self._records = RecordBuffer(has_answers=bool(cluster.applications))
        self._autoscaler = autoscaler
        self._plans_first = queueing is not None and queueing.plans_first
        self._ticked_s = -inf
        self._cluster = SimulatedCluster(
            cluster,
            self.events,
            self._records.rows,
            self.summary,
            policy=policy,
            seed=seed,
            queueing=queueing,
            draws=draws,
        )
        self.registry = self._cluster.registry
        self.applications = self._cluster.applications
        """None: the cluster has none."""

    @property
    def schema(self) -> pa.Schema:
        """Of the record batches."""
        return self._records.schema

    def set_measured_times(self, times_s: Mapping[str, Mapping[str, float]]) -> None:
        """Add times by model key and measure to the registry's estimates, as pods report them."""
        estimates = self.registry.state.measurements.at(AcceleratorKind())
        for key, measures in times_s.items():
            for measure, seconds in measures.items():
                estimates.add(key, measure, (seconds,))

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        gateway = self._cluster.gateway
        if self._autoscaler is not None:
            gateway.on_arrival = self._autoscaler.arrived
            if self._plans_first:
                gateway.on_dispatch = partial(self._tick_if_due, self._autoscaler)
            self.events.after(self._autoscaler.every_s, self._tick, self._autoscaler)
        self.events.after(_CHECK_INTERVAL_S, self._check_again)
        trace_error: LoadError | None = None
        try:
            yield from self._batches()
        except _Stopped:
            pass
        except LoadError as error:  # raised by the trace: the records before it are valid
            trace_error = error
        self.summary.wasted_memory_byte_s += self._cluster.idle_byte_s()
        yield self._take_records()
        if trace_error is not None:
            raise trace_error

    def _batches(self) -> Iterator[pa.RecordBatch]:
        """All record batches but the last."""
        for batch in self._trace:
            for offset in range(0, batch.num_rows, BATCH_ROWS):
                self._run_arrivals(batch.slice(offset, BATCH_ROWS))
                yield self._take_records()
        while self._run_open_requests():
            if self._records.rows:
                yield self._take_records()

    def _run_arrivals(self, arrivals: pa.RecordBatch) -> None:
        """Run until all of these requests have arrived."""
        remaining = rows(arrivals)
        with _gc_paused(self._autoscaler is None):
            while part := tuple(islice(remaining, _ROWS_BETWEEN_CHECKS)):
                self._check()
                self.events.run_through(part, self._cluster.gateway.arrive)

    def _run_open_requests(self) -> bool:
        """Run up to `BATCH_ROWS` more events; False once no request is open."""
        self._check()
        with _gc_paused(self._autoscaler is None):
            gateway = self._cluster.gateway
            return self.events.run_some(BATCH_ROWS, until=lambda: gateway.open_total == 0)

    def _check(self) -> None:
        """Raise _Stopped if `is_stopping` returns True."""
        if self.is_stopping():
            self.was_stopped = True
            raise _Stopped

    def _check_again(self, _: object) -> None:
        self._check()
        self.events.after(_CHECK_INTERVAL_S, self._check_again)

    def _take_records(self) -> pa.RecordBatch:
        records = self._records.take()
        self.summary.add(records)
        return records

    def _tick(self, autoscaler: SimulatedAutoscaler) -> None:
        self._check()
        # With plans_first, `before_dispatch` runs the tick while requests are queued.
        if not (self._plans_first and self._cluster.gateway.placer.queued_total):
            self._tick_if_due(autoscaler)
        self.events.after(autoscaler.every_s, self._tick, autoscaler)

    def _tick_if_due(self, autoscaler: SimulatedAutoscaler) -> None:
        now_s = self.events.now_s
        if now_s >= self._ticked_s + autoscaler.every_s:
            self._ticked_s = now_s
            autoscaler.tick(self.registry.state, now_s, self._cluster)


@contextmanager
def _gc_paused(is_paused: bool) -> Iterator[None]:
    """Pause the cyclic collector: requests leave no reference cycles, autoscalers may."""
    was_enabled = gc.isenabled()
    if is_paused:
        gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
