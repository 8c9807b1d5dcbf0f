"""Waiting behind a router that builds batches for the replicas in turn: which part is in time.

Elvinger 2024, section 4.3.3: a batch is sent when it is full or its first request has waited
`BUILD_WAIT_S`, and queues as a whole. Intervals between the batches of a replica are taken as gamma
distributed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, lgamma, log
from typing import Final

import numpy as np
from numpy.typing import NDArray

from autoscaler.placement.queueing import QueueOutcome

BUILD_WAIT_S: Final = 0.1
"""MAX_WAIT_TIME."""
_STEPS: Final = 96
"""Of the budget, in the distribution of waiting times; systems of 100 rows need one thread."""


def built_batches(
    *,
    rate_rps: float,
    seconds: Sequence[float],
    batch_sizes: Sequence[int],
    budget_s: float,
    transfer_s: float,
    late_horizon_s: float | None,
) -> QueueOutcome:
    """Of one replica, as `PlanParams.router`; the inputs of a batch are sent together."""
    turn = batch_turn(
        rate_rps=rate_rps, batch_size=len(seconds), batch_sizes=batch_sizes, max_wait_s=BUILD_WAIT_S
    )
    return batch_queue(
        rate_rps=rate_rps,
        turn=turn,
        service_s=seconds[max(1, round(turn.size)) - 1],
        budget_s=budget_s - transfer_s * turn.size,
        late_horizon_s=late_horizon_s,
    )


@dataclass(frozen=True, slots=True)
class BatchTurn:
    """The batches that one replica gets: their size, and the time from one to the next."""

    size: float
    build_s: float
    """From the first request of a batch to its sending."""
    every_s: float
    variance: float


def batch_turn(
    *, rate_rps: float, batch_size: int, batch_sizes: Sequence[int], max_wait_s: float
) -> BatchTurn:
    """For a replica of a model whose replicas have `batch_sizes`, its own among them."""
    every_s = variance = 0.0
    for each in batch_sizes:
        size, build_s = _build(rate_rps, each, max_wait_s)
        is_full = size >= each
        every_s += build_s + 1 / rate_rps
        variance += size / rate_rps**2 if is_full else 1 / rate_rps**2
    size, build_s = _build(rate_rps, batch_size, max_wait_s)
    return BatchTurn(size, build_s, every_s, variance)


def _build(rate_rps: float, batch_size: int, max_wait_s: float) -> tuple[float, float]:
    """Mean size, and the time until it is sent."""
    full_s = (batch_size - 1) / rate_rps
    if full_s <= max_wait_s:
        return float(batch_size), full_s
    return 1 + rate_rps * max_wait_s, max_wait_s


def batch_queue(
    *,
    rate_rps: float,
    turn: BatchTurn,
    service_s: float,
    budget_s: float,
    late_horizon_s: float | None = None,
) -> QueueOutcome:
    """Requests of one replica in time: building, waiting and service within the budget.

    `rate_rps` is the model's. Of a replica that gets more than it can serve: see `bulk_queue`.
    """
    left_s = budget_s - service_s
    load = service_s / turn.every_s
    if left_s < 0:
        return QueueOutcome(0.0, min(1.0, load))
    positions = np.arange(max(1, round(turn.size)))
    delays = np.maximum(0.0, turn.build_s - positions / rate_rps)
    if load >= 1:
        part = np.where(delays <= left_s, 1 / load, 0.0)
        if late_horizon_s is not None:
            slack_s = np.maximum(0.0, left_s - delays)
            part = np.minimum(part, slack_s / (max(load - 1, 1e-9) * late_horizon_s))
        return QueueOutcome(float(part.mean()), 1.0)
    waits = _waits(turn, service_s, left_s)
    at = np.floor((left_s - delays) / max(left_s, 1e-9) * _STEPS).astype(int)
    within = np.where(at < 0, 0.0, np.cumsum(waits)[np.clip(at, 0, _STEPS)])
    return QueueOutcome(float(within.mean()), load)


def _waits(turn: BatchTurn, service_s: float, longest_s: float) -> NDArray[np.float64]:
    """Stationary waits of batches (Lindley's recursion) on a grid up to `longest_s`, and above."""
    step_s = max(longest_s, 1e-9) / _STEPS
    whole, part = divmod(service_s / step_s, 1)
    span = _STEPS + int(whole) + 3
    interval = _gamma(turn.every_s, turn.variance, step_s, span)
    size = _STEPS + 2
    matrix = (1 - part) * _moves(interval, int(whole), size)
    matrix += part * _moves(interval, int(whole) + 1, size)
    matrix = matrix.T - np.eye(size)
    matrix[-1] = 1.0
    target = np.zeros(size)
    target[-1] = 1.0
    solved = np.maximum(np.linalg.solve(matrix, target), 0.0)
    return np.asarray(solved[: _STEPS + 1] / solved.sum())


def _moves(interval: NDArray[np.float64], service: int, size: int) -> NDArray[np.float64]:
    """From each wait to the next: it grows by the service, and falls by the interval, to 0."""
    waits = np.arange(size)[:, None]
    passed = waits + service - np.arange(size)
    moves = np.where(passed >= 0, interval[np.clip(passed, 0, len(interval) - 1)], 0.0)
    at_most = np.cumsum(interval)
    longest = np.clip(waits + service, 0, len(interval))[:, 0]
    moves[:, 0] = 1.0 - np.where(longest > 0, at_most[longest - 1], 0.0)
    above = np.clip(waits[:, 0] + service - (size - 1), -1, len(interval) - 1)
    moves[:, -1] = np.where(above >= 0, at_most[above], 0.0)
    return np.asarray(moves)


def _gamma(mean: float, variance: float, step: float, count: int) -> NDArray[np.float64]:
    """Probabilities of the steps 0 … count - 1; the last takes all above."""
    shape, scale = mean**2 / variance, variance / mean
    parts = 8
    values = (np.arange(count * parts) + 0.5) * step / parts
    logs = (shape - 1) * np.log(values) - values / scale - lgamma(shape) - shape * log(scale)
    fine = np.exp(logs) * step / parts
    # Steps are around whole multiples: half a step is added before the sum.
    shifted = np.concatenate([np.zeros(parts // 2), fine])[: count * parts]
    chances = shifted.reshape(count, parts).sum(axis=1)
    if chances.sum() < exp(-20):
        chances[min(count - 1, round(mean / step))] = 1.0
    chances[-1] += max(0.0, 1 - chances.sum())
    return np.asarray(chances / chances.sum())
