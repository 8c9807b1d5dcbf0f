"""Time of one routing decision: the policy and its bookkeeping, without any network.

Timed, in CPU time, is the work of the placer per request: build the request, decide on the
cluster state, record the explanation. Between decisions the state changes as by the registry's
updates, untimed. `measure_in_flight`: `auto` alone, with requests of one warm model in flight.
"""

import gc
import random
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import orjson

from benchmarks.quantiles import quantile, spread
from gateway.routing.decision import SendTo
from gateway.routing.latency_model import record_placed
from gateway.routing.route_request import IncomingRequest, route_request
from gateway.telemetry.explanations import Explanations
from registry.domain.cluster import ChangeApplier, ClusterState
from registry.domain.model import ModelName, ModelSpec, RoutingPolicy
from registry.domain.pod import PodInfo
from registry.domain.pod_state import PlacedRequest
from registry.domain.records import encode, encode_spec

_GIB: Final = 1 << 30
_SLOTS: Final = 4
_NOW_S: Final = 1_000_000.0
_WARM_SHARE: Final = 0.6
_WARMING_SHARE: Final = 0.1
_ON_DISK_SHARE: Final = 0.5
"""Share of cold models that some pods have on disk; the others are only remote."""
_BUSY_SHARE: Final = 0.7
"""Share of slots that are taken; single pods vary from idle to full."""


@dataclass(frozen=True, slots=True)
class ClusterSize:
    """Size of a cluster, and the design's targets in ms."""

    pods: int
    models: int
    decisions: int
    p50_mark_ms: float | None = None
    p95_mark_ms: float | None = None


SIZES: Final = (
    ClusterSize(pods=8, models=20, decisions=3000),
    ClusterSize(pods=100, models=1_000, decisions=3000, p50_mark_ms=0.1, p95_mark_ms=0.4),
    ClusterSize(pods=1_000, models=10_000, decisions=1000, p95_mark_ms=5.0),
)


@dataclass(frozen=True, slots=True)
class DecisionTimes:
    """Times of all decisions of one policy at one size, in us by repeat."""

    size: ClusterSize
    policy: RoutingPolicy
    repeats_us: list[list[float]]

    def quantile_us(self, share: float) -> tuple[float, float, float]:
        """Median, minimum and maximum over the repeats."""
        over = spread([quantile(repeat, share) for repeat in self.repeats_us])
        return over.median, over.lowest, over.highest


def measure(*, seed: int, repeats: int) -> list[DecisionTimes]:
    """Time every policy at every size; repeats are interleaved over the policies."""
    results = []
    for size in SIZES:
        state = build(size, random.Random(f"{seed}:{size.pods}"))
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 20)  # as in the gateway
        times: dict[RoutingPolicy, list[list[float]]] = {policy: [] for policy in RoutingPolicy}
        for repeat in range(repeats):
            for policy in RoutingPolicy:
                rng = random.Random(f"{seed}:{size.pods}:{repeat}")
                times[policy].append(decisions(size, state, policy, rng))
        gc.unfreeze()
        results += [DecisionTimes(size, policy, repeats_us) for policy, repeats_us in times.items()]
    return results


