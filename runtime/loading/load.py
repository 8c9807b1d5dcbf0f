"""A load, from the wish for a model to its end: `Loads.run` has the steps, in order.

Pure: the clock, the copies of the weights, the registry and those who wait are given to it.
`load_coordinator` runs it on a pod's event loop, `load.simulator.pods.model_loading` in virtual
time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from common.inference_protocol import PodError
from common.sizes import shown_bytes
from registry.domain.model import LoadFailure, ModelSpec, Tier, name_of_key
from registry.domain.pod_state import ANY_COPIES, LoadClaim
from registry.errors import ClaimLost
from runtime.errors import LoadCancelled, LoadFailed, LoadRefused, MemoryBusy
from runtime.loading.load_queue import Load, LoadTurns
from runtime.storage.load_priority import LoadTicket
from runtime.tiers.device_cache import CachedModel, DeviceCache
from runtime.tiers.eviction import ReloadCosts

if TYPE_CHECKING:
    from registry.domain.cluster import ClusterState
    from runtime.loading.load_queue import LoadFailures
    from runtime.measurements import Measurements


CLAIM_TIMEOUT_S: Final = 6.0
"""Timeout of retries of a refused claim: a gateway's claim expires after 5 s without a load."""
CLAIM_RETRY_INTERVAL_S: Final = 0.1
MEMORY_TIMEOUT_S: Final = 30.0
"""How long a load waits until requests release memory."""


class OpenedWeights(Protocol):
    @property
    def memory_bytes(self) -> int:
        """Device memory that the model needs."""

    @property
    def tier(self) -> Tier:
        """Where the weights came from: not the nearest if its copy was damaged or deleted."""


R = TypeVar("R", bound=CachedModel)
Opened = TypeVar("Opened", bound=OpenedWeights)
W = TypeVar("W")
Ended = TypeVar("Ended", bound=CachedModel, contravariant=True)


