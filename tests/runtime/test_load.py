"""The life of a load, in virtual time."""

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from common.inference_protocol import PodError
from load.simulator.event_queue import EventQueue, VirtualTasks
from registry.domain.cluster import ClusterState
from registry.domain.model import LoadFailure, ModelName, ModelSpec, Tier
from registry.domain.pod import Samples
from registry.domain.pod_index import Residency
from registry.domain.pod_state import ANY_COPIES, LoadClaim
from registry.errors import ClaimLost
from runtime.errors import LoadCancelled, LoadFailed, LoadRefused, MemoryBusy, ModelTooLarge
from runtime.loading.load import CLAIM_TIMEOUT_S, MEMORY_TIMEOUT_S, Loads
from runtime.loading.load_queue import MAX_CONCURRENT, Load, LoadFailures
from runtime.measurements import Measurements
from runtime.storage.load_priority import LoadTicket
from runtime.tiers.device_cache import CachedModel, DeviceCache
from runtime.tiers.eviction import ReloadCosts

SPEC = ModelSpec(ModelName("default", "m"), "s3://bucket/m")
KEY = SPEC.key
COPY_S = 2.0


@dataclass
class Reports:
    """A registry that refuses or loses claims, as often as a test says."""

    events: EventQueue
    refusals: int = 0
    lost_starts: int = 0
    lost_finishes: int = 0
    copies: int = 0
    """Other pods that have the model."""
    calls: list[tuple[float, str, int | None]] = field(default_factory=list)
    """Time, call and token."""
    claimed: int = 0
    on_finish: Callable[[], object] = lambda: None

    def _note(self, call: str, token: int | None) -> None:
        self.calls.append((self.events.now_s, call, token))

    def claim_of(self, token: int) -> LoadClaim:
        return LoadClaim(token, 1)

    async def claim(self, key: str, max_other_copies: int) -> LoadClaim:
        if self.refusals or 0 <= max_other_copies < self.copies:
            self.refusals -= bool(self.refusals)
            raise LoadRefused("refused")
        self.claimed += 1
        self._note("claim", self.claimed)
        return LoadClaim(self.claimed, 1)

    async def start_load(self, key: str, claim: LoadClaim, source: Tier) -> None:
        if self.lost_starts:
            self.lost_starts -= 1
            raise ClaimLost("expired")
        self._note("start", claim.token)

    async def finish_load(self, key: str, claim: LoadClaim, memory_bytes: int) -> None:
        self.on_finish()
        if self.lost_finishes:
            raise ClaimLost("replaced")
        self._note("finish", claim.token)

    async def fail_load(self, key: str, claim: LoadClaim, failure: LoadFailure) -> bool:
        self._note("fail", claim.token)
        return True

    def report_tier(self, key: str) -> None:
        self._note("tier", None)


@dataclass(frozen=True)
class Opened:
    memory_bytes: int
    tier: Tier = Tier.REMOTE


