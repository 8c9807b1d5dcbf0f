"""Typed client of the registry: all operations of other components on Redis.

Each change is made by a server-side script (see `scripts/`), which checks and writes in one step.
All coroutines raise RegistryUnavailable, within a second, when Redis is unreachable.
"""

import asyncio
import math
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import orjson

from registry.domain.application import AccuracyProfile, ApplicationSpec
from registry.domain.cluster import ClusterState, load_snapshot
from registry.domain.model import LoadFailure, ModelName, ModelRecord, ModelSpec, Tier, name_of_key
from registry.domain.pod import AVERAGE, LEASE_TTL_S, PodInfo, PodPhase, PodReport, Profile
from registry.domain.pod_state import CLAIM_TTL_S, Granted, Refusal, ReservationRequest
from registry.domain.records import (
    START_TIMEOUT_S,
    PlacedPod,
    declaration_steps,
    decode,
    decode_record,
    encode,
    encode_application,
    encode_profile,
)
from registry.domain.tenant_rules import TenantRules, encode_rules
from registry.errors import ClaimLost, InvalidModel, LeaseLost, RegistryUnavailable
from registry.policy_names import loading_problems, placement_problems
from registry.redis.server_address import check_url
from registry.redis.transactions import Transactions


class Registry:
    """One pool's state, shared by all components through Redis."""

    def __init__(self, url: str, pool: str) -> None:
        """Raises ValueError when the URL has none of the forms that `find_server` reads."""
        check_url(url)
        self.url = url
        self.pool = pool
        self.transactions = Transactions(url, pool, uuid.uuid4().hex[:12])
        self._submit = self.transactions.submit

    @classmethod
    async def connect(cls, url: str, pool: str = "default") -> "Registry":
        """A client that has reached Redis once. Raises RegistryUnavailable."""
        registry = cls(url, pool)
        await registry.transactions.connect()
        return registry

    async def close(self) -> None:
        """Send what is queued, then disconnect."""
        await self.transactions.close()

    # Models

    async def put_models(self, specs: Sequence[ModelSpec]) -> list[str]:
        """Declare models; per model `created`, `configured` or `unchanged`.

        Up to `MAX_STEP_MODELS` and `MAX_STEP_BYTES` are declared in one step, all or nothing. More
        take several steps, in order, between which Redis serves other clients. If Redis becomes
        unavailable, earlier steps remain in effect; the error gives the number of declared models,
        and declaring all models again completes the rest. Raises InvalidModel, with nothing
        declared, where a model needs another loading policy than the pool has.
        """
        await self.check_models(specs)
        outcomes: list[str] = []
        for step in declaration_steps(specs):
            try:
                outcomes += await self._submit("put", step)
            except RegistryUnavailable as error:
                if not outcomes:
                    raise
                raise RegistryUnavailable(
                    f"{error}; {len(outcomes)} of {len(specs)} models are declared, of the next "
                    f"{len(step)} all or none: declare all of them again"
                ) from error
        return outcomes

    async def check_models(self, specs: Sequence[ModelSpec]) -> None:
        """Raises InvalidModel, naming models, if the pool cannot take them."""
        problems: list[str] = []
        if any(spec.policy.loading is not None for spec in specs):
            loading = await self._submit("loading")
            problems += loading_problems(specs, self.pool, str(loading or ""))
        if any(spec.policy.placement is not None for spec in specs):
            planner = await self._submit("planner")
            problems += placement_problems(specs, self.pool, str(planner or ""))
        problems += [
            f"InferenceService {name}: metadata.name is that of an InferenceApplication; "
            "variants need names of their own"
            for name in await self._submit("taken", [str(spec.name) for spec in specs]) or ()
        ]
        if problems:
            raise InvalidModel(problems)

    async def put_applications(self, specs: Sequence[ApplicationSpec]) -> list[str]:
        """Declare applications; per application `created`, `configured` or `unchanged`.

        Raises InvalidModel for those that have the name of a model, after declaring the others.
        """
        outcomes = await asyncio.gather(
            *(
                self._submit("put_application", str(spec.name), encode_application(spec))
                for spec in specs
            )
        )
        taken = [
            f"InferenceApplication {spec.name}: metadata.name is that of a model; "
            "requests to that URL would be ambiguous"
            for spec, outcome in zip(specs, outcomes, strict=True)
            if outcome == "taken"
        ]
        if taken:
            raise InvalidModel(taken)
        return list(outcomes)

    async def delete_applications(self, names: Iterable[ModelName]) -> list[ModelName]:
        """Delete applications; returns the names of those that did not exist."""
        return await self._delete("delete_application", names)

    async def put_accuracy(self, profile: AccuracyProfile) -> bool:
        """Store a variant's accuracy; False if its generation of the model is not declared."""
        name = str(name_of_key(profile.key))
        return bool(await self._submit("accuracy", name, profile.key, encode(profile)))

    async def delete_models(self, names: Iterable[ModelName]) -> list[ModelName]:
        """Delete models; returns the names of those that did not exist."""
        return await self._delete("delete", names)

    async def _delete(self, operation: str, names: Iterable[ModelName]) -> list[ModelName]:
        names = list(names)
        existed = await asyncio.gather(*(self._submit(operation, str(name)) for name in names))
        return [name for name, found in zip(names, existed, strict=True) if not found]

    async def get_model(self, name: ModelName) -> ModelRecord | None:
        spec, previous, failure = await self._submit("model", str(name))
        return decode_record(spec, previous, failure) if spec else None

    async def cluster(self) -> ClusterState:
        """The pool's state in Redis now; not kept up to date.

        A Redis that cannot save, as on a full disk, shows pods as they last reported.
        """
        versions, _, snapshot = await self.transactions.snapshot(is_kept_up=False)
        state = ClusterState()
        load_snapshot(state, versions.changes, snapshot)
        return state

    async def put_rules(self, rules: TenantRules, token: int = 0) -> bool:
        """Store the rules for tenants; False: a controller with a higher token has written them.

        `token`: version of the lease of the controller that writes; 0: of one machine's owner.
        """
        return str(await self._submit("put_tenants", token, encode_rules(rules))) != "fenced"

    async def put_profile(self, profile: Profile) -> bool:
        """Store a profile; returns False if its generation of the model is no longer declared."""
        name = str(name_of_key(profile.key))
        text = encode_profile(profile)
        return bool(await self._submit("profile", name, profile.key, text, profile.product))

    # Pods

    async def register_pod(self, info: PodInfo, *, lease_ttl_s: float = LEASE_TTL_S) -> int:
        """Add a pod and remove the state of an older process of its name; returns its epoch."""
        epoch: int = await self._submit(
            "register", info.name, encode(info), info.slots, int(lease_ttl_s * 1000), str(info.kind)
        )
        return epoch

    async def resize_pod(self, info: PodInfo, epoch: int) -> None:
        """Change a pod's slots to those of `info`. Raises LeaseLost."""
        await self._submit_checked("resize", info.name, epoch, encode(info), info.slots)

    async def heartbeat(
        self, pod: str, epoch: int, report: PodReport, *, lease_ttl_s: float = LEASE_TTL_S
    ) -> None:
        """Extend the lease and report measurements. Raises LeaseLost."""
        used = orjson.dumps(dict(report.used_bytes), option=orjson.OPT_SORT_KEYS).decode()
        samples = [  # JSON writes infinities as null, which would break medians in every copy
            [each.key, each.measure, [value for value in each.values_s if math.isfinite(value)]]
            for each in report.samples
        ]
        await self._submit_checked(
            "beat",
            pod,
            epoch,
            int(lease_ttl_s * 1000),
            used,
            report.loads_total,
            samples,
            report.idle_byte_s,
            encode(report.copies, orjson.OPT_SORT_KEYS),
            "" if report.gpu is None else encode(report.gpu),
            "" if report.speed is AVERAGE else encode(report.speed),
        )

    async def idle_byte_s(self) -> float:
        """Device memory held by idle models of the pool so far, in bytes x seconds.

        It includes the last report of every pod that has ended, and only grows; use differences.
        """
        return float(await self._submit("idle_memory"))

    async def set_phase(self, pod: str, epoch: int, phase: PodPhase) -> None:
        """Set whether the pod accepts requests. Raises LeaseLost."""
        await self._submit_checked("phase", pod, epoch, phase)

    async def has_pod_at(self, address: str) -> bool:
        """Whether a pod with a lease has this address, `host:port`."""
        return bool(await self._submit("has_address", address))

    async def deregister_pod(self, pod: str, epoch: int) -> None:
        """Remove a pod at once instead of at the end of its lease."""
        await self._submit("leave", pod, epoch)

    async def take_place(
        self, pod: str, accelerator: str, *, hold_s: float = START_TIMEOUT_S
    ) -> PlacedPod | None:
        """Take an open place of the recorded plan on the accelerator; None: there is none.

        A pod that has a place of the plan keeps it. The pod must register with the place within
        `hold_s`, and has it until its registration ends.
        """
        found = await self._submit("take_place", pod, accelerator, int(hold_s * 1000))
        return decode(PlacedPod, found) if found else None

    # Loads

    async def claim_load(
        self, pod: str, epoch: int, key: str, max_other_copies: int, *, ttl_s: float = CLAIM_TTL_S
    ) -> int | None:
        """Claim the load of a model for a pod.

        Returns:
            The fencing token, or None where the model is warm or loading at the pod, or at more
            than `max_other_copies` others.

        Raises:
            LeaseLost: when the pod's lease is over.
        """
        result = await self._submit_checked(
            "claim", pod, epoch, key, max_other_copies, int(ttl_s * 1000)
        )
        return int(result[1]) if result[0] == "ok" else None

    async def start_load(self, pod: str, epoch: int, key: str, token: int, source: Tier) -> None:
        """Begin a claimed load; the claim then lasts as long as the pod's lease.

        Raises ClaimLost, LeaseLost.
        """
        await self._submit_checked("start", pod, epoch, key, token, source)

    async def finish_load(
        self, pod: str, epoch: int, key: str, token: int, memory_bytes: int
    ) -> None:
        """Record that the model is warm. Raises ClaimLost (then unload the model), LeaseLost."""
        name = str(name_of_key(key))
        await self._submit_checked("finish", pod, epoch, key, token, memory_bytes, name)

    async def fail_load(
        self, pod: str, epoch: int, key: str, token: int, failure: LoadFailure
    ) -> None:
        """End a claimed load; the model's record gets the failure. Raises ClaimLost, LeaseLost."""
        name = str(name_of_key(key))
        await self._submit_checked("fail", pod, epoch, key, token, name, encode(failure))

    async def report_model_failure(self, pod: str, epoch: int, failure: LoadFailure) -> None:
        """Record that a model that was warm at the pod stopped working there. Raises LeaseLost."""
        name = str(name_of_key(failure.key))
        await self._submit_checked("broken", pod, epoch, failure.key, name, encode(failure))

    async def report_unreadable(self, failure: LoadFailure) -> None:
        """Record why a pod could not read a declared model, unless a pod has loaded it."""
        name = str(name_of_key(failure.key))
        await self._submit("unreadable", failure.key, name, encode(failure))

    async def set_tier(self, pod: str, epoch: int, key: str, tier: Tier, bytes_: int) -> None:
        """Record where the weights are at the pod, outside of a load. Raises LeaseLost.

        REMOTE with bytes: only the small files that an entry pod needs; REMOTE with 0: nothing.
        """
        await self._submit_checked("tier", pod, epoch, key, tier, bytes_)

    async def end_inference(self, pod: str, reservation_id: str) -> None:
        """Free the reservation's place in the inference stage; its slot stays taken."""
        await self._submit("infer_end", reservation_id, pod)

    # Reservations

    def reserve(
        self,
        reservation_id: str,
        terms: ReservationRequest,
        on_result: Callable[[Granted | Refusal | RegistryUnavailable], None],
    ) -> None:
        """Reserve a slot and a place in the inference stage, both or neither.

        `on_result` is called right after the watched copy has applied the change, with no other
        code in between but that of the batch's other callbacks, so a caller that counts pending
        slots never counts this slot twice.
        """
        self.transactions.submit_reservation("reserve", reservation_id, terms, on_result)

    def release(
        self,
        reservation_id: str,
        terms: ReservationRequest,
        on_result: Callable[[Any], None] = lambda _: None,
    ) -> None:
        """Release a reservation without waiting; it expires if Redis is unreachable.

        The operation is sent with the next one or a millisecond later, which halves the round trips
        of a client that runs one request at a time.
        """
        self.transactions.submit_reservation(
            "release", reservation_id, terms, on_result, is_deferred=True
        )

    def renew(self, reservation_id: str, terms: ReservationRequest) -> None:
        """Extend the reservation of a long request."""
        self.transactions.submit_reservation("renew", reservation_id, terms, lambda _: None)

    def restore(self, reservation_id: str, terms: ReservationRequest) -> None:
        """Record a reservation again after its pod has re-registered during the request.

        Only the reservation's owner may call this, and only before it releases the reservation.
        """
        self.transactions.submit_reservation("hold", reservation_id, terms, lambda _: None)

    async def _submit_checked(self, *operation: Any) -> Any:
        """Run an operation of a pod. Raises ClaimLost, LeaseLost."""
        result = await self._submit(*operation)
        match result[0]:
            case "lost":
                raise LeaseLost("the pod's lease is over or belongs to a newer process")
            case "fenced":
                raise ClaimLost("the load's claim has expired or was replaced by a newer one")
        return result
