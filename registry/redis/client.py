"""The registry's operations, typed: what components say to it and ask of it.

Every change goes through a server-side script (see `scripts/`), so that it is checked and written
in one step. All methods raise RegistryUnavailable, soon, when Redis is away.
"""

from __future__ import annotations

import asyncio
import math
import uuid
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import orjson

from registry.domain.cluster import ClusterState
from registry.domain.cluster_changes import load_snapshot
from registry.domain.codec import (
    decode_record,
    encode_failure,
    encode_pod,
    encode_profile,
    encode_spec,
)
from registry.domain.model import LoadFailure, ModelName, ModelRecord, ModelSpec, Tier, name_of_key
from registry.domain.reservation import Granted, Refusal, ReservationRequest
from registry.errors import ClaimLost, LeaseLost, RegistryUnavailable
from registry.redis.server_address import check_url
from registry.redis.transactions import Transactions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from registry.domain.pod import PodInfo, PodPhase, PodReport
    from registry.domain.profile import Profile

LEASE_TTL_S = 3.0
HEARTBEAT_S = 1.0
CLAIM_TTL_S = 5.0
"""How long a claim may wait for its pod to begin the load."""
MAX_STEP_MODELS = 256
"""Models declared in one step at most. Nobody else is served meanwhile, and 10,000 took 0.3 s of an
idle core: on a busy one more than anybody waits for Redis."""
MAX_STEP_BYTES = 1 << 18
"""The same in bytes of specifications; a step also makes one message for every watched copy."""


class ClaimScope(StrEnum):
    """Where no other load of the model may be for a claim to be granted."""

    POD = "pod"
    POOL = "pool"