class SlowPod:
    """Loads of 60 bytes to a device of 100, which take `COPY_S`."""

    def __init__(self) -> None:
        self.events = EventQueue()
        self.tasks = VirtualTasks()
        self.reports = Reports(self.events)
        self.memory_bytes = 60
        self.errors: list[Exception] = []
        """Raised by the next copies."""
        self.results: list[CachedModel | PodError] = []
        self.outcomes: list[str] = []
        self.on_ended: Callable[[], object] = lambda: None
        self.measurements = Measurements()
        self.state = ClusterState()
        self.loads: Loads[None, Opened, CachedModel] = Loads(
            DeviceCache(100),
            clock=self,
            copies=self,
            registry=self.reports,
            ends=self,
            failures=LoadFailures(ClusterState, self.events.now),
            costs=ReloadCosts(),
            measurements=self.measurements,
            state=lambda: self.state,
        )

    def now_s(self) -> float:
        return self.events.now_s

    async def wait(
        self,
        ticket: LoadTicket,
        begin: Callable[[Callable[[], None]], None],
        timeout_s: float | None = None,
    ) -> bool:
        ended = self.tasks.future()
        begin(lambda: ended.set(True))
        if timeout_s is not None:
            self.events.after(timeout_s, ended.set, False)
        has_ended = await ended
        ticket.raise_if_cancelled()
        return has_ended

    def spawn(self, start: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.events.after(0.0, lambda _: self.tasks.run(start()))

    async def nearest_tier(self, key: str) -> Tier:
        return Tier.DISK

    @asynccontextmanager
    async def open(self, load: Load[None], base: object) -> AsyncIterator[Opened]:
        yield Opened(self.memory_bytes)

    async def copy(self, load: Load[None], weights: Opened) -> CachedModel:
        await self.wait(load.ticket, lambda _: None, COPY_S)
        if self.errors:
            raise self.errors.pop(0)
        return CachedModel(load.spec.key, weights.memory_bytes)

    def waiters(self, spec: ModelSpec) -> None:
        return None

    def ended(self, load: Load[None], entry: CachedModel | None, error: PodError | None) -> None:
        result = entry or error
        assert result is not None
        self.results += [result] * max(1, load.waiters)
        self.on_ended()

    def aborted(self, load: Load[None]) -> None:
        self.outcomes.append("aborted")

    def unexpected(self, load: Load[None], error: Exception) -> LoadFailed:
        raise error

    def count(
        self,
        load: Load[None],
        outcome: str,
        *,
        seconds: float = 0.0,
        failure: LoadFailure | None = None,
    ) -> None:
        self.outcomes.append(outcome)

    def until(self, when_s: float) -> None:
        """Run the events up to a time."""
        self.events.run_through([(when_s,)], lambda _: None)

    def measured(self) -> tuple[Samples, ...]:
        return self.measurements.take()

    def steps(self) -> list[str]:
        return [call for _, call, _ in self.reports.calls]


@pytest.fixture
def pod() -> SlowPod:
    return SlowPod()


def hold_memory(pod: SlowPod) -> CachedModel:
    """Occupy the device with a model in use."""
    held = CachedModel("held", 100)
    pod.loads.cache.add(held)
    pod.loads.cache.use(held)
    return held


def test_requests_share_a_load_and_each_uses_the_model(pod: SlowPod) -> None:
    assert pod.loads.join(SPEC) is pod.loads.join(SPEC)
    pod.until(COPY_S)
    entry = pod.loads.cache.by_key[KEY]
    assert pod.results == [entry, entry]
    assert (entry.users, entry.memory_bytes) == (2, 60)
    assert pod.reports.calls == [(0.0, "claim", 1), (0.0, "start", 1), (COPY_S, "finish", 1)]
    assert (pod.outcomes, pod.loads.completed_total, pod.loads.running) == (["ok"], 1, {})


def test_newest_token_of_the_gateway_is_used(pod: SlowPod) -> None:
    load = pod.loads.join(SPEC, 7)
    pod.until(1.0)
    pod.loads.join(SPEC, 9)
    pod.loads.join(SPEC)
    pod.until(COPY_S)
    assert pod.reports.calls == [(0.0, "start", 7), (COPY_S, "finish", 9)]
    assert load.source is Tier.REMOTE  # that of the weights, not the nearest before


def test_refused_claim_is_retried_until_a_request_brings_one(pod: SlowPod) -> None:
    pod.reports.refusals = 1000
    pod.loads.join_preload(SPEC, ANY_COPIES)
    pod.until(3.0)
    pod.loads.join(SPEC, 5)
    pod.until(3.2)
    assert pod.steps() == ["start"]


@pytest.mark.parametrize(("max_other_copies", "at_s"), [(0, 0.0), (ANY_COPIES, CLAIM_TIMEOUT_S)])
def test_claim_refused_for_too_long_ends_the_load(
    pod: SlowPod, max_other_copies: int, at_s: float
) -> None:
    pod.reports.refusals = 1000
    pod.loads.join_preload(SPEC, max_other_copies)
    pod.until(at_s - 0.2 if at_s else 0.0)
    assert bool(pod.results) is (at_s == 0.0)
    pod.until(at_s + 0.2)
    assert isinstance(pod.results[0], LoadRefused)
    assert pod.steps() == []  # the registry keeps what the other claim reports


@pytest.mark.parametrize("is_joined", [False, True])
def test_preload_beside_copies_at_other_pods_only_for_a_request(
    pod: SlowPod, *, is_joined: bool
) -> None:
    pod.reports.copies = 1
    pod.loads.join_preload(SPEC, 0)
    if is_joined:
        pod.loads.join(SPEC)
    pod.until(COPY_S)
    assert isinstance(pod.results[0], LoadRefused) is not is_joined


@pytest.mark.parametrize(("lost", "is_loaded"), [(1, True), (2, False)])
def test_expired_claim_is_made_again_once(pod: SlowPod, lost: int, *, is_loaded: bool) -> None:
    pod.reports.lost_starts = lost
    pod.loads.join(SPEC, 7)
    pod.until(COPY_S)
    assert isinstance(pod.results[0], LoadRefused) is not is_loaded
    assert pod.steps() == (["claim", "start", "finish"] if is_loaded else ["claim"])


def test_model_whose_claim_was_lost_is_removed(pod: SlowPod) -> None:
    pod.reports.lost_finishes = 1
    pod.loads.join(SPEC)
    pod.until(COPY_S)
    assert isinstance(pod.results[0], LoadRefused)
    assert (pod.loads.cache.by_key, pod.outcomes) == ({}, ["fenced"])


def test_failed_load_is_reported_and_waits_for_the_backoff(pod: SlowPod) -> None:
    pod.errors = [LoadFailed("broken")]
    pod.loads.join(SPEC)
    pod.until(COPY_S + 0.5)
    assert pod.steps() == ["claim", "start", "fail"]
    assert pod.loads.cache.reserved_bytes == 0
    pod.loads.join(SPEC)
    pod.until(COPY_S + 0.6)
    refused = pod.results[-1]
    assert isinstance(refused, LoadFailed)
    assert refused.retry_after_s == pytest.approx(0.5)
    assert pod.steps() == ["claim", "start", "fail", "tier"]
    pod.loads.join(SPEC)
    pod.until(COPY_S + 1.1)
    assert pod.outcomes == ["failed"]
    pod.until(10.0)
    pod.loads.join(SPEC)
    pod.until(10.0 + COPY_S)
    assert pod.outcomes == ["failed", "ok"]


def test_model_larger_than_the_device_fails(pod: SlowPod) -> None:
    pod.memory_bytes = 101
    pod.loads.join(SPEC)
    pod.until(0.0)
    assert isinstance(pod.results[0], ModelTooLarge)
    assert pod.steps() == ["claim", "start", "fail"]


def test_unexpected_error_is_raised(pod: SlowPod) -> None:
    pod.errors = [ZeroDivisionError()]
    pod.loads.join(SPEC)
    with pytest.raises(ZeroDivisionError):
        pod.until(COPY_S)


def test_load_waits_for_memory_in_use(pod: SlowPod) -> None:
    held = hold_memory(pod)
    pod.loads.join(SPEC)
    pod.until(5.0)
    assert not pod.loads.cache.reserved_bytes
    pod.loads.cache.end_use(held)
    assert (pod.loads.cache.reserved_bytes, "held" in pod.loads.cache.by_key) == (60, False)
    pod.until(5.0 + COPY_S)
    assert pod.results == [pod.loads.cache.by_key[KEY]]


def test_wait_for_memory_has_an_end(pod: SlowPod) -> None:
    hold_memory(pod)
    pod.loads.join(SPEC)
    pod.until(MEMORY_TIMEOUT_S)
    assert isinstance(pod.results[0], MemoryBusy)
    assert (pod.outcomes, pod.steps()) == (["refused"], ["claim", "start", "tier"])


@pytest.mark.parametrize(
    ("has_started", "is_preload", "outcome"),
    [
        pytest.param(False, False, "cancelled", id="nothing-has-come"),
        pytest.param(True, False, "ok", id="bytes-come"),
        pytest.param(False, True, "ok", id="preload"),
    ],
)
def test_load_without_waiting_requests(
    *, has_started: bool, is_preload: bool, outcome: str
) -> None:
    pod = SlowPod()
    if is_preload:
        pod.loads.join_preload(SPEC, ANY_COPIES)
    load = pod.loads.join(SPEC)
    pod.until(1.0)
    if has_started:
        load.ticket.has_started = True
    pod.loads.leave(load)
    assert load.ticket.is_urgent is (outcome == "cancelled")
    pod.until(COPY_S)
    assert pod.outcomes == [outcome]
    assert isinstance(pod.results[0], LoadCancelled) is (outcome == "cancelled")
    assert pod.steps()[-1] == ("tier" if outcome == "cancelled" else "finish")
    assert pod.loads.cache.reserved_bytes == 0
    assert all(not entry.users for entry in pod.loads.cache.by_key.values())


def others(count: int) -> list[ModelSpec]:
    return [ModelSpec(ModelName("default", f"m-{n}"), "s3://bucket/m") for n in range(count)]


def test_loads_take_turns_and_report_the_time_of_their_own(pod: SlowPod) -> None:
    pod.memory_bytes = 10
    for spec in others(MAX_CONCURRENT + 1):
        pod.loads.join(spec)
    pod.until(COPY_S)
    assert pod.loads.completed_total == MAX_CONCURRENT
    pod.until(2 * COPY_S)
    assert pod.loads.completed_total == MAX_CONCURRENT + 1
    assert {value for each in pod.measured() for value in each.values_s} == {COPY_S}


def test_a_load_that_waits_for_memory_gives_its_turn_away(pod: SlowPod) -> None:
    held = hold_memory(pod)
    specs = others(MAX_CONCURRENT + 1)
    for spec in specs[:-1]:
        pod.loads.join(spec)
    pod.until(1.0)
    pod.loads.cache.budget_bytes = 1000
    pod.memory_bytes = 10
    pod.loads.join(specs[-1])
    pod.until(1.0 + COPY_S)
    assert pod.loads.cache.by_key.keys() >= {specs[-1].key}
    pod.loads.cache.end_use(held)


def test_a_load_without_waiting_requests_leaves_the_queue(pod: SlowPod) -> None:
    pod.memory_bytes = 10
    *running, last = [pod.loads.join(spec) for spec in others(MAX_CONCURRENT + 1)]
    pod.until(1.0)
    pod.loads.leave(last)
    pod.until(2 * COPY_S)
    assert sorted(pod.outcomes) == ["cancelled", *["ok"] * len(running)]


@pytest.mark.parametrize("has_request", [False, True])
def test_a_queued_preload_ends_if_another_pod_has_loaded_the_model_since(
    pod: SlowPod, *, has_request: bool
) -> None:
    pod.memory_bytes = 10
    *running, last = others(MAX_CONCURRENT + 1)
    for spec in running:
        pod.loads.join(spec)
    pod.loads.join_preload(last, ANY_COPIES)
    pod.until(1.0)
    pod.state.residency.put(last.key, "elsewhere", Residency(Tier.DEVICE, None, 0.0, 10))
    if has_request:
        pod.loads.join(last)
    pod.until(2 * COPY_S)
    assert ("cancelled" in pod.outcomes) is not has_request
    assert (last.key in pod.loads.cache.by_key) is has_request


@pytest.mark.parametrize(
    ("others_want", "outcome"),
    [
        pytest.param("nobody", "cancelled", id="nobody"),
        pytest.param("asker", "ok", id="another client"),
        pytest.param("request", "ok", id="a request"),
        pytest.param("preload", "ok", id="a preload"),
    ],
)
def test_a_withdrawn_load_ends_unless_others_want_it(
    pod: SlowPod, others_want: str, outcome: str
) -> None:
    load = pod.loads.join_withdrawable(SPEC, ANY_COPIES, None)
    match others_want:
        case "asker":
            pod.loads.join_withdrawable(SPEC, ANY_COPIES, None)
        case "request":
            pod.loads.join(SPEC)
        case "preload":
            pod.loads.join_preload(SPEC, ANY_COPIES)
    pod.until(1.0)
    pod.loads.withdraw(load)
    pod.until(COPY_S)
    assert pod.outcomes == [outcome]


def test_a_load_that_waits_for_the_memory_of_another_evicts_it_once_idle(pod: SlowPod) -> None:
    first, second = others(2)
    pod.loads.join(first)
    pod.loads.join(second)
    pod.until(COPY_S / 2)
    assert pod.loads.cache.reserved_bytes == 60  # of the copy, which nothing evicts
    pod.until(COPY_S)
    entry = pod.loads.cache.by_key[first.key]
    assert (entry.users, list(pod.loads.running)) == (1, [second.key])
    pod.loads.cache.end_use(entry)
    pod.until(2 * COPY_S)
    assert list(pod.loads.cache.by_key) == [second.key]


def test_a_load_cancelled_while_it_is_published_is_there(pod: SlowPod) -> None:
    load = pod.loads.join(SPEC)
    pod.reports.on_finish = lambda: pod.loads.leave(load)
    pod.until(COPY_S)
    entry = pod.loads.cache.by_key[KEY]
    assert (load.ticket.is_cancelled, entry.users, pod.outcomes) == (True, 0, ["ok"])


def test_a_load_cancelled_as_its_memory_comes_free_reserves_none(pod: SlowPod) -> None:
    held = hold_memory(pod)
    load = pod.loads.join(SPEC)
    pod.until(1.0)
    load.ticket.cancel("of the test")
    pod.loads.cache.end_use(held)
    pod.until(1.0)
    assert isinstance(pod.results[0], LoadCancelled)
    assert (pod.loads.cache.reserved_bytes, pod.outcomes) == (0, ["cancelled"])


def test_a_load_that_begins_as_a_cancelled_one_ends_is_another(pod: SlowPod) -> None:
    first = pod.loads.join(SPEC)
    pod.on_ended = lambda: pod.loads.join(SPEC)
    pod.until(1.0)
    first.ticket.cancel("of the test")
    pod.until(COPY_S)
    second = pod.loads.running[KEY]
    assert (second is first, pod.outcomes) == (False, ["cancelled"])
    pod.on_ended = lambda: None
    pod.until(2 * COPY_S)
    assert pod.outcomes == ["cancelled", "ok"]
    assert pod.loads.cache.by_key[KEY].users == 1


def test_a_killed_pod_leaves_no_turn_and_no_waiter(pod: SlowPod) -> None:
    load = pod.loads.join(SPEC)
    running = pod.loads.run(load)
    running.send(None)  # it copies
    with pytest.raises(SystemExit):
        running.throw(SystemExit())
    assert pod.outcomes == ["aborted"]
    assert pod.results == []
