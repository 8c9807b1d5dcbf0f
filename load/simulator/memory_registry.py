"""The registry in memory: the operations of `registry/redis/scripts`, with the same meaning.

One owner, who gives the time; no expiry happens by itself. What policies look at is `state`, which
every operation changes at once, as if each change were published and heard in no time. Times in
seconds, `inf` for never. Tests run the scripts' own contract tests against it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Final

from registry.domain.cluster import ClusterState
from registry.domain.estimates import ModelEstimates
from registry.domain.model import ModelRecord, Tier, name_of_key
from registry.domain.pod import PodPhase
from registry.domain.pod_state import PodState
from registry.domain.reservation import CLAIM_TTL_S, ClaimScope, Granted, LoadMode, Refusal
from registry.domain.residency_index import Residency
from registry.errors import ClaimLost, LeaseLost

if TYPE_CHECKING:
    from collections.abc import Sequence

    from registry.domain.model import LoadFailure, ModelName, ModelSpec
    from registry.domain.pod import PodInfo, PodReport, Samples
    from registry.domain.profile import Profile

_WARM: Final = Granted("warm", 0)


@dataclass(eq=False, slots=True)
class _ReservedPlace:
    """A pod, its lease, its reservations by identity with their expiry."""

    state: PodState
    lease_end_s: float
    slots: dict[str, float] = field(default_factory=dict)
    ongoing: dict[str, float] = field(default_factory=dict)
    earliest_s: float = inf
    """No reservation expires before this."""

    def publish_counts(self) -> None:
        """Write the numbers of reservations to the state that policies read."""
        self.state.set_counts(len(self.slots), len(self.ongoing))


@dataclass(slots=True)
class _Claim:
    token: int
    expiry_s: float
    """Until when it must be started; infinity once it is."""


class MemoryRegistry:
    """One pool's state. Methods raise LeaseLost and ClaimLost as `registry.redis.client` does."""

    def __init__(self) -> None:
        self.state = ClusterState()
        self._members: dict[str, _ReservedPlace] = {}
        self._claims: dict[str, dict[str, _Claim]] = {}
        self._next_fence = 0
        self._next_lease_end_s = inf
        self._next_claim_end_s = inf

    # Pods

    def register_pod(self, info: PodInfo, now_s: float, *, lease_ttl_s: float = inf) -> int:
        """Enter a pod and clear what an older process of its name left; returns its epoch."""
        self._wipe(info.name, is_back=True)
        self._next_fence += 1
        pod = PodState(info)
        pod.epoch = self._next_fence
        self.state.pods[info.name] = pod
        self._members[info.name] = member = _ReservedPlace(pod, inf)
        self._set_lease(member, now_s + lease_ttl_s)
        return pod.epoch

    def heartbeat(
        self, pod: str, epoch: int, report: PodReport, now_s: float, *, lease_ttl_s: float = inf
    ) -> None:
        """Extend the lease and take in what was measured. Raises LeaseLost."""
        member = self._current(pod, epoch, now_s)
        self._set_lease(member, now_s + lease_ttl_s)
        found = member.state
        found.set_used_bytes(report.used_bytes)
        found.loads_total = report.loads_total
        found.set_suspect(is_suspect=False)
        self.add_samples(report.samples)

    def add_samples(self, samples: Sequence[Samples]) -> None:
        """Take in what was measured of models."""
        for sample in samples:
            known = self.state.measurements.get(sample.key)
            if known is None:
                known = self.state.measurements[sample.key] = ModelEstimates()
            known.add(sample.measure, sample.values_s)

    def set_phase(self, pod: str, epoch: int, phase: PodPhase, now_s: float) -> None:
        """Say whether the pod takes requests. Raises LeaseLost."""
        self._current(pod, epoch, now_s).state.set_phase(phase)

    def deregister_pod(self, pod: str, epoch: int) -> None:
        """The pod goes at once; nothing happens where its name has a newer process."""
        found = self.state.pods.get(pod)
        if found is not None and found.epoch == epoch:
            self._wipe(pod)

    def lose_lease_at(self, pod: str, when_s: float) -> None:
        """The pod beats no more: its lease ends then."""
        if pod in self._members:
            self._set_lease(self._members[pod], when_s)

    def sweep(self, now_s: float) -> None:
        """Clear away what has expired: leases, claims that were not started, reservations."""
        self._reap_pods(now_s)
        self._reap_claims(now_s)
        for member in self._members.values():
            self._purge(member, now_s)

    def _set_lease(self, member: _ReservedPlace, until_s: float) -> None:
        member.lease_end_s = until_s
        self._next_lease_end_s = min(self._next_lease_end_s, until_s)

    def _reap_pods(self, now_s: float) -> None:
        if now_s < self._next_lease_end_s:
            return
        members = self._members
        for name in [name for name, each in members.items() if each.lease_end_s <= now_s]:
            self._wipe(name)
        ends = (each.lease_end_s for each in members.values())
        self._next_lease_end_s = min(ends, default=inf)

    def _wipe(self, pod: str, *, is_back: bool = False) -> None:
        if self._members.pop(pod, None) is None:
            return
        del self.state.pods[pod]
        residency = self.state.residency
        for key in [key for key, holders in residency.items() if pod in holders]:
            was_warm = residency[key][pod].is_warm
            residency.drop(key, pod)
            self._drop_claim(key, pod)
            if was_warm and not is_back:  # one that is back says at once what it still holds
                self._cooled(key)

    def _current(self, pod: str, epoch: int, now_s: float) -> _ReservedPlace:
        member = self._members.get(pod)
        if member is None or member.state.epoch != epoch or member.lease_end_s <= now_s:
            raise LeaseLost("the pod's lease is over or belongs to a newer process")
        return member

    def _serving(self, pod: str, now_s: float) -> _ReservedPlace | None:
        """The pod if it is alive and takes requests, with what expired there taken out."""
        member = self._members.get(pod)
        if member is None or member.lease_end_s <= now_s:
            return None
        if now_s >= member.earliest_s:
            self._purge(member, now_s)
        state = member.state
        return member if state.is_accepting or state.phase is PodPhase.READY else None

    # Residency

    def _set_residency(
        self, pod: str, key: str, tier: Tier, loading: Tier | None, size_bytes: int, now_s: float
    ) -> None:
        before = self.state.holders(key).get(pod)
        if tier is Tier.REMOTE and loading is None and size_bytes == 0:
            self.state.residency.drop(key, pod)
        else:
            self.state.residency.put(key, pod, Residency(tier, loading, now_s, size_bytes))
        if before is not None and before.is_warm and tier is not Tier.DEVICE:
            self._cooled(key)

    def _is_warm_anywhere(self, key: str) -> bool:
        return any(each.is_warm for each in self.state.holders(key).values())

    def _cooled(self, key: str) -> None:
        """A previous generation that nobody holds has served its time."""
        name = name_of_key(key)
        record = self.state.models.get(name)
        if record is None or record.previous is None or record.previous.key != key:
            return
        if not self._is_warm_anywhere(key):
            self._set_record(name, ModelRecord(record.spec, None, record.failure))

    # Loads

    def claim_load(
        self, pod: str, epoch: int, key: str, scope: ClaimScope, now_s: float,
        *, ttl_s: float = CLAIM_TTL_S,
    ) -> int | None:  # fmt: skip
        """The fencing token; None where the model is warm or loading within the scope."""
        self._current(pod, epoch, now_s)
        self._reap_claims(now_s)
        residency = self.state.holders(key).get(pod)
        if residency is not None and (residency.is_warm or residency.is_warming):
            return None
        if scope is ClaimScope.POOL and self._copies_elsewhere(key, pod, now_s) > 0:
            return None
        return self._make_claim(key, pod, now_s, ttl_s).load_token

    def start_load(
        self, pod: str, epoch: int, key: str, token: int, source: Tier, now_s: float
    ) -> None:
        """Begin a claimed load; it then lives as long as the lease. Raises ClaimLost, LeaseLost."""
        self._rightful(pod, epoch, key, token, now_s).expiry_s = inf
        residency = self.state.holders(key).get(pod)
        if residency is None or residency.loading_from is not source:
            size_bytes = 0 if residency is None else residency.size_bytes
            self._set_residency(pod, key, source, source, size_bytes, now_s)

    def finish_load(
        self, pod: str, epoch: int, key: str, token: int, memory_bytes: int, now_s: float
    ) -> None:
        """The pod is warm for the model. Raises ClaimLost, LeaseLost."""
        self._rightful(pod, epoch, key, token, now_s)
        self._drop_claim(key, pod)
        self._set_residency(pod, key, Tier.DEVICE, None, memory_bytes, now_s)
        name = name_of_key(key)
        record = self.state.models.get(name)
        if record is not None and record.spec.key == key and (record.previous or record.failure):
            self._set_record(name, ModelRecord(record.spec))

    def fail_load(
        self, pod: str, epoch: int, key: str, token: int, failure: LoadFailure, now_s: float
    ) -> None:
        """The load failed; the model's record says why. Raises ClaimLost, LeaseLost."""
        self._rightful(pod, epoch, key, token, now_s)
        self._drop_claim(key, pod)
        self._settle(key, pod, now_s)
        self._note_failure(key, failure)

    def report_model_failure(
        self, pod: str, epoch: int, failure: LoadFailure, now_s: float
    ) -> None:
        """A model that was warm at the pod stopped working there. Raises LeaseLost."""
        self._current(pod, epoch, now_s)
        self._note_failure(failure.key, failure)

    def set_tier(
        self, pod: str, epoch: int, key: str, tier: Tier, size_bytes: int, now_s: float
    ) -> None:
        """Where the weights are at the pod outside of a load. Raises LeaseLost."""
        self._current(pod, epoch, now_s)
        claim = self._claim_of(key, pod, now_s)
        if claim is not None and claim.expiry_s != inf and tier is not Tier.DEVICE:
            self._set_residency(pod, key, tier, tier, size_bytes, now_s)  # a load was asked for
            return
        self._drop_claim(key, pod)
        self._set_residency(pod, key, tier, None, size_bytes, now_s)

    def _rightful(self, pod: str, epoch: int, key: str, token: int, now_s: float) -> _Claim:
        self._current(pod, epoch, now_s)
        claim = self._claim_of(key, pod, now_s)
        if claim is None or claim.token != token:
            raise ClaimLost("the load claim is over or was given to somebody else")
        return claim

    def _claim_of(self, key: str, pod: str, now_s: float) -> _Claim | None:
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
        self._set_residency(pod, key, tier, tier, size_bytes, now_s)
        return Granted(tier.value, self._next_fence)

    def _drop_claim(self, key: str, pod: str) -> None:
        claims = self._claims.get(key)
        if claims is not None and claims.pop(pod, None) is not None and not claims:
            del self._claims[key]

    def _settle(self, key: str, pod: str, now_s: float) -> None:
        residency = self.state.holders(key).get(pod)
        if residency is not None and residency.is_warming:
            self._set_residency(pod, key, residency.tier, None, residency.size_bytes, now_s)

    def _reap_claims(self, now_s: float) -> None:
        if now_s < self._next_claim_end_s:
            return
        late = [
            (key, pod)
            for key, claims in self._claims.items()
            for pod, claim in claims.items()
            if claim.expiry_s <= now_s
        ]
        for key, pod in late:
            self._drop_claim(key, pod)
            self._settle(key, pod, now_s)
        ends = (claim.expiry_s for claims in self._claims.values() for claim in claims.values())
        self._next_claim_end_s = min(ends, default=inf)

    def _copies_elsewhere(self, key: str, pod: str, now_s: float) -> int:
        """How many other pods that take requests hold the model on their device or load it."""
        holders = self.state.holders(key).items()
        warm = [name for name, each in holders if each.is_warm]
        claimed = [name for name in self._claims.get(key, ()) if self._claim_of(key, name, now_s)]
        return sum(
            name != pod and self._serving(name, now_s) is not None for name in (*warm, *claimed)
        )

    # Reservations

    def reserve(
        self, id_: str, entry: str, predict: str, key: str, mode: LoadMode, now_s: float,
        *, max_other_copies: int = -1, target_ongoing: int = 0, ttl_s: float = inf,
        claim_ttl_s: float = CLAIM_TTL_S,
    ) -> Granted | Refusal:  # fmt: skip
        """A slot at the entry pod and a place in the predict pod's inference stage, or neither."""
        entering = self._serving(entry, now_s)
        if entering is None:
            return Refusal.GONE
        if len(entering.slots) >= entering.state.slots:
            return Refusal.FULL
        predicting = entering if predict == entry else self._serving(predict, now_s)
        if predicting is None:
            return Refusal.GONE
        if target_ongoing > 0 and len(predicting.ongoing) >= target_ongoing:
            return Refusal.BUSY
        granted = self._granted(predict, key, mode, max_other_copies, now_s, claim_ttl_s)
        if isinstance(granted, Granted):
            expiry_s = now_s + ttl_s
            entering.slots[id_] = expiry_s
            predicting.ongoing[id_] = expiry_s
            if expiry_s < inf:
                entering.earliest_s = min(entering.earliest_s, expiry_s)
                predicting.earliest_s = min(predicting.earliest_s, expiry_s)
            entering.publish_counts()
            predicting.publish_counts()
        return granted

    def _granted(
        self, predict: str, key: str, mode: LoadMode, copies: int, now_s: float, claim_ttl_s: float
    ) -> Granted | Refusal:
        residency = self.state.holders(key).get(predict)
        if residency is not None and residency.tier is Tier.DEVICE:
            return _WARM
        if (
            residency is not None
            and residency.loading_from is not None
            and self._claim_of(key, predict, now_s) is not None
        ):
            if mode is LoadMode.WARM:
                return Refusal.COLD
            return Granted(residency.loading_from.value, 0)
        if mode is not LoadMode.LOAD:
            return Refusal.COLD
        if copies >= 0 and self._copies_elsewhere(key, predict, now_s) > copies:
            return Refusal.ELSEWHERE
        return self._make_claim(key, predict, now_s, claim_ttl_s)

    def release(self, id_: str, entry: str, predict: str) -> None:
        """Give back what `reserve` took; it may come twice, or for a pod that is gone."""
        member = self._members.get(entry)
        if member is not None and member.slots.pop(id_, None) is not None:
            member.publish_counts()
        if predict != entry:
            member = self._members.get(predict)
        if member is not None and id_ in member.ongoing:
            self.end_inference(id_, predict)

    def end_inference(self, id_: str, predict: str) -> None:
        """Free the place in the inference stage; the slot stays taken."""
        member = self._members.get(predict)
        if member is not None and member.ongoing.pop(id_, None) is not None:
            member.publish_counts()

    def renew(self, id_: str, entry: str, predict: str, until_s: float) -> None:
        """Keep a reservation from expiring; one that was given back stays given back."""
        if (member := self._members.get(entry)) is not None and id_ in member.slots:
            member.slots[id_] = until_s
            member.earliest_s = min(member.earliest_s, until_s)
        if (member := self._members.get(predict)) is not None and id_ in member.ongoing:
            member.ongoing[id_] = until_s
            member.earliest_s = min(member.earliest_s, until_s)

    def restore(self, id_: str, entry: str, predict: str, until_s: float, now_s: float) -> None:
        """Enter what a pod that registered anew has forgotten; the request goes on all the same."""
        entering, predicting = self._members.get(entry), self._members.get(predict)
        if entering is None or predicting is None or id_ in entering.slots:
            return
        if min(entering.lease_end_s, predicting.lease_end_s) <= now_s:
            return
        entering.slots[id_] = predicting.ongoing[id_] = until_s
        for member in (entering, predicting):
            member.earliest_s = min(member.earliest_s, until_s)
        entering.publish_counts()
        predicting.publish_counts()

    def _purge(self, member: _ReservedPlace, now_s: float) -> None:
        if now_s < member.earliest_s:
            return
        for places in (member.slots, member.ongoing):
            for id_ in [id_ for id_, expiry_s in places.items() if expiry_s <= now_s]:
                del places[id_]
        ends = [*member.slots.values(), *member.ongoing.values()]
        member.earliest_s = min(ends, default=inf)
        member.publish_counts()

    # Models

    def put_models(self, specs: Sequence[ModelSpec], now_s: float) -> list[str]:
        """Declare models; per model `created`, `configured` or `unchanged`."""
        self._reap_pods(now_s)
        return [self._put(spec) for spec in specs]

    def _put(self, spec: ModelSpec) -> str:
        record = self.state.models.get(spec.name)
        if record is None:
            self._set_record(spec.name, ModelRecord(spec))
            return "created"
        if record.spec == spec:
            if record.failure is not None:
                self._set_record(spec.name, ModelRecord(record.spec, record.previous))
            return "unchanged"
        previous = record.previous
        if record.spec.key != spec.key and self._is_warm_anywhere(record.spec.key):
            previous = record.spec
        if previous is not None and (
            previous.key == spec.key
            or self._is_warm_anywhere(spec.key)
            or not self._is_warm_anywhere(previous.key)
        ):
            previous = None
        self._set_record(spec.name, ModelRecord(spec, previous))
        return "configured"

    def delete_model(self, name: ModelName) -> bool:
        """Withdraw a model; False: it was not there."""
        if self.state.profiles.pop(name, None) is not None:
            self.state.profiles_version += 1
        existed = self.state.models.pop(name, None) is not None
        self.state.models_version += existed
        return existed

    def put_profile(self, profile: Profile) -> bool:
        """Keep what a generation costs by batch size; False: it is not declared any more."""
        name = name_of_key(profile.key)
        record = self.state.models.get(name)
        if record is None or profile.key not in (record.spec.key, record.serving.key):
            return False
        self.state.profiles[name] = profile
        self.state.profiles_version += 1
        return True

    def _note_failure(self, key: str, failure: LoadFailure) -> None:
        name = name_of_key(key)
        record = self.state.models.get(name)
        if record is not None and record.spec.key == key:
            self._set_record(name, ModelRecord(record.spec, record.previous, failure))

    def _set_record(self, name: ModelName, record: ModelRecord) -> None:
        self.state.models[name] = record
        self.state.models_version += 1