class Registry:
    """One pool's state, shared by all components through Redis."""

    def __init__(self, url: str, pool: str) -> None:
        """Raises ValueError when the URL has none of the forms that `resolve` reads."""
        check_url(url)
        self.url = url
        self.pool = pool
        self.origin = uuid.uuid4().hex[:12]
        self.transactions = Transactions(url, pool, self.origin)

    @classmethod
    async def connect(cls, url: str, pool: str = "default") -> Registry:
        """A registry client that has spoken to Redis once. Raises RegistryUnavailable."""
        registry = cls(url, pool)
        await registry.transactions.submit("sync")
        return registry

    async def close(self) -> None:
        """Let what is queued go out, then leave."""
        await self.transactions.close()

    # Models

    async def put_models(self, specs: Sequence[ModelSpec]) -> list[str]:
        """Declare models; per model `created`, `configured` or `unchanged`.

        Up to `MAX_STEP_MODELS` and `MAX_STEP_BYTES` are declared in one step, all or nothing. More
        take several steps, in order, between which Redis serves other clients. Where Redis becomes
        unavailable, earlier steps stand; the error says how many, and declaring all models again
        completes the rest.
        """
        outcomes: list[str] = []
        for step in _steps(specs):
            try:
                outcomes += await self.transactions.submit("put", step)
            except RegistryUnavailable as error:
                if not outcomes:
                    raise
                raise RegistryUnavailable(
                    f"{error}; {len(outcomes)} of {len(specs)} models are declared, of the next "
                    f"{len(step)} all or none: declare all of them again"
                ) from error
        return outcomes

    async def delete_models(self, names: Iterable[ModelName]) -> list[ModelName]:
        """Withdraw models; returns those that were not there."""
        names = list(names)
        futures = [self.transactions.submit("delete", str(name)) for name in names]
        existed = await asyncio.gather(*futures)
        return [name for name, found in zip(names, existed, strict=True) if not found]

    async def get_model(self, name: ModelName) -> ModelRecord | None:
        """One model's record as it stands in Redis."""
        spec, previous, failure = await self.transactions.submit("model", str(name))
        return decode_record(spec, previous, failure) if spec else None

    async def cluster(self) -> ClusterState:
        """All pods, models and tiers as they stand in Redis now; it is not kept up to date."""
        versions, _, snapshot = await self.transactions.snapshot()
        state = ClusterState()
        load_snapshot(state, versions.changes, snapshot)
        return state

    async def put_profile(self, profile: Profile) -> bool:
        """Keep what a generation costs by batch size; False: it is not declared any more."""
        name = str(name_of_key(profile.key))
        return bool(
            await self.transactions.submit("profile", name, profile.key, encode_profile(profile))
        )

    # Pods

    async def register_pod(self, info: PodInfo, *, lease_ttl_s: float = LEASE_TTL_S) -> int:
        """Enter a pod and clear what an older process of its name left; returns its epoch."""
        epoch: int = await self.transactions.submit(
            "register", info.name, encode_pod(info), info.slots, int(lease_ttl_s * 1000)
        )
        return epoch

    async def heartbeat(
        self, pod: str, epoch: int, report: PodReport, *, lease_ttl_s: float = LEASE_TTL_S
    ) -> None:
        """Extend the lease and hand in what was measured. Raises LeaseLost."""
        _check(
            await self.transactions.submit(
                "beat",
                pod,
                epoch,
                int(lease_ttl_s * 1000),
                orjson.dumps(dict(report.used_bytes), option=orjson.OPT_SORT_KEYS).decode(),
                report.loads_total,
                [
                    [sample.key, sample.measure, _finite(sample.values_s)]
                    for sample in report.samples
                ],
                report.idle_byte_s,
            )
        )

    async def idle_byte_s(self) -> float:
        """What idle models have held of all devices of the pool so far, in bytes x seconds.

        It only grows, and holds what pods that are gone told last. Only differences mean something.
        """
        return float(await self.transactions.submit("idle_memory"))

    async def set_phase(self, pod: str, epoch: int, phase: PodPhase) -> None:
        """Say whether the pod takes requests. Raises LeaseLost."""
        _check(await self.transactions.submit("phase", pod, epoch, phase))

    async def has_pod_at(self, address: str) -> bool:
        """Whether a pod with a lease has this address, `host:port`."""
        return bool(await self.transactions.submit("has_address", address))

    async def deregister_pod(self, pod: str, epoch: int) -> None:
        """Leave at once instead of by the end of the lease."""
        await self.transactions.submit("leave", pod, epoch)

    # Loads

    async def claim_load(
        self, pod: str, epoch: int, key: str, scope: ClaimScope, *, ttl_s: float = CLAIM_TTL_S
    ) -> int | None:
        """Claim the load of a model for a pod.

        Returns:
            The fencing token, or None where the model is warm or loading within the scope.

        Raises:
            LeaseLost: when the pod's lease is over.
        """
        result = await self.transactions.submit("claim", pod, epoch, key, scope, int(ttl_s * 1000))
        _check(result)
        return int(result[1]) if result[0] == "ok" else None

    async def start_load(self, pod: str, epoch: int, key: str, token: int, source: Tier) -> None:
        """Begin a claimed load; it then lives as long as the lease. Raises ClaimLost, LeaseLost."""
        _check(await self.transactions.submit("start", pod, epoch, key, token, source))

    async def finish_load(
        self, pod: str, epoch: int, key: str, token: int, memory_bytes: int
    ) -> None:
        """The pod is warm for the model. Raises ClaimLost (drop the model), LeaseLost."""
        name = str(name_of_key(key))
        _check(await self.transactions.submit("finish", pod, epoch, key, token, memory_bytes, name))

    async def fail_load(
        self, pod: str, epoch: int, key: str, token: int, failure: LoadFailure
    ) -> None:
        """The load failed; the model's record says why. Raises ClaimLost, LeaseLost."""
        _check(
            await self.transactions.submit(
                "fail", pod, epoch, key, token, str(name_of_key(key)), encode_failure(failure)
            )
        )

    async def report_model_failure(self, pod: str, epoch: int, failure: LoadFailure) -> None:
        """A model that was warm at the pod stopped working there; its record says why.

        Raises LeaseLost.
        """
        name = str(name_of_key(failure.key))
        _check(
            await self.transactions.submit(
                "broken", pod, epoch, failure.key, name, encode_failure(failure)
            )
        )

    async def set_tier(self, pod: str, epoch: int, key: str, tier: Tier, bytes_: int) -> None:
        """Where the weights are at the pod outside of a load.

        REMOTE with bytes: only the small files that an entry pod needs; REMOTE with 0: nothing.
        """
        _check(await self.transactions.submit("tier", pod, epoch, key, tier, bytes_))

    async def end_inference(self, pod: str, reservation_id: str) -> None:
        """Free the reservation's place in the inference stage; its slot stays taken."""
        await self.transactions.submit("infer_end", reservation_id, pod)

    # Reservations

    def reserve(
        self,
        wanted: ReservationRequest,
        settle: Callable[[Granted | Refusal | RegistryUnavailable], None],
    ) -> None:
        """Ask for a slot and a place in the inference stage together.

        `settle` hears the outcome right after the copy has taken in what the call changed, with no
        other code in between, so that a caller's own count of pending slots never doubles it.
        """

        def on_result(result: Any) -> None:
            if isinstance(result, RegistryUnavailable):
                settle(result)
            elif result[0] == "ok":
                settle(Granted(start=result[2], load_token=result[1]))
            else:
                settle(Refusal(result[0]))

        self.transactions.submit_then(
            on_result,
            "reserve", wanted.id, int(wanted.ttl_s * 1000), wanted.entry, wanted.predict,
            wanted.key, wanted.mode, wanted.max_other_copies, wanted.target_ongoing,
            int(CLAIM_TTL_S * 1000),
        )  # fmt: skip

    def release(
        self,
        reservation_id: str,
        *,
        entry: str,
        predict: str,
        on_result: Callable[[Any], None] = lambda _: None,
    ) -> None:
        """Give back what `reserve` took. Nobody waits for it; it expires if Redis is away.

        It goes out with the next operation or a millisecond later, which halves the round trips
        of a lone client.
        """
        self.transactions.submit_lazily(on_result, "release", reservation_id, entry, predict)

    def renew(self, reservation_id: str, *, entry: str, predict: str, ttl_s: float) -> None:
        """Keep a reservation of a long request from expiring."""
        self.transactions.submit_then(
            lambda _: None, "renew", reservation_id, int(ttl_s * 1000), entry, predict
        )

    def restore(self, reservation_id: str, *, entry: str, predict: str, ttl_s: float) -> None:
        """Enter a reservation whose request goes on at a pod that has registered anew.

        Only its owner may say so, and before it releases it.
        """
        self.transactions.submit_then(
            lambda _: None, "hold", reservation_id, int(ttl_s * 1000), entry, predict
        )


def _steps(specs: Iterable[ModelSpec]) -> Iterator[list[tuple[str, str, str]]]:
    """Declarations as `put` takes them, in parts that keep Redis busy for little time."""
    step: list[tuple[str, str, str]] = []
    size = 0
    for spec in specs:
        text = encode_spec(spec)
        if step and (len(step) == MAX_STEP_MODELS or size + len(text) > MAX_STEP_BYTES):
            yield step
            step, size = [], 0
        step.append((str(spec.name), spec.key, text))
        size += len(text)
    if step:
        yield step


def _finite(values_s: Iterable[float]) -> list[float]:
    """JSON knows no infinity, and one null would spoil the medians of every copy."""
    return [value for value in values_s if math.isfinite(value)]


def _check(result: Any) -> None:
    match result[0]:
        case "lost":
            raise LeaseLost("the pod's lease is over or belongs to a newer process")
        case "fenced":
            raise ClaimLost("the load claim is over or was given to somebody else")
