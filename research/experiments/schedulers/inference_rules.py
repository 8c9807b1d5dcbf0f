"""Which queued requests run next, and on which machine: the INFER actions of two schedulers.

Source: Blinowski et al. 2024. `three_phases` is Baseline's rule, which round robin shares (sections
4.2.1 and 4.2.3); `strategies` is Clockwork's (section 4.2.4; Gujarati et al. 2020, section 5.2).
Machines take turns in the order of names. Pure: from queues and machines to inferences, in the
order in which they start. Times in seconds.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from math import inf
from operator import attrgetter
from typing import NamedTuple, TypeAlias

from gateway.dispatch.admission_queue import is_starved


class QueuedRequest(NamedTuple):
    arrival_s: float
    due_s: float
    """Its deadline; infinity without one."""


@dataclass(frozen=True, slots=True)
class ModelQueue:
    """The queued requests of one model."""

    key: str
    """Key of the model generation."""
    requests: Sequence[QueuedRequest]
    """In the order in which they are served: by arrival, or by deadline."""
    machines: frozenset[str]
    """Machines that hold the model."""
    batch_s: Callable[[int], float] = lambda requests: float(requests)
    """Time of one inference by its number of requests."""
    is_continuous: bool = False
    """Requests can join a batch that is running."""


@dataclass(slots=True)
class Machine:
    """A machine that may serve; mutable: rules count what they start in copies."""

    name: str
    free_slots: int = 1
    running: frozenset[str] = frozenset()
    """Keys of the models with requests under way; none: the machine is idle."""


class Inference(NamedTuple):
    """Requests of one model that start together on one machine."""

    key: str
    first: int
    """Position of the first of them in the model's queue."""
    requests: int
    """Number of requests."""
    machine: str


InferenceRule: TypeAlias = Callable[
    [Sequence[ModelQueue], Sequence[Machine], float, str], list[Inference]
]
"""From queues, machines, the time and the machine of the last inference. Positions in a queue are
those before any of the returned inferences starts."""


def three_phases(
    queues: Sequence[ModelQueue], machines: Sequence[Machine], now_s: float, last: str
) -> list[Inference]:
    """Starved requests first, then those that join running batches, then all others; by arrival."""
    return _in_phases(queues, machines, now_s, last, rank=attrgetter("arrival_s"))


def three_phases_by_deadline(
    queues: Sequence[ModelQueue], machines: Sequence[Machine], now_s: float, last: str
) -> list[Inference]:
    """`three_phases` with the earliest deadline first: the fourth refinement of round robin."""
    return _in_phases(queues, machines, now_s, last, rank=attrgetter("due_s"))


def _in_phases(
    queues: Sequence[ModelQueue],
    machines: Sequence[Machine],
    now_s: float,
    last: str,
    *,
    rank: Callable[[QueuedRequest], float],
) -> list[Inference]:
    """The first and the third phase start on idle machines that hold the model, one request each.

    The second starts only where the model is running, and only models that batch continuously.
    """
    inferences: list[Inference] = []
    by_key = {each.key: each for each in queues}
    taken: dict[str, set[int]] = {key: set() for key in by_key}
    in_turn = _in_turn(machines, last)
    for phase in ("starved", "joining", "all"):
        waiting = {
            key: deque(positions)
            for key, queue in by_key.items()
            if (phase != "joining" or queue.is_continuous)
            and (positions := _waiting(queue, taken[key], now_s if phase == "starved" else inf))
        }
        while waiting:
            key = min(waiting, key=lambda key: (rank(by_key[key].requests[waiting[key][0]]), key))
            machine = _fitting(by_key[key], in_turn, joins=phase == "joining")
            if machine is None:
                del waiting[key]
                continue
            first = waiting[key].popleft()
            if not waiting[key]:
                del waiting[key]
            inferences.append(Inference(key, first, 1, machine.name))
            taken[key].add(first)
            machine.free_slots -= 1
            machine.running |= {key}
            in_turn.remove(machine)
            in_turn.append(machine)
    return inferences


def _waiting(queue: ModelQueue, taken: Collection[int], starved_at_s: float) -> list[int]:
    """Positions of the requests not taken that are starved at a time; infinity: of all of them."""
    return [
        position
        for position, (arrival_s, due_s) in enumerate(queue.requests)
        if position not in taken
        and (starved_at_s == inf or is_starved(arrival_s, due_s, starved_at_s))
    ]


def _fitting(queue: ModelQueue, in_turn: Sequence[Machine], *, joins: bool) -> Machine | None:
    for each in in_turn:
        is_fitting = queue.key in each.running if joins else not each.running
        if is_fitting and each.free_slots > 0 and each.name in queue.machines:
            return each
    return None


def _in_turn(machines: Sequence[Machine], last: str) -> list[Machine]:
    """Copies of the machines by name, starting after `last`."""
    ordered = sorted(machines, key=lambda each: (each.name <= last, each.name))
    return [Machine(each.name, each.free_slots, each.running) for each in ordered]


class _Strategy(NamedTuple):
    """One model and batch size, ordered as they are picked: the smallest first."""

    is_late: bool
    """Its first request would end after its deadline."""
    slack_s: float
    """Time left if it starts now; of late strategies the deadline."""
    negative_requests: int
    key: str
    first: int
    """Position in the model's queue."""


def strategies(
    queues: Sequence[ModelQueue], machines: Sequence[Machine], now_s: float, last: str
) -> list[Inference]:
    """On each idle machine the strategy that is closest to its deadline and still meets it.

    A strategy is a model that the machine holds and a batch size up to its free slots. Requests
    that cannot meet their deadline run where no other can, the earliest deadline first: the thesis
    serves them, Clockwork itself drops them. Queues are in the order of deadlines.
    """
    inferences: list[Inference] = []
    started: dict[str, list[range]] = {each.key: [] for each in queues}
    for machine in _in_turn(machines, last):
        if machine.running:
            continue
        options = [
            option
            for queue in queues
            if machine.name in queue.machines
            for option in _options(queue, started[queue.key], machine.free_slots, now_s)
        ]
        if not options:
            continue
        best = min(options)
        count = -best.negative_requests
        inferences.append(Inference(best.key, best.first, count, machine.name))
        started[best.key].append(range(best.first, best.first + count))
    return inferences


def _options(
    queue: ModelQueue, started: Sequence[range], max_count: int, now_s: float
) -> list[_Strategy]:
    """Strategies from the first request that can be in time, and from the first one of all."""
    requests = queue.requests
    in_time = bisect_left(requests, now_s + queue.batch_s(1), key=lambda each: each.due_s)
    options: list[_Strategy] = []
    for begin in {_first_free(0, started), _first_free(in_time, started)}:
        for count in range(1, min(max_count, len(requests) - begin) + 1):
            if any(begin + count - 1 in each for each in started):
                break
            due_s = requests[begin].due_s
            slack_s = due_s - now_s - queue.batch_s(count)
            is_late = slack_s < 0
            options.append(
                _Strategy(is_late, due_s if is_late else slack_s, -count, queue.key, begin)
            )
    return options


def _first_free(position: int, started: Sequence[range]) -> int:
    """The first position from this one on that no inference has taken."""
    while any(position in each for each in started):
        position += 1
    return position
