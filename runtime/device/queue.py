"""The device's queue, per model: the batches formed of its requests, and the choice of the next.

Pure, and free of torch, so that the simulator forms the same batches. The most urgent request
leads; others join it in the order of their deadlines while the batch stays within its limits, among
them the share of padding. Times in seconds of one clock. The device worker locks around every call.

Source: Zhang et al. 2025, section 6.1 (one batch at a time on a device, formed from its queue).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from registry.domain.demand import TenantUsage
from registry.domain.model import ModelPolicy
from registry.domain.pod_state import ProbeBudget

if TYPE_CHECKING:
    from common.inference_protocol.tensors import Tensor
    from runtime.device.batch_times import BatchTimes


PAUSE_S: Final = 300.0
"""How long a suspicion lasts after its last hang."""
MAX_CAUSES: Final = 4
"""Different hanging requests within `PAUSE_S` after which the model is refused, even if others
succeed."""


@dataclass(frozen=True, slots=True)
class ModelInputs:
    tensors: tuple[Tensor, ...]
    """Checked, in the network's order."""


@dataclass(slots=True)
class _Hang:
    """Requests of which one caused one or more hangs."""

    digests: frozenset[bytes]
    until_s: float


@dataclass(slots=True)
class Suspects:
    """Requests of one model whose inferences may hang, and whether the model is to blame. Pure.

    Each hang suspects the requests of its batch. A request that hangs have in common, or that was
    alone in its batch, is the cause and is refused. The model is to blame once different requests
    hang and no other has ended since the first, or once there are `MAX_CAUSES` of them. Times are
    of one clock.
    """

    hangs: list[_Hang] = field(default_factory=list)
    _has_served: bool = False
    """True if an inference has ended since the first of the hangs."""

    def record(self, hung: Iterable[bytes], now_s: float) -> bool:
        """Record a hung batch by its requests' digests; True if the model is to blame.

        It is to blame for a batch without requests, such as a warm-up.
        """
        seen = frozenset(hung)
        self._forget(now_s)
        for hang in self.hangs:
            if common := hang.digests & seen:
                hang.digests, hang.until_s = common, now_s + PAUSE_S
                return False
        self.hangs.append(_Hang(seen, now_s + PAUSE_S))
        if not seen or len(self.hangs) >= MAX_CAUSES:
            return True
        return len(self.hangs) > 1 and not self._has_served

    def record_served(self) -> None:
        """Record that an inference of the model has ended."""
        if self.hangs:
            self._has_served = True

    def refused_s(self, inputs: object, now_s: float) -> float:
        """For how long a request with these inputs is refused; 0 if it is not."""
        causes = {
            digest: hang.until_s
            for hang in self.hangs
            if len(hang.digests) == 1 and now_s < hang.until_s
            for digest in hang.digests
        }
        return causes.get(digest_of(inputs), now_s) - now_s if causes else 0.0

    def _forget(self, now_s: float) -> None:
        self.hangs = [each for each in self.hangs if now_s < each.until_s]
        if not self.hangs:
            self._has_served = False


def digest_of(inputs: object) -> bytes:
    """SHA-256 of a request's tensors."""
    digest = hashlib.sha256()
    if not isinstance(inputs, ModelInputs):
        digest.update(repr(inputs).encode())
        return digest.digest()
    for tensor in inputs.tensors:
        digest.update(f"{tensor.name} {tensor.datatype} {tensor.shape} ".encode())
        digest.update(tensor.content())
    return digest.digest()


ASSUMED_DEADLINE_S: Final = 60.0
"""Deadline of jobs without one, from the time they were queued, so that none of them starves."""

MIN_BATCH_S: Final = 0.001
"""Device time counted for a batch, at least and if its time is not known."""

Result = TypeVar("Result")
Q = TypeVar("Q", bound="Queued")

MAX_SEQUENCES: Final = 16
"""Default number of requests of a model that generate tokens at once."""


def batch_cap(*, annotated: int | None, planned: int | None, measured: int) -> int:
    """Largest batch: by the model's annotation, else the autoscaler's plan, else measurements."""
    return annotated or planned or measured


@dataclass(frozen=True, slots=True)
class QueuedRows:
    """One request in the device's queue."""

    sequence: int
    """Order of arrival, unique."""
    due_s: float
    """Its deadline, or an assumed one."""
    enqueued_at_s: float
    deadline_s: float | None = None
    rows: int = 1
    """Items of the request, always inferred in one batch."""
    tokens_per_row: int = 1
    """Width of its tensors; 1 if nothing is padded."""
    batch_key: Hashable = None
    """Requests of one key can share a batch; None: it runs alone."""

    @property
    def urgency(self) -> tuple[float, int]:
        """Sort key: the smallest is the most urgent."""
        return (self.due_s, self.sequence)


