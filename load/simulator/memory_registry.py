"""The registry in memory: the operations of `registry/redis/scripts`, with the same meaning.

Callers pass the time; nothing expires by itself. Policies read `state`, which every operation
changes immediately, as if publishing a change took no time. Times in seconds, `inf` for never. The
scripts' own contract tests run against it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from load.simulator.registry_tables import ModelTable, PodTable
from registry.domain.cluster import ClusterState
from registry.domain.model import LoadFailure, ModelSpec, Tier
from registry.domain.pod import PodInfo, PodPhase, PodReport
from registry.domain.pod_state import CLAIM_TTL_S, Granted, LoadMode, PodState, Refusal
from registry.errors import ClaimLost

_WARM: Final = Granted("warm", 0)


@dataclass(slots=True)
class _Claim:
    token: int
    expiry_s: float
    """Time until which the load must start; infinity once it has started."""


class MemoryRegistry:
    """One pool's state. Methods raise LeaseLost and ClaimLost as `registry.redis.client` does."""

    def __init__(self) -> None:
        self.state = ClusterState()
        self.pods = PodTable()
        self.models = ModelTable(self.state)
        self._claims: dict[str, dict[str, _Claim]] = {}
        """By model's key, then pod."""
        self._next_fence = 0
        self._next_claim_end_s = inf

    def put_models(self, specs: Sequence[ModelSpec], now_s: float) -> list[str]:
        """Declare models; per model `created`, `configured` or `unchanged`."""
        self._drop_expired_pods(now_s)
        return [self.models.put(spec) for spec in specs]

    def sweep(self, now_s: float) -> None:
        """Drop what has expired: leases, claims without a load, reservations."""
        self._drop_expired_pods(now_s)
        self._drop_expired_claims(now_s)
        for entry in self.pods.by_name.values():
            self.pods.drop_expired(entry, now_s)

    # Pods

    def register_pod(self, info: PodInfo, now_s: float, *, lease_ttl_s: float = inf) -> int:
        """Register a pod in place of an older process of its name; returns its epoch."""
        self._drop_pod(info.name, is_registering=True)
        self._next_fence += 1
        state = PodState(info)
        state.epoch = self._next_fence
        self.state.pods[info.name] = state
        self.pods.add(state, now_s + lease_ttl_s)
        return state.epoch

    def heartbeat(
        self, pod: str, epoch: int, report: PodReport, now_s: float, *, lease_ttl_s: float = inf
    ) -> None:
        """Extend the lease and apply the report. Raises LeaseLost."""
        entry = self.pods.holder(pod, epoch, now_s)
        self.pods.set_lease(entry, now_s + lease_ttl_s)
        entry.state.set_speed(report.speed)
        entry.state.set_used_bytes(report.used_bytes)
        entry.state.loads_total = report.loads_total
        entry.state.set_suspect(is_suspect=False)
        for sample in report.samples:
            entry.state.estimates.table.add(sample.key, sample.measure, sample.values_s, now_s)

    def set_phase(self, pod: str, epoch: int, phase: PodPhase, now_s: float) -> None:
        """Set whether the pod takes requests. Raises LeaseLost."""
        self.pods.holder(pod, epoch, now_s).state.set_phase(phase)

    def deregister_pod(self, pod: str, epoch: int) -> None:
        """Remove the pod; no effect if its name has a newer process."""
        found = self.state.pods.get(pod)
        if found is not None and found.epoch == epoch:
            self._drop_pod(pod)

    def lose_lease_at(self, pod: str, when_s: float) -> None:
        """Set the end of the lease of a pod that sends no more heartbeats."""
        if pod in self.pods.by_name:
            self.pods.set_lease(self.pods.by_name[pod], when_s)

    def _drop_expired_pods(self, now_s: float) -> None:
        for name in self.pods.expired(now_s):
            self._drop_pod(name)

    def _drop_pod(self, pod: str, *, is_registering: bool = False) -> None:
        if self.pods.by_name.pop(pod, None) is None:
            return
        del self.state.pods[pod]
        for key in self.models.drop_pod(pod, is_registering=is_registering):
            self._drop_claim(key, pod)

    # Loads

    def claim_load(
        self,
        pod: str,
        epoch: int,
        key: str,
        max_other_copies: int,
        now_s: float,
        *,
        ttl_s: float = CLAIM_TTL_S,
    ) -> int | None:
        """The fencing token; None if the model is warm or loading here, or at more other pods."""
        self.pods.holder(pod, epoch, now_s)
        self._drop_expired_claims(now_s)
        residency = self.state.holders(key).get(pod)
        if residency is not None and (residency.is_warm or residency.is_warming):
            return None
        if 0 <= max_other_copies < self._copies_elsewhere(key, pod, now_s):
            return None
        return self._make_claim(key, pod, now_s, ttl_s).load_token

    def start_load(
        self, pod: str, epoch: int, key: str, token: int, source: Tier, now_s: float
    ) -> None:
        """Start a claimed load; it then lasts as long as the lease. Raises ClaimLost, LeaseLost."""
        self._held_claim(pod, epoch, key, token, now_s).expiry_s = inf
        residency = self.state.holders(key).get(pod)
        if residency is None or residency.loading_from is not source:
            size_bytes = 0 if residency is None else residency.size_bytes
            self.models.set_residency(pod, key, source, source, size_bytes, now_s)

    def finish_load(
        self, pod: str, epoch: int, key: str, token: int, memory_bytes: int, now_s: float
    ) -> None:
        """Make the pod warm for the model. Raises ClaimLost, LeaseLost."""
        self._held_claim(pod, epoch, key, token, now_s)
        self._drop_claim(key, pod)
        self.models.set_residency(pod, key, Tier.DEVICE, None, memory_bytes, now_s)
        self.models.record_load(key)

    def fail_load(
        self, pod: str, epoch: int, key: str, token: int, failure: LoadFailure, now_s: float
    ) -> None:
        """End a load; the model's record has the failure. Raises ClaimLost, LeaseLost."""
        self._held_claim(pod, epoch, key, token, now_s)
        self._drop_claim(key, pod)
        self._end_loading(key, pod, now_s)
        self.models.record_failure(key, failure)

    def set_tier(
        self, pod: str, epoch: int, key: str, tier: Tier, size_bytes: int, now_s: float
    ) -> None:
        """Set where the weights are at the pod, outside of a load. Raises LeaseLost."""
        self.pods.holder(pod, epoch, now_s)
        claim = self._valid_claim(key, pod, now_s)
        if claim is not None and claim.expiry_s != inf and tier is not Tier.DEVICE:
            self.models.set_residency(pod, key, tier, tier, size_bytes, now_s)  # a load is to start
            return
        self._drop_claim(key, pod)
        self.models.set_residency(pod, key, tier, None, size_bytes, now_s)

    def _held_claim(self, pod: str, epoch: int, key: str, token: int, now_s: float) -> _Claim:
        self.pods.holder(pod, epoch, now_s)
        claim = self._valid_claim(key, pod, now_s)
        if claim is None or claim.token != token:
            raise ClaimLost(f"the claim of {pod} to load {key} expired or was made anew")
        return claim

    def _valid_claim(self, key: str, pod: str, now_s: float) -> _Claim | None:
        claims = self._claims.get(key)
        claim = None if claims is None else claims.get(pod)
        return claim if claim is not None and claim.expiry_s > now_s else None

    def _make_claim(self, key: str, pod: str, now_s: float, ttl_s: float) -> Granted:
        self._next_fence += 1
        before = self.state.holders(key).get(pod)
        tier = before.tier if before is not None and not before.is_warm else Tier.REMOTE
        self._claims.setdefault(key, {})[pod] = _Claim(self._next_fence, now_s + ttl_s)
        self._next_claim_end_s = min(self._next_claim_end_s, now_s + ttl_s)
        size_bytes = 0 if before is None else before.size_bytes
        self.models.set_residency(pod, key, tier, tier, size_bytes, now_s)
        return Granted(tier.value, self._next_fence)

    def _drop_claim(self, key: str, pod: str) -> None:
        claims = self._claims.get(key)
        if claims is not None and claims.pop(pod, None) is not None and not claims:
            del self._claims[key]

    def _end_loading(self, key: str, pod: str, now_s: float) -> None:
        residency = self.state.holders(key).get(pod)
        if residency is not None and residency.is_warming:
            size_bytes = residency.size_bytes
            self.models.set_residency(pod, key, residency.tier, None, size_bytes, now_s)

    def _drop_expired_claims(self, now_s: float) -> None:
        if now_s < self._next_claim_end_s:
            return
        expired = [
            (key, pod)
            for key, claims in self._claims.items()
            for pod, claim in claims.items()
            if claim.expiry_s <= now_s
        ]
        for key, pod in expired:
            self._drop_claim(key, pod)
            self._end_loading(key, pod, now_s)
        ends = (claim.expiry_s for claims in self._claims.values() for claim in claims.values())
        self._next_claim_end_s = min(ends, default=inf)

    def _copies_elsewhere(self, key: str, pod: str, now_s: float) -> int:
        """Other pods that take requests and have the model on their device or load it."""
        pods = [name for name, each in self.state.holders(key).items() if each.is_warm]
        pods += [name for name in self._claims.get(key, ()) if self._valid_claim(key, name, now_s)]
        return sum(name != pod and self.pods.serving(name, now_s) is not None for name in pods)

    # Reservations

    def reserve(
        self,
        id_: str,
        entry: str,
        predict: str,
        key: str,
        mode: LoadMode,
        now_s: float,
        *,
        max_other_copies: int = -1,
        target_ongoing: int = 0,
        ttl_s: float = inf,
        takes_slot: bool = True,
    ) -> Granted | Refusal:
        """A slot at the entry pod and a place in the predict pod's inference stage, or neither."""
        entering = self.pods.serving(entry, now_s)
        if entering is None:
            return Refusal.GONE
        if takes_slot and len(entering.slots) >= entering.state.slots:
            return Refusal.FULL
        predicting = entering if predict == entry else self.pods.serving(predict, now_s)
        if predicting is None:
            return Refusal.GONE
        if target_ongoing > 0 and len(predicting.ongoing) >= target_ongoing:
            return Refusal.BUSY
        granted = self._granted(predict, key, mode, max_other_copies, now_s)
        if isinstance(granted, Granted):
            expiry_s = now_s + ttl_s
            if takes_slot:
                entering.slots[id_] = expiry_s
            predicting.ongoing[id_] = expiry_s
            if expiry_s < inf:
                entering.earliest_s = min(entering.earliest_s, expiry_s)
                predicting.earliest_s = min(predicting.earliest_s, expiry_s)
            entering.publish_counts()
            if predicting is not entering:
                predicting.publish_counts()
        return granted

    def _granted(
        self, predict: str, key: str, mode: LoadMode, copies: int, now_s: float
    ) -> Granted | Refusal:
        residency = self.state.holders(key).get(predict)
        if residency is not None and residency.tier is Tier.DEVICE:
            return _WARM
        if (
            residency is not None
            and residency.loading_from is not None
            and self._valid_claim(key, predict, now_s) is not None
        ):
            if mode is LoadMode.WARM:
                return Refusal.COLD
            return Granted(residency.loading_from.value, 0)
        if mode is not LoadMode.LOAD:
            return Refusal.COLD
        if copies >= 0 and self._copies_elsewhere(key, predict, now_s) > copies:
            return Refusal.ELSEWHERE
        return self._make_claim(key, predict, now_s, CLAIM_TTL_S)
