"""The requests in flight: admission to slots and step queue, draining, and cancellation of all.

Of a predict request also its stage times and its response's provenance.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from starlette.types import Receive

from common.inference_protocol import InvalidRequest
from common.inference_protocol.bodies import EncodedBody
from registry.domain.model import ModelSpec
from registry.domain.pod import Stage
from runtime.errors import (
    AlreadyBegun,
    DeadlinePassed,
    PodDraining,
    PodEnded,
    SlotsFull,
    StepQueueFull,
)
from runtime.inference_request import RequestHead
from runtime.loading.load_coordinator import AcquiredModel
from runtime.measurements import Measurements
from runtime.metrics import SLOTS_USED, STEPS_QUEUED, stage_histograms

PLACES: Final = 64
"""Steps that a pod takes beside its slots, also while their inputs are fetched."""


class StepQueue:
    """Steps that schedulers have placed here, beside the slots, from arrival to response.

    At most `length`, of one namespace three quarters. So one that lacks inputs holds no slot.
    Belongs to the event loop.
    """

    def __init__(self, length: int = PLACES) -> None:
        self._length = length
        self._by_namespace: Counter[str] = Counter()

    def check(self, namespace: str) -> None:
        """Raises StepQueueFull where a step of the namespace finds no place."""
        if self._by_namespace.total() >= self._length:
            raise StepQueueFull(f"the pod's step queue is full: it has {self._length} steps")
        most = self._length - self._length // 4
        if self._by_namespace[namespace] >= most:
            raise StepQueueFull(
                f"namespace {namespace} has {most} of {self._length} steps in the pod's step "
                "queue; the others are for other namespaces"
            )

    def add(self, namespace: str, steps: int) -> None:
        """Count steps that arrive, or, below 0, that are over."""
        self._by_namespace[namespace] += steps
        if not self._by_namespace[namespace]:
            del self._by_namespace[namespace]
        STEPS_QUEUED.set(self._by_namespace.total())


Result = TypeVar("Result")

MAX_BEGUN = 10_000
WATCH_AFTER_S: Final = 0.01
"""A request that takes less ends before a cancellation would have saved anything."""


class InFlightRequests:
    """All requests of a pod.

    An entry request takes a slot, a step that a scheduler of workflows has placed takes a place in
    the step queue, and an inference stage alone takes neither.
    """

    def __init__(
        self,
        pod_name: str,
        *,
        slots: int,
        step_queue: StepQueue | None = None,
        allow_simulated_work: bool = False,
    ) -> None:
        self.is_draining = False
        self.pod_name = pod_name
        self.slots = slots
        self._step_queue = step_queue or StepQueue()
        self._allow_simulated_work = allow_simulated_work
        self._slots_used = 0
        self._begun: OrderedDict[str, None] = OrderedDict()
        """The latest entry requests that were admitted: attempts, or ids of those without."""
        self._admitted: set[Admission] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        SLOTS_USED.set_function(lambda: self._slots_used)

    @property
    def is_alone(self) -> bool:
        """Whether at most one request is in flight."""
        return len(self._admitted) <= 1

    def check_admission(self, head: RequestHead) -> None:
        """Refuse a request before its body is read.

        Raises InvalidRequest, PodDraining, DeadlinePassed, SlotsFull, StepQueueFull.
        """
        if head.simulated_work and not self._allow_simulated_work:
            raise InvalidRequest(
                "header x-pilotlight-simulate is accepted only by pods that run with"
                " --allow-simulated-work"
            )
        self.check_draining()
        if head.deadline_s is not None and time.monotonic() >= head.deadline_s:
            raise DeadlinePassed("the deadline had passed when the request arrived")
        if head.is_infer_stage:
            return
        if head.is_queued_step:
            self._step_queue.check(head.model.namespace)
        elif self._slots_used >= self.slots:
            raise SlotsFull(f"all {self.slots} slots of the pod are taken")

    def check_draining(self) -> None:
        """Raises PodDraining."""
        if self.is_draining:
            raise PodDraining(f"pod {self.pod_name} is draining")

    def admit(self, head: RequestHead) -> Admission:
        """Count a request, and its slot or its place in the step queue, in a `with` block.

        Raises as `check_admission` does, AlreadyBegun, and PodEnded if `cancel_all` ends the block.
        """
        return Admission(self, head)

    def begin(self, admission: Admission) -> None:
        head = admission.head
        self.check_admission(head)
        if not head.is_infer_stage:
            self._record_begun(head)
        self._admitted.add(admission)
        self._idle.clear()
        self._take(head, 1)

    def end(self, admission: Admission) -> None:
        self._admitted.discard(admission)
        self._take(admission.head, -1)
        if not self._admitted:
            self._idle.set()

    def _record_begun(self, head: RequestHead) -> None:
        name = head.attempt or head.reservation or head.id
        if head.is_resent and name in self._begun:
            raise AlreadyBegun(
                f"the connection of request {head.id} was lost after pod {self.pod_name} had begun"
                " it; it is not executed twice"
            )
        self._begun[name] = None
        if len(self._begun) > MAX_BEGUN:
            self._begun.popitem(last=False)

    def _take(self, head: RequestHead, count: int) -> None:
        if head.is_infer_stage:
            return
        if head.is_queued_step:
            self._step_queue.add(head.model.namespace, count)
            return
        self._slots_used += count

    def cancel_all(self) -> None:
        for admission in self._admitted:
            admission.interruption.request()

    async def is_idle_within(self, timeout_s: float) -> bool:
        """Whether all requests have ended within the time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True


