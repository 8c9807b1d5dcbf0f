"""Waiting in front of a device, by router: which part of the requests is in time.

A device that takes what waits, up to its batch size, whenever it is free (`bulk_queue`): Poisson
arrivals, service times that depend on the batch alone; an embedded Markov chain at the ends of
batches, whose state is the number of waiting requests.

A router that builds batches for the replicas in turn (`batch_queue`; Elvinger 2024, section 4.3.3):
a batch is sent when it is full or its first request has waited `max_wait_s`, and queues as a whole.
Intervals between the batches of a replica are taken as gamma distributed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import exp, lgamma, log
from typing import Final

import numpy as np
from numpy.typing import NDArray

_MAX_WAITING: Final = 300
_FULL: Final = 0.97
"""Load above which the queue counts as overloaded."""
_MOMENTS: Final = 5
"""Moments within a batch at which an arrival is considered."""
_LOST: Final = 1e-4
"""States that are less probable are left out."""
_STEPS: Final = 96
"""Of the budget, in the distribution of waiting times; systems of 100 rows need one thread."""


@dataclass(frozen=True, slots=True)
class QueueOutcome:
    in_time: float
    """Probability that a request is served within the budget."""
    busy: float
    """Part of the time that the device computes."""


def bulk_queue(
    *,
    rate_rps: float,
    seconds: Sequence[float],
    budget_s: float,
    late_horizon_s: float | None = None,
) -> QueueOutcome:
    """Waiting and service of Poisson arrivals; `seconds`: of a batch of 1, 2, … requests.

    A free device takes min(waiting, len(seconds)). Above the capacity, requests that would be late
    are refused; with `late_horizon_s` they are served, so that only those of the first part of this
    time are not late.
    """
    if rate_rps <= 0:
        return QueueOutcome(float(seconds[0] <= budget_s), 0.0)
    capacity = len(seconds) / seconds[-1]
    served_rps = min(rate_rps, _FULL * capacity)
    states = _states(served_rps, seconds, budget_s)
    chain = _chain(served_rps, tuple(seconds), states)
    found = _outcome(served_rps, np.asarray(seconds), budget_s, chain)
    if rate_rps <= served_rps:
        return found
    part = served_rps / rate_rps
    if late_horizon_s is not None and rate_rps > capacity:
        until_s = max(0.0, budget_s - 1.5 * seconds[-1]) * capacity / (rate_rps - capacity)
        part = min(part, until_s / late_horizon_s)
    return QueueOutcome(found.in_time * part, 1.0)


def _states(rate_rps: float, seconds: Sequence[float], budget_s: float) -> int:
    """Enough waiting requests that more are improbable, or late anyway."""
    load = rate_rps * seconds[-1] / len(seconds)
    mean = rate_rps * seconds[-1]
    enough = mean + 8 * mean**0.5 + len(seconds) * (1 + 6 / (1 - load) / len(seconds) ** 0.5)
    late = len(seconds) + 2 * budget_s * len(seconds) / seconds[-1]
    return int(min(_MAX_WAITING, max(16.0, min(enough, late))))


def _poisson(means: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """Probabilities of 0 … count - 1 arrivals by mean; the last takes all larger numbers."""
    numbers = np.arange(count)
    logs = np.concatenate([[0.0], np.cumsum(np.log(numbers[1:]))])
    with np.errstate(divide="ignore", invalid="ignore"):
        log_means = np.where(means > 0, np.log(means), -np.inf)[..., None]
        chances = np.exp(np.where(numbers > 0, numbers * log_means, 0.0) - means[..., None] - logs)
    chances[..., -1] += np.maximum(0.0, 1 - chances.sum(axis=-1))
    return np.asarray(chances)


@lru_cache(maxsize=8192)
def _chain(rate_rps: float, seconds: tuple[float, ...], states: int) -> NDArray[np.float64]:
    """The stationary probabilities of the numbers that wait when a batch ends."""
    times = np.asarray(seconds)
    arrivals = _poisson(rate_rps * times, states)
    moves = np.zeros((states, states))
    for waiting in range(states):
        taken = min(max(waiting, 1), len(times))
        left = max(0, waiting - taken)
        moves[waiting, left:] = arrivals[taken - 1][: states - left]
        moves[waiting, -1] += arrivals[taken - 1][states - left :].sum()
    matrix = moves.T - np.eye(states)
    matrix[-1] = 1.0
    target = np.zeros(states)
    target[-1] = 1.0
    solved = np.maximum(np.linalg.solve(matrix, target), 0.0)
    return np.asarray(solved / solved.sum())


def _outcome(
    rate_rps: float, times: NDArray[np.float64], budget_s: float, chain: NDArray[np.float64]
) -> QueueOutcome:
    largest = len(times)
    taken = np.minimum(np.maximum(np.arange(len(chain)), 1), largest)
    first = times[taken - 1]
    busy_s = float(chain @ first)
    idle_s = float(chain[0]) / rate_rps
    keep = chain > _LOST
    waiting = np.flatnonzero(keep)
    left = np.maximum(0, waiting - taken[keep])
    passed = (np.arange(_MOMENTS) + 0.5) / _MOMENTS * first[keep][:, None]
    highest = float(rate_rps * first[keep].max())
    before = np.arange(int(highest + 4 * highest**0.5 + 4))
    chances = _poisson(rate_rps * passed, len(before))
    place = left[:, None, None] + before + 1
    full = (place - 1) // largest
    starts_s = (first[keep][:, None] - passed)[..., None] + full * times[-1]
    mine = place - full * largest
    within = _own_batch(rate_rps, times, budget_s - starts_s, mine, starts_s)
    in_time = (chances * within).sum(axis=-1).mean(axis=-1)
    served = float((chain[keep] * rate_rps * first[keep]) @ in_time)
    served += float(chain[0]) * float(times[0] <= budget_s)
    total = rate_rps * busy_s + float(chain[0])
    return QueueOutcome(min(1.0, served / total), busy_s / (busy_s + idle_s))


def _own_batch(
    rate_rps: float,
    times: NDArray[np.float64],
    left_s: NDArray[np.float64],
    mine: NDArray[np.int64],
    joins_s: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Probability that few enough requests join the batch for it to end within the time left."""
    largest = len(times)
    allowed = np.searchsorted(np.maximum.accumulate(times), left_s, side="right")
    more = allowed - mine
    normal = (more + 0.5 - rate_rps * joins_s) / np.sqrt(np.maximum(rate_rps * joins_s, 1e-9))
    joining = 1 / (1 + np.exp(np.clip(-1.702 * normal, -60, 60)))
    return np.where(allowed >= largest, 1.0, np.where(more < 0, 0.0, joining))


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
