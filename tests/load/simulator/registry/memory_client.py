"""The registry's client over the registry in memory, for the contract tests."""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from load.simulator.memory_registry import MemoryRegistry
from registry.domain.cluster import ClusterState
from registry.domain.model import LoadFailure, ModelName, ModelRecord, ModelSpec, Tier
from registry.domain.pod import LEASE_TTL_S, PodInfo, PodPhase, PodReport, Profile
from registry.domain.pod_state import CLAIM_TTL_S, Granted, Refusal, ReservationRequest
from registry.errors import RegistryUnavailable
from registry.redis.client import Registry


class MemoryClient(Registry):
    """One client of a registry in memory; several may share it."""

    def __init__(self, memory: MemoryRegistry, now_s: Callable[[], float] = time.time) -> None:
        self._memory = memory
        self._now_s = now_s

    async def put_models(self, specs: Sequence[ModelSpec]) -> list[str]:
        return self._memory.put_models(specs, self._now_s())

    async def delete_models(self, names: Iterable[ModelName]) -> list[ModelName]:
        state = self._memory.state
        asked = list(names)
        found = {name for name in asked if name in state.models}
        for name in found:
            state.profiles_version += state.profiles.pop(name, None) is not None
            del state.models[name]
        state.models_version += len(found)
        return [name for name in asked if name not in found]

    async def get_model(self, name: ModelName) -> ModelRecord | None:
        return self._memory.state.models.get(name)

    async def cluster(self) -> ClusterState:
        self._memory.sweep(self._now_s())
        return self._memory.state

    async def put_profile(self, profile: Profile) -> bool:
        return self._memory.models.put_profile(profile)

    async def register_pod(self, info: PodInfo, *, lease_ttl_s: float = LEASE_TTL_S) -> int:
        return self._memory.register_pod(info, self._now_s(), lease_ttl_s=lease_ttl_s)

    async def heartbeat(
        self, pod: str, epoch: int, report: PodReport, *, lease_ttl_s: float = LEASE_TTL_S
    ) -> None:
        self._memory.heartbeat(pod, epoch, report, self._now_s(), lease_ttl_s=lease_ttl_s)

    async def set_phase(self, pod: str, epoch: int, phase: PodPhase) -> None:
        self._memory.set_phase(pod, epoch, phase, self._now_s())

    async def deregister_pod(self, pod: str, epoch: int) -> None:
        self._memory.deregister_pod(pod, epoch)

    async def claim_load(
        self, pod: str, epoch: int, key: str, max_other_copies: int, *, ttl_s: float = CLAIM_TTL_S
    ) -> int | None:
        return self._memory.claim_load(
            pod, epoch, key, max_other_copies, self._now_s(), ttl_s=ttl_s
        )

    async def start_load(self, pod: str, epoch: int, key: str, token: int, source: Tier) -> None:
        self._memory.start_load(pod, epoch, key, token, source, self._now_s())

    async def finish_load(
        self, pod: str, epoch: int, key: str, token: int, memory_bytes: int
    ) -> None:
        self._memory.finish_load(pod, epoch, key, token, memory_bytes, self._now_s())

    async def fail_load(
        self, pod: str, epoch: int, key: str, token: int, failure: LoadFailure
    ) -> None:
        self._memory.fail_load(pod, epoch, key, token, failure, self._now_s())

    async def report_model_failure(self, pod: str, epoch: int, failure: LoadFailure) -> None:
        self._memory.pods.holder(pod, epoch, self._now_s())
        self._memory.models.record_failure(failure.key, failure)

    async def set_tier(self, pod: str, epoch: int, key: str, tier: Tier, bytes_: int) -> None:
        self._memory.set_tier(pod, epoch, key, tier, bytes_, self._now_s())

    async def end_inference(self, pod: str, reservation_id: str) -> None:
        self._memory.pods.end_inference(reservation_id, pod)

    def reserve(
        self,
        reservation_id: str,
        terms: ReservationRequest,
        on_result: Callable[[Granted | Refusal | RegistryUnavailable], None],
    ) -> None:
        on_result(
            self._memory.reserve(
                reservation_id,
                terms.entry,
                terms.predict,
                terms.key,
                terms.mode,
                self._now_s(),
                max_other_copies=terms.max_other_copies,
                target_ongoing=terms.target_ongoing,
                ttl_s=terms.ttl_s,
                takes_slot=terms.takes_slot,
            )
        )

    def release(
        self,
        reservation_id: str,
        terms: ReservationRequest,
        on_result: Callable[[Any], None] = lambda _: None,
    ) -> None:
        self._memory.pods.release(reservation_id, terms.entry, terms.predict)
        on_result(None)

    def renew(self, reservation_id: str, terms: ReservationRequest) -> None:
        until_s = self._now_s() + terms.ttl_s
        pods = self._memory.pods.by_name
        if (pod := pods.get(terms.entry)) is not None and reservation_id in pod.slots:
            pod.slots[reservation_id] = until_s
            pod.earliest_s = min(pod.earliest_s, until_s)
        if (pod := pods.get(terms.predict)) is not None and reservation_id in pod.ongoing:
            pod.ongoing[reservation_id] = until_s
            pod.earliest_s = min(pod.earliest_s, until_s)

    def restore(self, reservation_id: str, terms: ReservationRequest) -> None:
        now_s = self._now_s()
        until_s = now_s + terms.ttl_s
        pods = self._memory.pods.by_name
        entering, predicting = pods.get(terms.entry), pods.get(terms.predict)
        if entering is None or predicting is None or reservation_id in entering.slots:
            return
        if entering.is_lease_over(now_s) or predicting.is_lease_over(now_s):
            return
        entering.slots[reservation_id] = predicting.ongoing[reservation_id] = until_s
        for pod in (entering, predicting):
            pod.earliest_s = min(pod.earliest_s, until_s)
            pod.publish_counts()