class Interruption:
    """Ends a block of the current task, which begins now, as `asyncio.timeout` does at a time."""

    __slots__ = ("_cancelling", "_is_over", "_task", "is_requested")

    def __init__(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("only a block of a task can be interrupted")
        self._task = task
        self._cancelling = task.cancelling()
        self._is_over = False
        self.is_requested = False

    def request(self) -> None:
        """Cancel the block, unless it is over."""
        if not self._is_over and not self.is_requested:
            self.is_requested = True
            self._task.cancel()

    def end(self, error: BaseException | None) -> bool:
        """The block is over, once: whether by the interruption, which is no cancellation then."""
        self._is_over = True
        if not self.is_requested:
            return False
        return self._task.uncancel() <= self._cancelling and isinstance(
            error, asyncio.CancelledError
        )


class Admission:
    """One admitted request. A class, since a generator as context manager costs far more."""

    __slots__ = ("_requests", "head", "interruption")

    def __init__(self, requests: InFlightRequests, head: RequestHead) -> None:
        self._requests = requests
        self.head = head
        self.interruption = Interruption()

    def __enter__(self) -> None:
        self._requests.begin(self)

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._requests.end(self)
        self.interruption.end(error)
        if self.interruption.is_requested and isinstance(error, asyncio.CancelledError):
            # also where uvicorn, which ends later, has cancelled it again
            raise PodEnded(f"pod {self._requests.pod_name} ended before the request") from error


class RequestAborted(Exception):
    """The client closed its connection and reads no response."""


async def while_connected(receive: Receive, work: Coroutine[object, object, Result]) -> Result:
    """The result of `work`; if the client disconnects, cancels it and raises RequestAborted.

    Runs it in the caller's task, and watches the client only once it has run for `WATCH_AFTER_S`: a
    task for each request would cost more than all of this.
    """
    loop = asyncio.get_running_loop()
    interruption = Interruption()
    watcher: asyncio.Task[None] | None = None

    def watch() -> None:
        nonlocal watcher
        watcher = loop.create_task(_wait_disconnected(receive, interruption))

    timer = loop.call_later(WATCH_AFTER_S, watch)
    try:
        result = await work
    except BaseException as error:
        if interruption.end(error):
            raise RequestAborted from error
        raise
    finally:
        timer.cancel()
        if watcher is not None:
            watcher.cancel()
    interruption.end(None)
    return result


async def _wait_disconnected(receive: Receive, interruption: Interruption) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    interruption.request()


@dataclass(frozen=True, slots=True)
class PredictResponse:
    body: EncodedBody
    predict_pod: str
    start: str
    stages: Mapping[Stage, float]
    """Seconds per stage."""
    batch: str = ""
    """Number of its inference and the items in it, see `InferenceResult`; empty: not known."""


@dataclass(slots=True)
class PredictRequest:
    """One request. Mutable: owned by the task that serves it."""

    head: RequestHead
    spec: ModelSpec
    predict_pod: str
    measurements: Measurements
    is_small: bool = False
    """Whether its body has at most `QUICK_BYTES`, with all of its tensors."""
    start: str = "warm"
    stages: dict[Stage, float] = field(default_factory=dict)
    batch: str = ""

    def has(self, acquired: AcquiredModel) -> None:
        """Record where the model came from."""
        self.start = acquired.start
        if acquired.load_s:
            self.record(Stage.LOAD, acquired.load_s)

    async def simulate(self, stage: Stage) -> float:
        """Sleep as the request's simulated work asks for; returns the seconds."""
        seconds = self.head.simulated_work.get(stage, 0.0)
        if seconds:
            await asyncio.sleep(seconds)
        return seconds

    def response(self, body: EncodedBody) -> PredictResponse:
        return PredictResponse(body, self.predict_pod, self.start, self.stages, self.batch)

    def record(self, stage: Stage, seconds: float, *, sample_s: float | None = None) -> None:
        """Record a stage's time; `sample_s` is the sample for the registry's estimates."""
        self.stages[stage] = seconds
        for histogram in stage_histograms(stage, self.spec.name):
            histogram.observe(seconds)
        if sample_s is None:
            return
        if stage is Stage.INFER:
            self.measurements.add_inference(self.spec.key, sample_s, self.head.body_bytes)
        else:
            self.measurements.add(self.spec.key, str(stage), sample_s)