class Clock(Protocol):
    def now_s(self) -> float:
        """A monotonic clock."""

    async def wait(
        self,
        ticket: LoadTicket,
        begin: Callable[[Callable[[], None]], None],
        timeout_s: float | None = None,
    ) -> bool:
        """Call `begin`, and wait until its argument is called; False after the timeout.

        Raises LoadCancelled once the ticket is cancelled.
        """

    def spawn(self, start: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start and run a coroutine soon, not before this returns."""


class Copies(Protocol[W, Opened, R]):
    """The copies of weights that the pod can reach, and the way to its device."""

    async def nearest_tier(self, key: str) -> Tier:
        """The tier that a load of the model would start from now."""

    def open(self, load: Load[W], base: R | None) -> AbstractAsyncContextManager[Opened]:
        """The open weights, which may still be under download; raises LoadFailed, LoadCancelled.

        `base`: of an adapter, in use.
        """

    async def copy(self, load: Load[W], weights: Opened) -> R:
        """The model, copied to memory reserved for it and warmed up, not yet in the cache.

        Raises LoadFailed, LoadCancelled, MemoryBusy.
        """


class LoadReports(Protocol):
    """A pod's claims and reports of loads; implemented by `registration.registry_agent`."""

    def claim_of(self, token: int) -> LoadClaim: ...
    async def claim(self, key: str, max_other_copies: int) -> LoadClaim: ...
    async def start_load(self, key: str, claim: LoadClaim, source: Tier) -> None: ...
    async def finish_load(self, key: str, claim: LoadClaim, memory_bytes: int) -> None: ...
    async def fail_load(self, key: str, claim: LoadClaim, failure: LoadFailure) -> bool: ...
    def report_tier(self, key: str) -> None: ...


class LoadEnds(Protocol[W, Ended]):
    """Those who wait for the ends of loads, and those who count them."""

    def waiters(self, spec: ModelSpec) -> W:
        """Those of a new load, `Load.waiting`."""

    def ended(self, load: Load[W], entry: Ended | None, error: PodError | None) -> None:
        """Pass the model, in use once per waiting request, or the error to these requests."""

    def count(
        self,
        load: Load[W],
        outcome: str,
        *,
        seconds: float = 0.0,
        failure: LoadFailure | None = None,
    ) -> None:
        """Count and log the end of a load: ok, failed, refused, cancelled or fenced."""

    def aborted(self, load: Load[W]) -> None:
        """The load ends with the pod: nobody waits for it any more."""

    def unexpected(self, load: Load[W], error: Exception) -> LoadFailed:
        """The failure to report for an error that is not the runtime's."""


class Loads(Generic[W, Opened, R]):
    """All loads of a pod: one per model at a time, those of several models in turns."""

    def __init__(
        self,
        cache: DeviceCache[R],
        *,
        clock: Clock,
        copies: Copies[W, Opened, R],
        registry: LoadReports,
        ends: LoadEnds[W, R],
        failures: LoadFailures,
        costs: ReloadCosts,
        measurements: Measurements,
        state: Callable[[], ClusterState],
        base_of: Callable[[Load[W]], AbstractAsyncContextManager[R | None]] = (
            lambda _load: nullcontext()
        ),
    ) -> None:
        """`state` has the times of earlier loads, and the copies at other pods.

        `base_of`: has the base of an adapter on the device, in use.
        """
        self.cache = cache
        self.running: dict[str, Load[W]] = {}
        self.completed_total = 0
        """Number of successful loads."""
        self._clock = clock
        self._copies = copies
        self._registry = registry
        self._ends = ends
        self._failures = failures
        self._costs = costs
        self._measurements = measurements
        self._state = state
        self._base_of = base_of
        self._turns = LoadTurns(clock.now_s)

    # A load

    async def run(self, load: Load[W]) -> None:
        """One load, to its end. Errors other than the runtime's are raised."""
        key, copies = load.spec.key, self._copies
        try:
            self._failures.check(load.spec)
            async with self._reported_errors(load):
                load.claim = await self._claim(load)
                load.source = await copies.nearest_tier(key)
                await self._start(load)
                async with self._base_of(load) as base:  # before its turn: it needs one, too
                    async with self._turn(load), copies.open(load, base) as weights:
                        await self._reserve(load, weights.memory_bytes)
                        entry = await copies.copy(load, weights)
                        load.source = weights.tier
                    self.cache.add(entry)
                    self.cache.use(entry)  # else it could be evicted before its first use
            await self._publish(load, entry)
        except PodError as error:
            del self.running[key]
            self._ends.ended(load, None, error)
        except BaseException:
            self._ends.aborted(load)
            raise
        else:
            del self.running[key]
            self.cache.use(entry, load.waiters)
            self._ends.ended(load, entry, None)
            self.cache.end_use(entry)
        if not load.is_reported:
            self._registry.report_tier(key)  # releases the claim

    async def _claim(self, load: Load[W]) -> LoadClaim:
        """The gateway's claim, if it made one, else a new one; retries a refused one."""
        deadline_s = self._clock.now_s() + CLAIM_TIMEOUT_S
        while True:
            load.ticket.raise_if_cancelled()
            if load.token:
                return self._registry.claim_of(load.token)
            copies = ANY_COPIES if load.waiters else load.max_other_copies
            try:
                return await self._registry.claim(load.spec.key, copies)
            except LoadRefused:
                if copies != ANY_COPIES or self._clock.now_s() >= deadline_s:
                    raise
            await self._clock.wait(load.ticket, lambda _: None, CLAIM_RETRY_INTERVAL_S)

    async def _start(self, load: Load[W]) -> None:
        """Tell the registry that the load begins, with a second claim if the first has expired."""
        key = load.spec.key
        try:
            await self._registry.start_load(key, self._newest_claim(load), load.source)
        except ClaimLost:  # the gateway's claim expired before the load started
            load.token = 0
            load.claim = await self._registry.claim(key, load.max_other_copies)
            try:
                await self._registry.start_load(key, load.claim, load.source)
            except ClaimLost as error:
                raise LoadRefused(f"another pod got the claim for {key}") from error

    @asynccontextmanager
    async def _turn(self, load: Load[W]) -> AsyncIterator[None]:
        """The load's turn, from its wait for it on; an error frees the memory reserved in it."""
        key, copies = load.spec.key, self._copies_of(load.spec.key)
        expected_s = self._state().measured(key).load_from(load.source, None).seconds
        try:
            await self._clock.wait(load.ticket, partial(self._turns.enter, load, expected_s))
            if not load.waiters and self._copies_of(key) > copies:
                load.ticket.cancel("another pod has loaded the model since")
                load.ticket.raise_if_cancelled()
            load.turn_s = self._clock.now_s()
            yield
        except Exception:  # the process ends with any other
            self.cache.cancel_reservation(key)
            raise
        finally:
            self._turns.leave(load)

    def _copies_of(self, key: str) -> int:
        """Number of pods that have the model on their device."""
        return sum(each.is_warm for each in self._state().holders(key).values())

    async def _reserve(self, load: Load[W], memory_bytes: int) -> None:
        """Reserve device memory, evicting idle models, or once requests have released some."""
        key = load.spec.key
        self.cache.check_fits(key, memory_bytes)
        is_reserved = partial(self.cache.try_reserve, key, memory_bytes)
        if is_reserved():
            return
        self._turns.leave(load)  # it waits for requests to end, which other loads need not
        try:
            await_memory = partial(self.cache.call_when, is_reserved)
            if not await self._clock.wait(load.ticket, await_memory, MEMORY_TIMEOUT_S):
                raise MemoryBusy(
                    f"{name_of_key(key)} needs {shown_bytes(memory_bytes)}; models in use occupy"
                    " the pod's memory"
                )
        finally:
            self.cache.stop_waiting(is_reserved)

    async def _publish(self, load: Load[W], entry: R) -> None:
        """Tell the registry that the model is here, unless another pod has got the claim."""
        key = load.spec.key
        try:
            await self._registry.finish_load(key, self._newest_claim(load), entry.memory_bytes)
        except ClaimLost as error:
            load.is_reported = True
            self._ends.count(load, "fenced")
            self.cache.retire(key, "claim-lost")
            self.cache.end_use(entry)
            raise LoadRefused(f"another pod got the claim for {key}") from error
        load.is_reported = True
        now_s = self._clock.now_s()
        seconds = now_s - load.turn_s
        size_bytes = entry.memory_bytes if entry.loads_by_size else None
        self._costs.observe(key, load.source, size_bytes, seconds)
        self.completed_total += 1
        self._failures.clear(key)
        self._measurements.add(key, f"load:{load.source.value}", seconds)
        self._ends.count(load, "ok", seconds=now_s - load.started_s)

    @asynccontextmanager
    async def _reported_errors(self, load: Load[W]) -> AsyncIterator[None]:
        """Count what ends the load, and tell all pods of a failure; raises PodError."""
        try:
            yield
        except LoadFailed as error:
            await self._fail(load, error)
            raise
        except LoadRefused:
            load.is_reported = True  # another pod has the claim
            raise
        except LoadCancelled:
            self._ends.count(load, "cancelled")
            raise
        except PodError:
            self._ends.count(load, "refused")
            raise
        except Exception as error:
            failure = self._ends.unexpected(load, error)
            await self._fail(load, failure)
            raise failure from error

    async def _fail(self, load: Load[W], error: LoadFailed) -> None:
        failure = self._failures.record(load.spec, error)
        self._ends.count(load, "failed", failure=failure)
        load.is_reported = await self._registry.fail_load(
            load.spec.key, self._newest_claim(load), failure
        )

    def _newest_claim(self, load: Load[W]) -> LoadClaim:
        """The load's claim, unless a request that joined the load has a newer token."""
        if load.token and (load.claim.token is None or load.token > load.claim.token):
            return self._registry.claim_of(load.token)
        return load.claim

    # Those who want it

    def join(self, spec: ModelSpec, token: int = 0) -> Load[W]:
        """The load of the model for one more waiting request, started if none is running."""
        load = self.running.get(spec.key) or self._begin(spec, ANY_COPIES, is_preload=False)
        load.token = max(token, load.token)
        load.waiters += 1
        load.ticket.prioritise()
        self._turns.refresh()
        return load

    def join_preload(self, spec: ModelSpec, max_other_copies: int) -> Load[W]:
        """The load of the model, which now continues without waiting requests."""
        load = self.running.get(spec.key) or self._begin(spec, max_other_copies, is_preload=True)
        load.is_preload = True
        return load

    def join_withdrawable(
        self, spec: ModelSpec, max_other_copies: int, due_s: float | None
    ) -> Load[W]:
        """The load of the model for a client that may take it back with `withdraw`.

        `due_s`: on the monotonic clock, when the client will need it.
        """
        load = self.running.get(spec.key)
        if load is None:
            load = self._begin(spec, max_other_copies, is_preload=True)
            load.is_preload = False
        load.askers += 1
        if due_s is not None:
            load.ticket.expect_by(due_s)
            self._turns.refresh()
        return load

    def withdraw(self, load: Load[W]) -> None:
        """A client that asked for the load takes that back; without any other it is cancelled."""
        load.askers -= 1
        if not (load.askers or load.waiters or load.is_preload):
            load.ticket.cancel("the client that asked for it has withdrawn")

    def leave(self, load: Load[W]) -> None:
        """End a request's wait; after the last one the load becomes a preload or is cancelled."""
        load.waiters -= 1
        if load.waiters == 0:
            # A started load is worth finishing: a client whose deadline passed usually retries.
            if load.is_preload or load.askers > 0 or load.ticket.has_started:
                load.ticket.deprioritise()
            else:
                load.ticket.cancel("no request waits for it any more")

    def _begin(self, spec: ModelSpec, max_other_copies: int, *, is_preload: bool) -> Load[W]:
        waiting, now_s = self._ends.waiters(spec), self._clock.now_s()
        load = Load(spec, max_other_copies, is_preload, now_s, waiting)
        if is_preload:
            load.ticket.deprioritise()
        self.running[spec.key] = load
        self._clock.spawn(partial(self.run, load))
        return load
