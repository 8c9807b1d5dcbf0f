"""The life of a load, in virtual time."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from common.inference_protocol.errors import PodError
from load.simulator.event_queue import EventQueue, VirtualTasks
from registry.domain.cluster import ClusterState
from registry.domain.model import LoadFailure, ModelName, ModelSpec, Tier
from registry.domain.pod import Samples
from registry.domain.pod_index import Residency
from registry.domain.pod_state import ANY_COPIES, LoadClaim
from registry.errors import ClaimLost
from runtime.errors import LoadCancelled, LoadFailed, LoadRefused, MemoryBusy, ModelTooLarge
from runtime.loading.failures import LoadFailures
from runtime.loading.load_lifecycle import CLAIM_TIMEOUT_S, MEMORY_TIMEOUT_S, LoadLifecycle
from runtime.loading.load_turns import MAX_CONCURRENT, Load
from runtime.registration.measurements import Measurements
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
        if self.lost_finishes:
            raise ClaimLost("replaced")
        self._note("finish", claim.token)

    async def fail_load(self, key: str, claim: LoadClaim, failure: LoadFailure) -> bool:
        self._note("fail", claim.token)
        return True

    def report_tier(self, key: str) -> None:
        self._note("tier", None)


class Loads(LoadLifecycle[Load, CachedModel]):
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
        self.measurements = Measurements()
        self.state = ClusterState()
        cache: DeviceCache[CachedModel] = DeviceCache(100)
        super().__init__(
            cache,
            self.reports,
            failures=LoadFailures(ClusterState, self.events.now),
            costs=ReloadCosts(),
            measurements=self.measurements,
            state=lambda: self.state,
        )

    def now_s(self) -> float:
        return self.events.now_s

    async def wait(
        self,
        load: Load,
        begin: Callable[[Callable[[], None]], None],
        timeout_s: float | None = None,
    ) -> bool:
        ended = self.tasks.future()
        begin(lambda: ended.set(True))
        if timeout_s is not None:
            self.events.after(timeout_s, ended.set, False)
        has_ended = await ended
        load.ticket.raise_if_cancelled()
        return has_ended

    def new_load(self, spec: ModelSpec, max_other_copies: int, *, is_preload: bool) -> Load:
        return Load(spec, max_other_copies, is_preload, self.events.now_s)

    def spawn(self, load: Load) -> None:
        self.events.after(0.0, lambda _: self.tasks.run(self.run(load)))

    async def nearest_tier(self, load: Load) -> Tier:
        return Tier.DISK

    async def bring(self, load: Load, reserve: Callable[[int], Awaitable[None]]) -> CachedModel:
        await reserve(self.memory_bytes)
        await self.wait(load, lambda _: None, COPY_S)
        if self.errors:
            raise self.errors.pop(0)
        load.source = Tier.REMOTE
        return CachedModel(load.spec.key, self.memory_bytes)

    def ended(self, load: Load, entry: CachedModel | None, error: PodError | None) -> None:
        result = entry or error
        assert result is not None
        self.results += [result] * max(1, load.waiters)

    def count(
        self, load: Load, outcome: str, *, seconds: float = 0.0, failure: LoadFailure | None = None
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
def loads() -> Loads:
    return Loads()


def hold_memory(loads: Loads) -> CachedModel:
    """Occupy the device with a model in use."""
    held = CachedModel("held", 100)
    loads.cache.add(held)
    loads.cache.use(held)
    return held


def test_requests_share_a_load_and_each_uses_the_model(loads: Loads) -> None:
    assert loads.join(SPEC) is loads.join(SPEC)
    loads.until(COPY_S)
    entry = loads.cache.by_key[KEY]
    assert loads.results == [entry, entry]
    assert (entry.users, entry.memory_bytes) == (2, 60)
    assert loads.reports.calls == [(0.0, "claim", 1), (0.0, "start", 1), (COPY_S, "finish", 1)]
    assert (loads.outcomes, loads.completed_total, loads.running) == (["ok"], 1, {})


def test_newest_token_of_the_gateway_is_used(loads: Loads) -> None:
    load = loads.join(SPEC, 7)
    loads.until(1.0)
    loads.join(SPEC, 9)
    loads.join(SPEC)
    loads.until(COPY_S)
    assert loads.reports.calls == [(0.0, "start", 7), (COPY_S, "finish", 9)]
    assert load.source is Tier.REMOTE  # that of the weights, not the nearest before


def test_refused_claim_is_retried_until_a_request_brings_one(loads: Loads) -> None:
    loads.reports.refusals = 1000
    loads.join_preload(SPEC, ANY_COPIES)
    loads.until(3.0)
    loads.join(SPEC, 5)
    loads.until(3.2)
    assert loads.steps() == ["start"]


@pytest.mark.parametrize(("max_other_copies", "at_s"), [(0, 0.0), (ANY_COPIES, CLAIM_TIMEOUT_S)])
def test_claim_refused_for_too_long_ends_the_load(
    loads: Loads, max_other_copies: int, at_s: float
) -> None:
    loads.reports.refusals = 1000
    loads.join_preload(SPEC, max_other_copies)
    loads.until(at_s - 0.2 if at_s else 0.0)
    assert bool(loads.results) is (at_s == 0.0)
    loads.until(at_s + 0.2)
    assert isinstance(loads.results[0], LoadRefused)
    assert loads.steps() == []  # the registry keeps what the other claim reports


@pytest.mark.parametrize("is_joined", [False, True])
def test_preload_beside_copies_at_other_pods_only_for_a_request(
    loads: Loads, *, is_joined: bool
) -> None:
    loads.reports.copies = 1
    loads.join_preload(SPEC, 0)
    if is_joined:
        loads.join(SPEC)
    loads.until(COPY_S)
    assert isinstance(loads.results[0], LoadRefused) is not is_joined


@pytest.mark.parametrize(("lost", "is_loaded"), [(1, True), (2, False)])
def test_expired_claim_is_made_again_once(loads: Loads, lost: int, *, is_loaded: bool) -> None:
    loads.reports.lost_starts = lost
    loads.join(SPEC, 7)
    loads.until(COPY_S)
    assert isinstance(loads.results[0], LoadRefused) is not is_loaded
    assert loads.steps() == (["claim", "start", "finish"] if is_loaded else ["claim"])


def test_model_whose_claim_was_lost_is_removed(loads: Loads) -> None:
    loads.reports.lost_finishes = 1
    loads.join(SPEC)
    loads.until(COPY_S)
    assert isinstance(loads.results[0], LoadRefused)
    assert (loads.cache.by_key, loads.outcomes) == ({}, ["fenced"])


def test_failed_load_is_reported_and_waits_for_the_backoff(loads: Loads) -> None:
    loads.errors = [LoadFailed("broken")]
    loads.join(SPEC)
    loads.until(COPY_S + 0.5)
    assert loads.steps() == ["claim", "start", "fail"]
    assert loads.cache.reserved_bytes == 0
    loads.join(SPEC)
    loads.until(COPY_S + 0.6)
    refused = loads.results[-1]
    assert isinstance(refused, LoadFailed)
    assert refused.retry_after_s == pytest.approx(0.5)
    assert loads.steps() == ["claim", "start", "fail", "tier"]
    loads.join(SPEC)
    loads.until(COPY_S + 1.1)
    assert loads.outcomes == ["failed"]
    loads.until(10.0)
    loads.join(SPEC)
    loads.until(10.0 + COPY_S)
    assert loads.outcomes == ["failed", "ok"]


def test_model_larger_than_the_device_fails(loads: Loads) -> None:
    loads.memory_bytes = 101
    loads.join(SPEC)
    loads.until(0.0)
    assert isinstance(loads.results[0], ModelTooLarge)
    assert loads.steps() == ["claim", "start", "fail"]


def test_unexpected_error_is_raised(loads: Loads) -> None:
    loads.errors = [ZeroDivisionError()]
    loads.join(SPEC)
    with pytest.raises(ZeroDivisionError):
        loads.until(COPY_S)


def test_load_waits_for_memory_in_use(loads: Loads) -> None:
    held = hold_memory(loads)
    loads.join(SPEC)
    loads.until(5.0)
    assert not loads.cache.reserved_bytes
    loads.cache.end_use(held)
    assert (loads.cache.reserved_bytes, "held" in loads.cache.by_key) == (60, False)
    loads.until(5.0 + COPY_S)
    assert loads.results == [loads.cache.by_key[KEY]]


def test_wait_for_memory_has_an_end(loads: Loads) -> None:
    hold_memory(loads)
    loads.join(SPEC)
    loads.until(MEMORY_TIMEOUT_S)
    assert isinstance(loads.results[0], MemoryBusy)
    assert (loads.outcomes, loads.steps()) == (["refused"], ["claim", "start", "tier"])


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
    loads = Loads()
    if is_preload:
        loads.join_preload(SPEC, ANY_COPIES)
    load = loads.join(SPEC)
    loads.until(1.0)
    if has_started:
        load.ticket.has_started = True
    loads.leave(load)
    assert load.ticket.is_urgent is (outcome == "cancelled")
    loads.until(COPY_S)
    assert loads.outcomes == [outcome]
    assert isinstance(loads.results[0], LoadCancelled) is (outcome == "cancelled")
    assert loads.steps()[-1] == ("tier" if outcome == "cancelled" else "finish")
    assert loads.cache.reserved_bytes == 0
    assert all(not entry.users for entry in loads.cache.by_key.values())


def others(count: int) -> list[ModelSpec]:
    return [ModelSpec(ModelName("default", f"m-{n}"), "s3://bucket/m") for n in range(count)]


def test_loads_take_turns_and_report_the_time_of_their_own(loads: Loads) -> None:
    loads.memory_bytes = 10
    for spec in others(MAX_CONCURRENT + 1):
        loads.join(spec)
    loads.until(COPY_S)
    assert loads.completed_total == MAX_CONCURRENT
    loads.until(2 * COPY_S)
    assert loads.completed_total == MAX_CONCURRENT + 1
    assert {value for each in loads.measured() for value in each.values_s} == {COPY_S}


def test_a_load_that_waits_for_memory_gives_its_turn_away(loads: Loads) -> None:
    held = hold_memory(loads)
    specs = others(MAX_CONCURRENT + 1)
    for spec in specs[:-1]:
        loads.join(spec)
    loads.until(1.0)
    loads.cache.budget_bytes = 1000
    loads.memory_bytes = 10
    loads.join(specs[-1])
    loads.until(1.0 + COPY_S)
    assert loads.cache.by_key.keys() >= {specs[-1].key}
    loads.cache.end_use(held)


def test_a_load_without_waiting_requests_leaves_the_queue(loads: Loads) -> None:
    loads.memory_bytes = 10
    *running, last = [loads.join(spec) for spec in others(MAX_CONCURRENT + 1)]
    loads.until(1.0)
    loads.leave(last)
    loads.until(2 * COPY_S)
    assert sorted(loads.outcomes) == ["cancelled", *["ok"] * len(running)]


@pytest.mark.parametrize("has_request", [False, True])
def test_a_queued_preload_ends_if_another_pod_has_loaded_the_model_since(
    loads: Loads, *, has_request: bool
) -> None:
    loads.memory_bytes = 10
    *running, last = others(MAX_CONCURRENT + 1)
    for spec in running:
        loads.join(spec)
    loads.join_preload(last, ANY_COPIES)
    loads.until(1.0)
    loads.state.residency.put(last.key, "elsewhere", Residency(Tier.DEVICE, None, 0.0, 10))
    if has_request:
        loads.join(last)
    loads.until(2 * COPY_S)
    assert ("cancelled" in loads.outcomes) is not has_request
    assert (last.key in loads.cache.by_key) is has_request


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
    loads: Loads, others_want: str, outcome: str
) -> None:
    load = loads.join_withdrawable(SPEC, ANY_COPIES, None)
    match others_want:
        case "asker":
            loads.join_withdrawable(SPEC, ANY_COPIES, None)
        case "request":
            loads.join(SPEC)
        case "preload":
            loads.join_preload(SPEC, ANY_COPIES)
    loads.until(1.0)
    loads.withdraw(load)
    loads.until(COPY_S)
    assert loads.outcomes == [outcome]
