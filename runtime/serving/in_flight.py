"""The requests in flight: admission to slots and step queue, draining, and cancellation of all."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from common.inference_protocol.errors import InvalidRequest
from runtime.errors import (
    AlreadyBegun,
    DeadlinePassed,
    PodDraining,
    PodEnded,
    SlotsFull,
    StepQueueFull,
)
from runtime.metrics import SLOTS_USED, STEPS_QUEUED

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from runtime.wire.request_head import RequestHead

MAX_BEGUN = 10_000
PLACES: Final = 64
"""Steps that a pod takes beside its slots, also while their inputs are fetched."""


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
        step_queue: StepQueue,
        allow_simulated_work: bool = False,
    ) -> None:
        self.is_draining = False
        self._pod_name = pod_name
        self._slots = slots
        self._step_queue = step_queue
        self._allow_simulated_work = allow_simulated_work
        self._slots_used = 0
        self._begun: OrderedDict[str, None] = OrderedDict()
        """The latest entry requests that were admitted: attempts, or ids of those without."""
        self._timeouts: set[asyncio.Timeout] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    def check_admission(self, head: RequestHead) -> None:
        """Refuse a request before its body is read.

        Raises InvalidRequest, PodDraining, DeadlinePassed, SlotsFull, StepQueueFull.
        """
        if head.simulated_work and not self._allow_simulated_work:
            raise InvalidRequest(
                "header x-pilotlight-simulate is accepted only by pods that run with"
                " --allow-simulated-work"
            )
        if self.is_draining:
            raise PodDraining(f"pod {self._pod_name} is draining")
        if head.deadline_s is not None and time.monotonic() >= head.deadline_s:
            raise DeadlinePassed("the deadline had passed when the request arrived")
        if head.is_infer_stage:
            return
        if head.is_queued_step:
            self._step_queue.check(head.model.namespace)
        elif self._slots_used >= self._slots:
            raise SlotsFull(f"all {self._slots} slots of the pod are taken")

    @asynccontextmanager
    async def admit(self, head: RequestHead) -> AsyncIterator[None]:
        """Count a request, and its slot or its place in the step queue, until the block ends.

        Raises as `check_admission` does, AlreadyBegun, and PodEnded if `cancel_all` ends the block.
        """
        self.check_admission(head)
        if not head.is_infer_stage:
            self._record_begun(head)
        timeout = asyncio.timeout(None)
        self._timeouts.add(timeout)
        self._idle.clear()
        self._take(head, 1)
        try:
            async with timeout:
                yield
        except TimeoutError as error:
            if timeout.expired():
                raise PodEnded(f"pod {self._pod_name} ended before the request") from error
            raise
        finally:
            self._timeouts.discard(timeout)
            self._take(head, -1)
            if not self._timeouts:
                self._idle.set()

    def _record_begun(self, head: RequestHead) -> None:
        name = head.attempt or head.reservation or head.id
        if head.is_resent and name in self._begun:
            raise AlreadyBegun(
                f"the connection of request {head.id} was lost after pod {self._pod_name} had begun"
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
        SLOTS_USED.set(self._slots_used)

    def cancel_all(self) -> None:
        now_s = asyncio.get_running_loop().time()
        for timeout in self._timeouts:
            timeout.reschedule(now_s)

    async def wait_idle(self) -> None:
        await self._idle.wait()


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
