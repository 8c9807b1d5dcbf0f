"""Waiting in front of a device: which part of the requests is in time.

A device that takes what waits, up to its batch size, whenever it is free: Poisson arrivals, service
times that depend on the batch alone; an embedded Markov chain at the ends of batches, whose state
is the number of waiting requests.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
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
