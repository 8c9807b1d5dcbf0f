"""A twin of the cluster: shadow runs on the same arrivals, one per policy, choose its policy.

An upper bound: the shadows know the true times, a live twin would have measured ones. Every
`_EVERY_S` the policy with the lowest loss over the last arrivals is declared for all models, as an
annotation would; queued requests are then decided anew.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import exp, inf, sqrt
from typing import Final

import numpy as np
import pyarrow as pa

from load.report.run import Floats
from load.schema import Trace
from load.simulator.cluster.plan import ClusterPlan
from load.simulator.event_queue import EventQueue, Row, rows
from load.simulator.records import RecordBuffer
from load.simulator.run_summary import Summary
from load.simulator.simulated_cluster import SimulatedCluster

EXPERTS: Final = ("auto", "auto-without-proxies", "colocation-queueing", "remote-proxy")
_TAU_S: Final = 60.0
"""Time constant of the losses' weights; older arrivals than four of it do not count."""
_EVERY_S: Final = 2.0
_MIN_REQUESTS: Final = 500
"""In the window, before a policy is compared with another."""
_GAIN: Final = 0.97
"""Of the current policy's loss that another's must be below, beside two standard errors."""
_BLOCKS: Final = (4, 20)
"""Fewest and most blocks in time, by which the standard error is estimated."""


class _ClusterRun:
    """A cluster under one policy that is advanced in steps of virtual time."""

    def __init__(self, plan: ClusterPlan, policy: str | None, seed: int) -> None:
        self.summary = Summary()
        self.records = RecordBuffer()
        self.events = EventQueue()
        self.cluster = SimulatedCluster(
            plan,
            self.events,
            self.records.rows,
            self.summary,
            policy=policy,
            seed=seed,
            queueing=None,
            draws=None,
        )

    def advance(self, arrivals: Sequence[Row], until_s: float) -> None:
        self.events.run_through(arrivals, self.cluster.gateway.arrive)
        self.events.run_through([(until_s,)], lambda _: None)

    def finish(self) -> None:
        while self.events.run_some(4096, until=lambda: not self.cluster.gateway.open_total):
            pass


class _Shadow(_ClusterRun):
    def __init__(self, plan: ClusterPlan, policy: str, seed: int, deadline_s: float) -> None:
        super().__init__(plan, policy, seed)
        self._deadline_s = deadline_s
        self._losses: dict[int, float] = {}
        """Of finished requests, by row of the trace."""

    def losses_s(self, window: Sequence[tuple[int, float]], now_s: float) -> Floats:
        """Latencies, or ages so far, of rows; a missed deadline costs the deadline once more."""
        finished = self.records.rows
        for id_, arrival_s, finished_s, status in zip(
            finished.request_id,
            finished.arrival_s,
            finished.finished_s,
            finished.status,
            strict=True,
        ):
            row = int(id_.rpartition("-")[2])
            self._losses[row] = self._loss_s(finished_s - arrival_s, is_ok=status == 200)
        finished.clear()
        return np.array(
            [
                self._losses[row] if row in self._losses else self._loss_s(now_s - at_s, is_ok=True)
                for row, at_s in window
            ]
        )

    def _loss_s(self, latency_s: float, *, is_ok: bool) -> float:
        if is_ok and latency_s <= self._deadline_s:
            return latency_s
        deadline_s = self._deadline_s if self._deadline_s < inf else 0.0
        return max(latency_s, deadline_s) + deadline_s


class TwinRun:
    """One run, as `Simulation`: iterate it for the record batch."""

    def __init__(
        self, plan: ClusterPlan, trace: Trace, seed: int, deadline_s: float | None
    ) -> None:
        self._plan = plan
        self._arrivals = [row for batch in trace for row in rows(batch)]
        self._main = _ClusterRun(plan, None, seed)
        self._current = EXPERTS[0]
        self._declare(self._current)
        due_s = inf if deadline_s is None else deadline_s
        self._shadows = {name: _Shadow(plan, name, seed, due_s) for name in EXPERTS}
        self.summary = self._main.summary
        self.switches: list[tuple[float, str]] = []
        """When, and to which policy."""

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        window: deque[tuple[int, float]] = deque()
        begin, until_s = 0, 0.0
        while begin < len(self._arrivals):
            until_s += _EVERY_S
            end = begin
            while end < len(self._arrivals) and self._arrivals[end][0] <= until_s:
                window.append((end, self._arrivals[end][0]))
                end += 1
            for each in (self._main, *self._shadows.values()):
                each.advance(self._arrivals[begin:end], until_s)
            begin = end
            while window and window[0][1] < until_s - 4 * _TAU_S:
                window.popleft()
            self._choose(window, until_s)
        self._main.finish()
        yield self._main.records.take()

    def _choose(self, window: Sequence[tuple[int, float]], now_s: float) -> None:
        losses = {name: each.losses_s(window, now_s) for name, each in self._shadows.items()}
        if len(window) < _MIN_REQUESTS:
            return
        weights = np.array([exp((at_s - now_s) / _TAU_S) for _, at_s in window])
        found = winner(losses, weights, self._current)
        if found != self._current:
            self._current = found
            self.switches.append((now_s, found))
            self._declare(found)

    def _declare(self, policy: str) -> None:
        specs = [
            replace(each.spec, policy=replace(each.spec.policy, routing=policy))
            for each in self._plan.models
        ]
        self._main.cluster.registry.put_models(specs, self._main.events.now_s)
        self._main.cluster.gateway.placer.notify_change()


def winner(losses_s: Mapping[str, Floats], weights: Floats, current: str) -> str:
    """The policy with the lowest mean loss if it is clearly below the current one's.

    By paired differences in blocks in time: over two standard errors and 3 %.
    """
    means = {name: float(np.average(each, weights=weights)) for name, each in losses_s.items()}
    best = min(means, key=lambda name: means[name])
    if means[best] >= _GAIN * means[current]:
        return current
    gains = losses_s[current] - losses_s[best]
    blocks = np.array_split(np.arange(len(gains)), np.clip(len(gains) // 100, *_BLOCKS))
    shares = np.array([weights[block].sum() for block in blocks]) / weights.sum()
    by_block = np.array([np.average(gains[block], weights=weights[block]) for block in blocks])
    gain = float(shares @ by_block)
    error = sqrt(float((shares**2) @ (by_block - gain) ** 2))
    return best if gain > 2 * error else current