@dataclass(frozen=True, slots=True)
class BatchLimits:
    max_rows: int = 8
    """Items in one inference; a request with more runs alone."""
    max_wait_s: float = 0.0
    """How long an idle device may wait for a batch to fill."""
    max_padding: float = 0.5
    """Share of a batch's tokens that may be padding between requests."""
    max_tokens: int = 16_384
    """Items times the longest one's tokens; memory for activations is proportional to it."""
    inference_s: float = 0.0
    """Expected time of an inference: a batch stops waiting this long before a deadline."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Requests inferred together, the most urgent first, and the time at which they may start."""

    members: tuple[QueuedRows, ...]
    ready_s: float


def form_batch(queued: Sequence[QueuedRows], now_s: float, limits: BatchLimits) -> Batch | None:
    """The next batch of one model, None for an empty queue. The caller removes its members."""
    if not queued:
        return None
    leader, *others = sorted(queued, key=lambda each: each.urgency)
    if leader.batch_key is None:
        return Batch((leader,), now_s)
    members, rows, width = [leader], leader.rows, leader.tokens_per_row
    tokens = rows * width
    for each in others:
        if each.batch_key != leader.batch_key or rows + each.rows > limits.max_rows:
            continue
        new_rows, new_width = rows + each.rows, max(width, each.tokens_per_row)
        new_tokens = tokens + each.rows * each.tokens_per_row
        padded = new_rows * new_width
        if padded > limits.max_tokens or padded - new_tokens > limits.max_padding * padded:
            continue
        members.append(each)
        rows, tokens, width = new_rows, new_tokens, new_width
        if rows >= limits.max_rows:
            break
    is_ready = rows >= limits.max_rows or limits.max_wait_s == 0
    return Batch(tuple(members), now_s if is_ready else _ready_s(members, now_s, limits))


def _ready_s(members: Sequence[QueuedRows], now_s: float, limits: BatchLimits) -> float:
    """When a batch that is not full may start."""
    filled_s = min(each.enqueued_at_s for each in members) + limits.max_wait_s
    deadlines_s = [each.deadline_s for each in members if each.deadline_s is not None]
    return max(now_s, min([filled_s, *(end_s - limits.inference_s for end_s in deadlines_s)]))


@dataclass(frozen=True, slots=True)
class Payload:
    """The input of one inference, and its size for batching."""

    content: Any
    rows: int = 1
    tokens_per_row: int = 1
    batch_key: Hashable = None
    """Payloads with equal keys can be inferred in one batch; None: only alone."""


@dataclass(eq=False, slots=True)
class DeviceModel:
    """One model as the device runs it. Mutable: its policy may change, and it may break."""

    key: str = ""
    """`namespace/name@generation`; empty for work that belongs to no model."""
    name: str = ""
    """The model's label in metrics."""
    infer: Callable[[Sequence[Any]], list[Any]] = list
    """One inference over the contents of several payloads, with a result for each."""
    policy: ModelPolicy = field(default_factory=ModelPolicy)
    max_rows: int | None = None
    """Limit of the network's batch dimension; None: no limit."""
    broken_reason: str | None = None
    """Set once inferences of different requests hung; no further inference of it runs."""
    suspects: Suspects = field(default_factory=Suspects)

    @property
    def tenant(self) -> str:
        return self.key.partition("/")[0]

    def limits(self, times: BatchTimes) -> BatchLimits:
        wait_s = self.policy.max_batch_wait_s
        wanted = batch_cap(
            annotated=self.policy.max_batch_size,
            planned=times.planned_rows.get(self.key),
            measured=times.max_rows(self.key),
        )
        return BatchLimits(
            max_rows=wanted if self.max_rows is None else min(wanted, self.max_rows),
            max_wait_s=wait_s,
            inference_s=times.longest_batch_s(self.key) if wait_s else 0.0,
        )


@dataclass(frozen=True, slots=True)
class InferenceResult(Generic[Result]):
    """The result of a job and its times in seconds."""

    value: Result
    wait_s: float
    compute_s: float
    """Time of the whole batch."""
    rows: int = 1
    """Items in the batch, other requests' included."""
    batch: int = 0
    """Number of the inference in its pod, shared by the batch's requests; 0: it took several."""


@dataclass(eq=False, slots=True)
class Queued:
    model: DeviceModel
    queued: QueuedRows
    is_probe: bool = field(default=False, kw_only=True)
    """It may run although it is expected to end after its deadline."""


