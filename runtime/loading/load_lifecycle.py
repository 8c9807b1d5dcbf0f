"""The lifecycle of a load: claim, start, open weights, reserve memory, copy, finish, or fail.

Pure. `load_coordinator` runs it on a pod's event loop, `load.simulator.pods.model_loading` in
virtual time: each drives the coroutine of a load, and carries out the steps that are abstract here.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from common.inference_protocol.errors import PodError
from common.sizes import shown_bytes
from registry.domain.model import LoadFailure, ModelSpec, Tier, name_of_key
from registry.domain.pod_state import ANY_COPIES, LoadClaim
from registry.errors import ClaimLost
from runtime.errors import LoadCancelled, LoadFailed, LoadRefused, MemoryBusy
from runtime.loading.load_turns import Load, LoadTurns
from runtime.tiers.device_cache import CachedModel, DeviceCache
from runtime.tiers.eviction import ReloadCosts

if TYPE_CHECKING:
    from registry.domain.cluster import ClusterState
    from runtime.loading.failures import LoadFailures
    from runtime.registration.measurements import Measurements


CLAIM_TIMEOUT_S: Final = 6.0
"""Timeout of retries of a refused claim: a gateway's claim expires after 5 s without a load."""
CLAIM_RETRY_INTERVAL_S: Final = 0.1
MEMORY_TIMEOUT_S: Final = 30.0
"""How long a load waits until requests release memory."""


class LoadReports(Protocol):
    """A pod's claims and reports of loads; implemented by `registration.registry_agent`."""

    def claim_of(self, token: int) -> LoadClaim: ...
    async def claim(self, key: str, max_other_copies: int) -> LoadClaim: ...
    async def start_load(self, key: str, claim: LoadClaim, source: Tier) -> None: ...
    async def finish_load(self, key: str, claim: LoadClaim, memory_bytes: int) -> None: ...
    async def fail_load(self, key: str, claim: LoadClaim, failure: LoadFailure) -> bool: ...
    def report_tier(self, key: str) -> None: ...


L = TypeVar("L", bound=Load)
R = TypeVar("R", bound=CachedModel)