def decisions(
    size: ClusterSize, state: ClusterState, policy: RoutingPolicy, rng: random.Random
) -> list[float]:
    names = list(state.models)
    explanations = Explanations()
    count_changes = _CountChanges(state, rng)
    times_us = []
    for sequence in range(size.decisions + size.decisions // 10):
        name, draw, request_id = rng.choice(names), rng.random(), f"{rng.getrandbits(128):032x}"
        count_changes.apply_next()
        began_ns = time.thread_time_ns()
        request = IncomingRequest(
            id=request_id,
            model=name,
            arrival_s=_NOW_S,
            draw=draw,
            sequence=sequence,
            policy=policy,
            deadline_s=_NOW_S + 30.0,
        )
        result = route_request(request, state.models, state, now_s=_NOW_S)
        explanations.record(request, result, state, _NOW_S)
        times_us.append((time.thread_time_ns() - began_ns) / 1000)
        if isinstance(result.decision, SendTo):
            count_changes.apply_next(taken=result.decision.entry)
    return times_us[size.decisions // 10 :]  # without warm-up


class _CountChanges:
    """Changes the counts of pods, as the registry's updates do."""

    def __init__(self, state: ClusterState, rng: random.Random) -> None:
        self._state = state
        self._changes = ChangeApplier(state)
        self._rng = rng
        self._names = list(state.pods)

    def apply_next(self, taken: str | None = None) -> None:
        """Change the counts of `taken` or of a random pod."""
        name = taken or self._rng.choice(self._names)
        used = _slots_used(self._rng)
        ongoing = self._rng.randint(0, used)
        self._changes.apply(self._state.version + 1, [["counts", name, used, ongoing]])


def _slots_used(rng: random.Random) -> int:
    return sum(rng.random() < _BUSY_SHARE for _ in range(_SLOTS))


def build(size: ClusterSize, rng: random.Random) -> ClusterState:
    """A cluster with warm, warming and cold models under load."""
    state = ClusterState()
    pods = [f"pod-{index:04d}" for index in range(size.pods)]
    changes: list[list[object]] = []
    for index, name in enumerate(pods):
        info = PodInfo(
            name=name,
            address=f"10.0.{index >> 8}.{index & 255}:8080",
            node=f"node-{index // 8}",
            slots=_SLOTS,
            memory_bytes=24 * _GIB,
        )
        used = orjson.dumps({"device": rng.randrange(4 * _GIB, 24 * _GIB)}).decode()
        counts = _slots_used(rng)
        ongoing = rng.randint(0, counts)
        changes.append(["pod", name, encode(info), index + 1, "ready", used, 10, counts, ongoing])
    for index in range(size.models):
        changes += _model_changes(ModelName("tenant", f"model-{index:05d}"), pods, rng)
    ChangeApplier(state).apply(1, changes)
    return state


def _model_changes(name: ModelName, pods: Sequence[str], rng: random.Random) -> list[list[object]]:
    spec = ModelSpec(name, f"s3://models/{name.name}")
    changes: list[list[object]] = [["model", str(name), encode_spec(spec), False, False]]
    since_ms = int(_NOW_S * 1000) - 500
    holders = rng.sample(pods, k=min(len(pods), rng.randint(2, 6)))
    kind = rng.random()
    if kind < _WARM_SHARE:
        copies = rng.randint(1, 3)
        changes += [
            ["at", spec.key, pod, f"device|-|{since_ms}|{_GIB}"] for pod in holders[:copies]
        ]
        changes += [["at", spec.key, pod, f"disk|-|{since_ms}|{_GIB}"] for pod in holders[copies:]]
    elif kind < _WARM_SHARE + _WARMING_SHARE:
        changes.append(["at", spec.key, holders[0], f"disk|disk|{since_ms}|{_GIB}"])
    elif rng.random() < _ON_DISK_SHARE:
        changes += [["at", spec.key, pod, f"disk|-|{since_ms}|{_GIB}"] for pod in holders]
    for measure_name, seconds in _TIMES_S.items():
        values = [seconds * rng.uniform(0.8, 1.2) for _ in range(8)]
        changes.append(["samples", spec.key, measure_name, values])
    return changes


_TIMES_S: Final = {
    "infer": 0.2, "preprocess": 0.005, "postprocess": 0.005, "network": 0.002,
    "load:disk": 1.0, "load:remote": 3.0,
}  # fmt: skip


IN_FLIGHT: Final = ((1, 1, 0), (1, 1, 1), (1, 1, 64), (8, 2, 64), (32, 4, 64), (32, 32, 64))
"""Pods, those that hold the model, requests in flight."""
_WARM_TIMES_S: Final = {
    "infer": 0.002, "share": 0.00025, "preprocess": 0.0001, "postprocess": 0.0001,
    "network": 0.002, "load:remote": 3.0,
}  # fmt: skip


def measure_in_flight(pods: int, warm: int, in_flight: int, *, repeats: int) -> float:
    """CPU time of a request, in us: its decision, the record of its work, and the record's end.

    The lower quartile over `repeats` of 300 requests, 0.25 ms apart.
    """
    names, model = [f"pod-{index:04d}" for index in range(pods)], ModelName("tenant", "warm")
    key, state = ModelSpec(model, "s3://models/warm").key, ClusterState()
    at = f"device|-|{int(_NOW_S * 1000)}|{_GIB}"
    spec = encode_spec(ModelSpec(model, "s3://models/warm"))
    changes: list[list[object]] = [["model", str(model), spec, False, False]]
    for name in names:
        info = PodInfo(name, "10.0.0.1:8080", name, slots=512, memory_bytes=24 * _GIB)
        changes.append(["pod", name, encode(info), 1, "ready", "{}", 0, 0, 0])
    changes += [["at", key, name, at] for name in names[:warm]]
    changes += [["samples", key, name, [seconds] * 8] for name, seconds in _WARM_TIMES_S.items()]
    ChangeApplier(state).apply(1, changes)
    placed: deque[PlacedRequest] = deque()
    times_us, draws, now_s = [], random.Random(pods), _NOW_S
    for _ in range(repeats):
        taken_ns = 0
        for sequence in range(300):
            now_s += 0.00025
            request = IncomingRequest("", model, now_s, draws.random(), sequence)
            began_ns = time.thread_time_ns()
            decision = route_request(request, state.models, state, now_s=now_s).decision
            assert isinstance(decision, SendTo)
            record = record_placed(decision, key, None, state, now_s)
            taken_ns += time.thread_time_ns() - began_ns
            assert record is not None
            placed.append(record)
            state.pods[decision.predict].add_pending(slots=1, ongoing=1)
            if len(placed) > in_flight:
                ended = placed.popleft()
                began_ns = time.thread_time_ns()
                ended.end()
                taken_ns += time.thread_time_ns() - began_ns
                next(p for p in state.pods.values() if p.work is ended.predict).add_pending(
                    slots=-1, ongoing=-1
                )
        times_us.append(taken_ns / 300 / 1000)
    return quantile(times_us, 0.25)


def summary_in_flight(*, repeats: int) -> str:
    """A Markdown table of `measure_in_flight`."""
    lines = ["| pods | warm | in flight | us |", "|---|---|---|---|"]
    for pods, warm, in_flight in IN_FLIGHT:
        found_us = measure_in_flight(pods, warm, in_flight, repeats=repeats)
        lines.append(f"| {pods} | {warm} | {in_flight} | {found_us:.1f} |")
    return "\n".join(lines)


def summary(results: Sequence[DecisionTimes]) -> str:
    """A Markdown table of all times and targets."""
    lines = [
        "| pods | models | policy | p50 us | p95 us | p99 us | p95, lowest to highest | mark |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for timed in results:
        size = timed.size
        p50, p95, p99 = (timed.quantile_us(share) for share in (0.5, 0.95, 0.99))
        lines.append(
            f"| {size.pods:,} | {size.models:,} | {timed.policy} | {p50[0]:.1f} | {p95[0]:.1f} | "
            f"{p99[0]:.1f} | {p95[1]:.1f} to {p95[2]:.1f} | {_verdict(timed)} |"
        )
    return "\n".join(lines)


def _verdict(timed: DecisionTimes) -> str:
    size = timed.size
    if size.p95_mark_ms is None:
        return "-"
    p50_ms, p95_ms = timed.quantile_us(0.5)[0] / 1000, timed.quantile_us(0.95)[0] / 1000
    missed = []
    if size.p50_mark_ms is not None and p50_ms > size.p50_mark_ms:
        missed.append(f"p50 {p50_ms:.3f} > {size.p50_mark_ms} ms")
    if p95_ms > size.p95_mark_ms:
        missed.append(f"p95 {p95_ms:.3f} > {size.p95_mark_ms} ms")
    return "MISSED: " + ", ".join(missed) if missed else "met"
