"""The cells of the benchmark, each between two measurements of the capacity.

Times of the machine change by the minute: goodput is compared with the capacity right before and
after it, tenants' latencies with those of the same requests without the greedy tenant, in turns.
Where other programs take turns with the pod, compare goodput per second of the pod's CPU time.
"""

import math
import resource
import time
from dataclasses import dataclass
from typing import Final

from benchmarks.overload.generator import Load, Sent, Stream
from benchmarks.overload.servers import TENANTS, Servers, path_of, running_servers
from benchmarks.quantiles import quantile

MULTIPLES: Final = (1, 2, 5, 10, 20)
DEADLINE_MS: Final = 1000
LAYERS: Final = (300, 1500)
"""Of a small and a large model: 100 to 200 and 20 to 40 requests per second of one core. A refusal
costs the gateway the same for both, so that at multiples of the small one's capacity its own core
is full, too."""
CLIENTS: Final = 16
"""Per tenant, where the capacity is measured: slots are always taken, and some requests wait."""
OTHERS_SHARE: Final = 0.1
"""Of the capacity, what each of the other tenants sends: less than its fair share, also where its
requests share no batch."""
GREEDY_MULTIPLE: Final = 10


@dataclass(frozen=True, slots=True)
class Plan:
    seed: int
    repeats: int
    seconds: float
    layers: int


@dataclass(frozen=True, slots=True)
class Served:
    """Good responses per second, of time and of the pod's CPU time."""

    per_s: float
    per_cpu_s: float


@dataclass(frozen=True, slots=True)
class Cores:
    """Cores in use meanwhile. The client takes its share of the same machine."""

    pod: float
    gateway: float
    generator: float


@dataclass(frozen=True, slots=True)
class Cell:
    """Goodput at a multiple of the capacity; rates in requests per second."""

    multiple: int
    has_deadline: bool
    capacity: float
    goodput: float
    cpu_share: float
    """Goodput per second of the pod's CPU time, as a share of what that is at the capacity."""
    gateway_ms: float
    """The gateway's CPU time for each request that was due."""
    cores: Cores
    late: int
    statuses: dict[str, int]
    p50_s: float
    p99_s: float
    sent_late_s: float
    """99 of 100 requests were sent at most this much later than due."""

    @property
    def share(self) -> float:
        return self.goodput / self.capacity


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Latency of the other tenants, without the greedy one or beside it."""

    has_deadline: bool
    is_beside_greedy: bool
    capacity: float
    p50_s: float
    p99_s: float
    served: int
    due: int


@dataclass(frozen=True, slots=True)
class Measured:
    cells: list[Cell]
    neighbours: list[Neighbours]


def measure(plan: Plan) -> Measured:
    measured = Measured([], [])
    with running_servers(plan.layers) as servers:
        _capacity(servers, plan)  # warms up
        for repeat in range(plan.repeats):
            seed = plan.seed + repeat
            for deadline_ms in (0, DEADLINE_MS):
                before = _capacity(servers, plan)
                for multiple in MULTIPLES:
                    before = _add_cell(measured, servers, plan, before, multiple, deadline_ms, seed)
                _add_neighbours(measured, servers, plan, before.per_s, deadline_ms, seed)
    return measured


def _add_cell(
    measured: Measured,
    servers: Servers,
    plan: Plan,
    before: Served,
    multiple: int,
    deadline_ms: int,
    seed: int,
) -> Served:
    """Returns the capacity after it."""
    rate = multiple * before.per_s / len(TENANTS)
    streams = tuple(Stream(path_of(tenant), rate, deadline_ms) for tenant in TENANTS)
    warm_up_s = plan.seconds / 4
    used = _used_s(servers)
    sent, served = _send(servers, Load(streams, plan.seconds + warm_up_s, warm_up_s, seed))
    spent = [after - before for before, after in zip(used, _used_s(servers), strict=True)]
    cores = Cores(*(each / spent[0] for each in spent[1:]))
    gateway_s = spent[2]
    after = _capacity(servers, plan)
    statuses: dict[str, int] = {}
    for each in sent:
        for status, count in each.statuses.items():
            statuses[status] = statuses.get(status, 0) + count
    latencies_s = sorted(s for each in sent for s in each.latencies_s)
    lateness_s = sorted(s for each in sent for s in each.lateness_s)
    measured.cells.append(
        Cell(
            multiple,
            deadline_ms > 0,
            (before.per_s + after.per_s) / 2,
            served.per_s,
            served.per_cpu_s / ((before.per_cpu_s + after.per_cpu_s) / 2),
            1000 * gateway_s / max(1, sum(len(each.lateness_s) for each in sent)),
            cores,
            sum(each.late for each in sent),
            statuses,
            _quantile(latencies_s, 0.5),
            _quantile(latencies_s, 0.99),
            _quantile(lateness_s, 0.99),
        )
    )
    return after


def _add_neighbours(
    measured: Measured, servers: Servers, plan: Plan, capacity: float, deadline_ms: int, seed: int
) -> None:
    *others, greedy = TENANTS
    streams = [Stream(path_of(each), OTHERS_SHARE * capacity, deadline_ms) for each in others]
    flood = Stream(path_of(greedy), GREEDY_MULTIPLE * capacity, deadline_ms)
    warm_up_s = plan.seconds / 4
    for is_beside_greedy in (False, True):
        given = (*streams, flood) if is_beside_greedy else tuple(streams)
        load = Load(given, 2 * plan.seconds + warm_up_s, warm_up_s, seed)
        sent = servers.send(load)[: len(others)]
        latencies_s = sorted(s for each in sent for s in each.latencies_s)
        measured.neighbours.append(
            Neighbours(
                deadline_ms > 0,
                is_beside_greedy,
                capacity,
                _quantile(latencies_s, 0.5),
                _quantile(latencies_s, 0.99),
                len(latencies_s),
                sum(each.due for each in sent),
            )
        )


def _used_s(servers: Servers) -> tuple[float, float, float, float]:
    """Time, and the CPU time of pod, gateway and all generators until now."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    generator_s = ended.ru_utime + ended.ru_stime
    return time.monotonic(), servers.pod.cpu_s(), servers.gateway.cpu_s(), generator_s


def _quantile(samples: list[float], share: float) -> float:
    """NaN without samples: behind a full queue no new request is served within a cell."""
    return quantile(samples, share) if samples else math.nan


def _capacity(servers: Servers, plan: Plan) -> Served:
    streams = tuple(Stream(path_of(tenant), CLIENTS) for tenant in TENANTS)
    load = Load(streams, plan.seconds / 2 + 1.0, 1.0, plan.seed, is_closed=True)
    return _send(servers, load)[1]


def _send(servers: Servers, load: Load) -> tuple[list[Sent], Served]:
    used_s = servers.pod.cpu_s()
    sent = servers.send(load)
    busy_ratio = (servers.pod.cpu_s() - used_s) / load.seconds
    per_s = sum(each.good for each in sent) / (load.seconds - load.warm_up_s)
    return sent, Served(per_s, per_s / busy_ratio if busy_ratio else math.nan)