class LoadLifecycle(Generic[L, R]):
    """All loads of a pod: one per model at a time, those of several models in turns."""

    def __init__(
        self,
        cache: DeviceCache[R],
        reports: LoadReports,
        *,
        failures: LoadFailures,
        costs: ReloadCosts,
        measurements: Measurements,
        state: Callable[[], ClusterState],
    ) -> None:
        """`state` has the times of earlier loads, and the copies at other pods."""
        self.cache = cache
        self.completed_total = 0
        """Number of successful loads."""
        self.running: dict[str, L] = {}
        self._reports = reports
        self._failures = failures
        self._costs = costs
        self._measurements = measurements
        self._state = state
        self._turns = LoadTurns(self.now_s)

    @abstractmethod
    def now_s(self) -> float:
        """A monotonic clock."""

    @abstractmethod
    async def wait(
        self, load: L, begin: Callable[[Callable[[], None]], None], timeout_s: float | None = None
    ) -> bool:
        """Call `begin`, and wait until its argument is called; False after the timeout.

        Raises LoadCancelled once the load is cancelled.
        """

    @abstractmethod
    def new_load(self, spec: ModelSpec, max_other_copies: int, *, is_preload: bool) -> L: ...

    @abstractmethod
    def spawn(self, load: L) -> None:
        """Call `run` soon, not before this returns."""

    @abstractmethod
    async def nearest_tier(self, load: L) -> Tier:
        """The tier that the load would start from now."""

    @abstractmethod
    async def bring(self, load: L, reserve: Callable[[int], Awaitable[None]]) -> R:
        """The model on the device, not yet in the cache.

        Opens the weights, which may still be under download, awaits `reserve` with the device
        memory that the model needs, and copies. Sets the tier that the weights came from. Raises
        LoadFailed, LoadCancelled, and what `reserve` raises.
        """

    @abstractmethod
    def ended(self, load: L, entry: R | None, error: PodError | None) -> None:
        """Pass the model, in use once per waiting request, or the error to these requests."""

    @abstractmethod
    def count(
        self, load: L, outcome: str, *, seconds: float = 0.0, failure: LoadFailure | None = None
    ) -> None:
        """Count and log the end of a load: ok, failed, refused, cancelled or fenced."""

    def as_failure(self, load: L, error: Exception) -> LoadFailed:
        """The failure to report for an unexpected error."""
        raise error

    def join(self, spec: ModelSpec, token: int = 0) -> L:
        """The load of the model for one more waiting request, started if none is running."""
        load = self.running.get(spec.key) or self._begin(spec, ANY_COPIES, is_preload=False)
        load.token = max(token, load.token)
        load.waiters += 1
        load.ticket.prioritise()
        self._turns.refresh()
        return load

    def join_preload(self, spec: ModelSpec, max_other_copies: int) -> L:
        """The load of the model, which now continues without waiting requests."""
        load = self.running.get(spec.key) or self._begin(spec, max_other_copies, is_preload=True)
        load.is_preload = True
        return load

    def join_withdrawable(self, spec: ModelSpec, max_other_copies: int, due_s: float | None) -> L:
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

    def withdraw(self, load: L) -> None:
        """A client that asked for the load takes that back; without any other it is cancelled."""
        load.askers -= 1
        if not (load.askers or load.waiters or load.is_preload):
            load.ticket.cancel("the client that asked for it has withdrawn")

    def leave(self, load: L) -> None:
        """End a request's wait; after the last one the load becomes a preload or is cancelled."""
        load.waiters -= 1
        if load.waiters == 0:
            # A started load is worth finishing: a client whose deadline passed usually retries.
            if load.is_preload or load.askers > 0 or load.ticket.has_started:
                load.ticket.deprioritise()
            else:
                load.ticket.cancel("no request waits for it any more")

    def _begin(self, spec: ModelSpec, max_other_copies: int, *, is_preload: bool) -> L:
        load = self.new_load(spec, max_other_copies, is_preload=is_preload)
        if is_preload:
            load.ticket.deprioritise()
        self.running[spec.key] = load
        self.spawn(load)
        return load

    async def run(self, load: L) -> None:
        """Run the load to its end. Errors other than the runtime's are raised."""
        key = load.spec.key
        try:
            entry = await self._load(load)
        except PodError as error:
            del self.running[key]
            self.ended(load, None, error)
        else:
            del self.running[key]
            self.cache.use(entry, load.waiters)
            self.ended(load, entry, None)
            self.cache.end_use(entry)
        if not load.is_reported:
            self._reports.report_tier(key)  # releases the claim

    async def _load(self, load: L) -> R:
        """The model on the device, used once so that it is not evicted before its use."""
        self._failures.check(load.spec)
        claim = LoadClaim(None, 0)
        try:
            claim = await self._claim(load)
            claim = await self._start(load, claim)
            entry = await self.load_to_device(load)
        except LoadFailed as error:
            await self._fail(load, claim, error)
            raise
        except LoadRefused:
            load.is_reported = True  # another pod has the claim
            raise
        except LoadCancelled:
            self.count(load, "cancelled")
            raise
        except PodError:
            self.count(load, "refused")
            raise
        except Exception as error:
            failure = self.as_failure(load, error)
            await self._fail(load, claim, failure)
            raise failure from error
        await self._finish(load, claim, entry)
        return entry

    async def _claim(self, load: L) -> LoadClaim:
        """The gateway's claim, if it made one, else a new one; retries a refused one."""
        deadline_s = self.now_s() + CLAIM_TIMEOUT_S
        while True:
            load.ticket.raise_if_cancelled()
            if load.token:
                return self._reports.claim_of(load.token)
            copies = ANY_COPIES if load.waiters else load.max_other_copies
            try:
                return await self._reports.claim(load.spec.key, copies)
            except LoadRefused:
                if copies != ANY_COPIES or self.now_s() >= deadline_s:
                    raise
            await self.wait(load, lambda _: None, CLAIM_RETRY_INTERVAL_S)

    async def _start(self, load: L, claim: LoadClaim) -> LoadClaim:
        key = load.spec.key
        load.source = await self.nearest_tier(load)
        try:
            await self._reports.start_load(key, self._newest(load, claim), load.source)
        except ClaimLost:  # the gateway's claim expired before the load started
            load.token = 0
            claim = await self._reports.claim(key, load.max_other_copies)
            try:
                await self._reports.start_load(key, claim, load.source)
            except ClaimLost as error:
                raise LoadRefused(f"another pod got the claim for {key}") from error
        return claim

    async def load_to_device(self, load: L) -> R:
        """In its turn: open the weights, reserve memory, evicting others, and copy."""
        key, copies = load.spec.key, self._copies(load.spec.key)
        expected_s = self._state().measured(key).load_from(load.source, None).seconds
        try:
            await self.wait(load, partial(self._turns.enter, load, expected_s))
            if not load.waiters and self._copies(key) > copies:
                load.ticket.cancel("another pod has loaded the model since")
                load.ticket.raise_if_cancelled()
            load.turn_s = self.now_s()
            return await self.bring(load, partial(self._reserve, load))
        except Exception:  # the process ends with any other
            self.cache.cancel_reservation(key)
            raise
        finally:
            self._turns.leave(load)

    def _copies(self, key: str) -> int:
        """Number of pods that have the model on their device."""
        return sum(each.is_warm for each in self._state().holders(key).values())

    async def _reserve(self, load: L, memory_bytes: int) -> None:
        key = load.spec.key
        self.cache.check_fits(key, memory_bytes)
        is_reserved = partial(self.cache.try_reserve, key, memory_bytes)
        if is_reserved():
            return
        self._turns.leave(load)  # it waits for requests to end, which other loads need not
        try:
            await_memory = partial(self.cache.call_when, is_reserved)
            if not await self.wait(load, await_memory, MEMORY_TIMEOUT_S):
                raise MemoryBusy(
                    f"{name_of_key(key)} needs {shown_bytes(memory_bytes)}; models in use occupy"
                    " the pod's memory"
                )
        finally:
            self.cache.stop_waiting(is_reserved)

    async def _finish(self, load: L, claim: LoadClaim, entry: R) -> None:
        key = load.spec.key
        self.cache.add(entry)
        self.cache.use(entry)
        try:
            await self._reports.finish_load(key, self._newest(load, claim), entry.memory_bytes)
        except ClaimLost as error:
            load.is_reported = True
            self.count(load, "fenced")
            self.cache.retire(key, "claim-lost")
            self.cache.end_use(entry)
            raise LoadRefused(f"another pod got the claim for {key}") from error
        load.is_reported = True
        now_s = self.now_s()
        seconds = now_s - load.turn_s
        self._costs.observe(key, load.source, entry.memory_bytes, seconds)
        self.completed_total += 1
        self._failures.clear(key)
        self._measurements.add(key, f"load:{load.source.value}", seconds)
        self.count(load, "ok", seconds=now_s - load.started_s)

    def _newest(self, load: L, claim: LoadClaim) -> LoadClaim:
        """The claim, unless a request that joined the load has a newer token."""
        if load.token and (claim.token is None or load.token > claim.token):
            return self._reports.claim_of(load.token)
        return claim

    async def _fail(self, load: L, claim: LoadClaim, error: LoadFailed) -> None:
        failure = self._failures.record(load.spec, error)
        self.count(load, "failed", failure=failure)
        load.is_reported = await self._reports.fail_load(
            load.spec.key, self._newest(load, claim), failure
        )