class DeviceQueue(Generic[Q]):
    """Queued jobs by model and order of arrival."""

    def __init__(self, times: BatchTimes) -> None:
        self._times = times
        self._jobs: dict[DeviceModel, dict[int, Q]] = {}
        self._count = 0
        self._earliest_s = math.inf
        """Lower bound of the times by which queued jobs must have begun."""
        self._usage = TenantUsage()
        self.probes = ProbeBudget()
        """Of jobs that may run although they are expected to end after their deadline."""

    def __len__(self) -> int:
        return self._count

    def add(self, job: Q) -> None:
        self._jobs.setdefault(job.model, {})[job.queued.sequence] = job
        self._count += 1
        self._earliest_s = min(self._earliest_s, self._latest_start_s(job))

    def remove(self, job: Q) -> bool:
        """Remove a job; False if it is not in the queue."""
        jobs = self._jobs.get(job.model, {})
        if jobs.pop(job.queued.sequence, None) is None:
            return False
        self._count -= 1
        if not jobs:
            del self._jobs[job.model]
        return True

    def take_next(self, now_s: float) -> tuple[list[Q], float]:
        """Remove and return the jobs of the next ready batch, with `now_s`.

        It is the most urgent one of the tenant that used the device least lately. If none is ready:
        no jobs, and the time at which the next batch is.
        """
        wake_s = math.inf
        models = self._jobs
        ordered = list(models)
        if len(ordered) > 1:
            ordered.sort(key=lambda each: self._rank(each, now_s))
        for model in ordered:
            jobs = self._jobs[model]
            queued = [job.queued for job in jobs.values()]
            batch = form_batch(queued, now_s, model.limits(self._times))
            if batch is not None and batch.ready_s <= now_s:
                taken = [jobs[each.sequence] for each in batch.members]
                for job in taken:
                    self.remove(job)
                rows = sum(job.queued.rows for job in taken)
                batch_s = max(MIN_BATCH_S, self._times.usual_s(model.key, rows, now_s))
                self._usage.add(model.tenant, batch_s, now_s)
                return taken, now_s
            if batch is not None:
                wake_s = min(wake_s, batch.ready_s)
        return [], wake_s

    def _rank(
        self, model: DeviceModel, now_s: float
    ) -> tuple[tuple[float, int], tuple[float, int]]:
        urgency = min(job.queued.urgency for job in self._jobs[model].values())
        return self._usage.rank(model.tenant, now_s), urgency

    def take_expired(self, now_s: float) -> list[Q]:
        """Remove the jobs that cannot end before their deadline, by the usual time of their batch.

        A job alone in the queue stays, and so do a few probes: measurements may be out of date or
        of larger requests.
        """
        if now_s < self._earliest_s:
            return []
        waiting = {
            model: sum(job.queued.rows for job in jobs.values())
            for model, jobs in self._jobs.items()
        }
        expired = self._take(lambda job: self._is_expired(job, waiting[job.model], now_s))
        queued = [job for jobs in self._jobs.values() for job in jobs.values()]
        self._earliest_s = min([self._latest_start_s(job) for job in queued], default=math.inf)
        return expired

    def _latest_start_s(self, job: Q) -> float:
        """The latest start that meets the deadline even in the model's longest batch."""
        deadline_s = job.queued.deadline_s
        if deadline_s is None:
            return math.inf
        if job.is_probe:
            return deadline_s
        return deadline_s - self._times.longest_batch_s(job.model.key)

    def _is_expired(self, job: Q, waiting: int, now_s: float) -> bool:
        deadline_s = job.queued.deadline_s
        if deadline_s is None or now_s < self._latest_start_s(job):
            return False
        if now_s >= deadline_s:
            return True
        if self._count == 1:
            return False
        key, rows = job.model.key, min(waiting, job.model.limits(self._times).max_rows)
        usual_s = self._times.usual_s(key, rows, now_s)
        if now_s < deadline_s - usual_s:
            return False
        if not self.probes.is_due(key, now_s):
            return True
        job.is_probe = True  # until its deadline, see `_latest_start_s`
        self.probes.spend(key, now_s, usual_s)
        return False

    def take_model(self, model: DeviceModel) -> list[Q]:
        return self._take(lambda job: job.model is model)

    def take_all(self) -> list[Q]:
        return self._take(lambda job: True)

    def _take(self, matches: Callable[[Q], bool]) -> list[Q]:
        jobs = [job for jobs in self._jobs.values() for job in jobs.values() if matches(job)]
        for job in jobs:
            self.remove(job)
        return jobs
